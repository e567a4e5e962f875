"""A router that no node lets in is told so when it connects, not by each of its calls; one node that does is enough."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from fabric.errors import AccessDenied, Fate
from fabric.link.config import LinkTimes
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from router import AsyncRouter, Router, RouterConfig
from tests.integration.router_nodes import settle
from tests.integration.rpc_node import EchoNode, serving


def knowing(token: str) -> RouterConfig:
    # Time enough for a busy machine; and no second dial, which could be under way for as long when a router closes.
    link = LinkConfig(LinkTimes(connect_s=20.0), rpc_config=RpcConfig(token=token))
    return RouterConfig(seed=1, dial_first_s=600.0, dial_max_s=600.0, link=link)


def test_a_wrong_token_is_told_at_connect_unless_somebody_lets_the_router_in() -> None:
    with ExitStack() as undo:
        ports = [
            undo.enter_context(serving(EchoNode(), RpcServerConfig(token=token)))[1] for token in ("one", "one", "two")
        ]
        same, other = ",".join(f"127.0.0.1:{port}" for port in ports[:2]), f"127.0.0.1:{ports[2]}"
        with pytest.raises(AccessDenied, match=r"each of the 2 nodes .* refuses this router: .*token") as caught:
            Router.connect(f"static:{same}", config=knowing("wrong"), timeout_s=30.0)
        assert caught.value.fate is Fate.NEVER_RAN
        with pytest.raises(AccessDenied, match=r"the only node .* token"):
            asyncio.run(_connect(f"static:{other}", knowing("")))
        with Router.connect(f"static:{same},{other}", config=knowing("two"), timeout_s=30.0) as router:
            told = " ".join(router.statistics().workers)
        assert "ready" in told
        del router
    settle()


async def _connect(url: str, config: RouterConfig) -> None:
    async with AsyncRouter.connect(url, config=config, timeout_s=30.0):
        raise AssertionError("no node lets it in")
