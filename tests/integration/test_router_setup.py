"""What `connect` tells before it waits for any node, and what a router that ends while it waits leaves: nothing."""

from __future__ import annotations

import gc
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError
from fabric.link.config import LinkTimes
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback.config import RpcConfig, TlsFiles
from overspill import Router
from router.config import RouterConfig
from tests.integration.bad_node import collect, wait_until
from tests.integration.bad_ways import check_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Routers that ended are gone before the look for leaks."""
    yield from collect()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("none.pem",), ("the authority", "none.pem cannot be read", "correct the tls settings")),
        (("text.pem",), ("text.pem hold no PEM",)),
        ((None, "none.pem", "none.key"), ("tls needs authority", "name the PEM file")),
    ],
)
def test_a_certificate_file_that_cannot_be_used_is_told_by_connect(
    tmp_path: Path, files: tuple[str | None, ...], words: tuple[str, ...]
) -> None:
    """Whether a node is there or not, and before any is waited for."""
    (tmp_path / "text.pem").write_text("no certificate")
    tls = TlsFiles(*(None if name is None else tmp_path / name for name in files))
    config = RouterConfig(link=LinkConfig(rpc_config=RpcConfig(tls=tls)))
    with pytest.raises(ConfigError) as caught:
        Router.connect("static:127.0.0.1:1", config=config)
    check_sentence(caught.value, *words)


def test_a_file_of_decisions_that_cannot_be_written_is_told_by_connect(tmp_path: Path) -> None:
    config = RouterConfig(explain_file=str(tmp_path / "none" / "decisions"))
    with pytest.raises(ConfigError) as caught:
        Router.connect("static:127.0.0.1:1", config=config)
    check_sentence(caught.value, "decisions cannot be written", "give another path")


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_router_that_ends_while_it_dials_leaves_no_thread_that_waits(how: str) -> None:
    """What listens there never greets, and each wire would have a minute to open."""
    before = set(threading.enumerate())
    link = LinkConfig(LinkTimes(connect_s=60.0))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"static:127.0.0.1:{silent.getsockname()[1]}"
        router = Router.connect(url, config=RouterConfig(link=link), timeout_s=0.3)
        assert any(thread.name.startswith("overspill-open") for thread in set(threading.enumerate()) - before)
        if how == "close":
            router.close()
        del router
        gc.collect()
        assert wait_until(lambda: not set(threading.enumerate()) - before, 10.0), threading.enumerate()
