"""A process of a node's ports that is stopped: it did not die, so nothing but its silence tells the node."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tritonclient.utils import InferenceServerException

from tests.integration.frontdoors import Front, front_models, grpc_client, running_front
from tests.integration.nodes import RunningNode, client_of, rough_models, running_node, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def is_ready(front: Front) -> bool:
    with grpc_client(front.grpc) as client:
        try:
            return bool(client.is_server_ready())
        except InferenceServerException:
            return False


def stop_and_see_replaced(node: RunningNode, *modules: str) -> None:
    before = {module: node.children(module) for module in modules}
    for pids in before.values():
        os.kill(pids[0], signal.SIGSTOP)
    for module in modules:
        wait_until(lambda module=module: node.children(module) not in ([], before[module]), 60.0)  # type: ignore[misc]


@pytest.mark.long
def test_a_port_that_stands_still_is_replaced_and_the_node_says_so(tmp_path: Path) -> None:
    """It is not dead, so only its silence tells. The node serves on, over its local wire."""
    with (
        running_front(tmp_path, front_models(tmp_path), "--wires", "local,rpc") as front,
        client_of(front.node) as other,
    ):
        began = time.monotonic()
        stop_and_see_replaced(front.node, "workers.port", "frontdoor.port")
        assert time.monotonic() - began < 20.0
        assert other.call("rough", 0, 1) == [0, 1]
        wait_until(lambda: front.node.state == "ready" and is_ready(front))
        log = front.node.log.read_text()
        assert "the rpc port stands still" in log
        assert "the front door stands still" in log
        assert "is degraded at" in log


@pytest.mark.long
def test_an_rdma_port_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path), "--wires", "local,rdma,rpc", ready=False) as node:
        wait_until(lambda: node.state in {"ready", "degraded"})  # it depends on whether there is a device
        stop_and_see_replaced(node, "workers.rdma_port")
        assert "the rdma port stands still" in node.log.read_text()
        assert "the rpc port" not in node.log.read_text()
