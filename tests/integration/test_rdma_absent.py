"""A node that is asked for rdma where there is no device: it serves over rpc, says why, and refuses offers in words."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import AccessDenied, ConfigError, OverspillError, ProtocolError, Unavailable
from fabric.frame import check_header, decode_error
from fabric.link.wires import LinkConfig
from fabric.rdma.config import RdmaConfig
from fabric.rdma.engine import Engine
from fabric.rdma.facts import read_host
from fabric.rpc_fallback.bootstrap import bring_offer
from fabric.rpc_fallback.config import RpcConfig
from fabric.rpc_fallback.health import Serving
from fabric.rpc_fallback.health_caller import ask as ask_health
from overspill import Router
from router.config import RouterConfig
from tests.integration.nodes import RunningNode, rough_models, running_node, soon, wait_until
from workers import offer as port_offer
from workers.config import NodeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(read_host().devices), reason="this host has an RDMA device")
TOKEN = "a secret"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("node")
    config = folder / "node.toml"
    config.write_text(f'rpc_token = "{TOKEN}"\n')
    words = ("--config", str(config), "--wires", "local,rdma,rpc", "--listen", "127.0.0.1:0")
    with running_node(folder, rough_models(folder), *words, ready=False) as started:
        wait_until(lambda: started.state == "degraded", 60.0)
        yield started


def _address(node: RunningNode) -> str:
    return str(re.findall(r"is (?:ready|degraded) at \S+, (\S+)", node.log.read_text())[-1])


def _refusal(node: RunningNode, offer: bytes, token: str = TOKEN) -> OverspillError:
    answer, line = bring_offer(_address(node), 7, RpcConfig(token=token), offer, soon(20.0))
    line.close()
    return decode_error(answer, check_header(answer)).error


def test_it_serves_and_says_why_there_is_no_rdma(node: RunningNode) -> None:
    """Discovery hears that it is not whole; a load balancer, that it serves."""
    assert node.state == "degraded"
    assert ask_health(_address(node), RpcConfig(), 20.0) is Serving.SERVING
    wait_until(lambda: "callers stay on rpc" in node.log.read_text())
    assert len(node.children("workers.rdma_port")) == 1


def test_a_router_calls_it_over_rpc(node: RunningNode) -> None:
    config = RouterConfig(link=LinkConfig(local=False, rpc_config=RpcConfig(token=TOKEN)))
    with Router.connect(f"static:{_address(node)}", config=config, timeout_s=20.0) as router:
        reply = router.infer("rough", {"x": np.array([0, 5], np.int64)}, timeout_s=20.0)
        assert reply.trace.wire == "rpc"
        assert reply["y"].tolist() == [0, 5]
        reply.close()
        (trouble,) = router.statistics().wire_troubles
        assert "RDMA" in trouble, "the operator learns why it is not rdma"
    del router, reply
    gc.collect()  # links and their errors hold each other


def test_rdma_alone_is_not_replaced_by_rpc(node: RunningNode) -> None:
    config = RouterConfig(link=LinkConfig(local=False, rpc=False, rpc_config=RpcConfig(token=TOKEN)))
    router = Router.connect(f"static:{_address(node)}", config=config, timeout_s=20.0)
    with closing(router), pytest.raises(Unavailable, match="RDMA"):
        router.infer("rough", {"x": np.array([0, 5], np.int64)}, timeout_s=0.5)
    del router
    gc.collect()


def test_garbage_is_refused_by_the_rdma_port_and_hurts_nobody(node: RunningNode) -> None:
    refusal = _refusal(node, b"no offer at all")
    assert isinstance(refusal, ProtocolError | Unavailable)
    assert "RDMA" in str(refusal)
    assert isinstance(_refusal(node, b""), OverspillError)


def test_an_offer_needs_the_operators_token(node: RunningNode) -> None:
    assert isinstance(_refusal(node, b"offer", token="wrong"), AccessDenied)


def test_a_node_without_rdma_says_so(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path), "--wires", "local,rpc", "--listen", "127.0.0.1:0") as plain:
        assert plain.state == "ready", "it was not asked for rdma, so it is whole"
        refusal = _refusal(plain, b"offer", token="")
        assert isinstance(refusal, Unavailable)
        assert "--wires" in str(refusal)


def test_the_rdma_port_comes_back_after_it_was_killed(node: RunningNode) -> None:
    (pid,) = node.children("workers.rdma_port")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: node.children("workers.rdma_port") not in ([], [pid]))
    assert node.state == "degraded"


def test_rdma_without_rpc_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="give both"):
        NodeConfig(models="m", wires=("local", "rdma"))


def test_a_port_that_is_not_up_or_hangs_up_is_told(tmp_path: Path) -> None:
    node_socket = str(tmp_path / "node.sock")
    with pytest.raises(Unavailable, match="not up"):
        port_offer.bring_offer(node_socket, 7, b"offer", 1.0)


def test_an_engine_without_a_device_says_what_is_missing_and_closes() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine")
    thread.start()
    engine = Engine(loop, RdmaConfig())
    with pytest.raises(Unavailable, match=r"RDMA|infiniband"):
        engine.choose()
    engine.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
