"""`overspill health`, and the service behind it, tell whether a node is ready: a port that listens is not enough."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import NodeLost
from fabric.rpc_fallback.config import RpcConfig
from fabric.rpc_fallback.health import Serving
from fabric.rpc_fallback.health_caller import ask
from tests.integration.nodes import CONFIG, running_node, wait_until, write_model
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)

WAITS = """
import os, time
class Model:
    def __init__(self, config):
        while not os.path.exists(os.environ["NODE_TEST_LOG"]):
            time.sleep(0.01)
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""


def health(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overspill", "health", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def state(address: str) -> Serving | None:
    try:
        return ask(address, RpcConfig(), 5.0)
    except NodeLost:
        return None


def test_a_node_is_ready_once_its_models_are_and_not_while_its_executor_is_replaced(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "waits", WAITS, CONFIG)
    address = f"127.0.0.1:{free_port()}"
    words = ("--wires", "local,rpc", "--listen", address)
    with running_node(tmp_path, tmp_path / "models", *words, ready=False) as node:
        wait_until(lambda: state(address) is not None)
        found = health(address)
        assert (found.returncode, found.stdout) == (1, f"{address} is not ready\n")
        node.runs.touch()
        node.wait_ready()
        wait_until(lambda: state(address) is Serving.SERVING)
        found = health(address)
        assert (found.returncode, found.stdout) == (0, f"{address} is ready\n")
        node.runs.unlink()  # whoever comes next must wait again
        (executor,) = node.children()
        subprocess.run(["kill", "-KILL", str(executor)], check=True, timeout=10)
        wait_until(lambda: state(address) is Serving.NOT_SERVING)
        node.runs.touch()
        wait_until(lambda: state(address) is Serving.SERVING)


def test_a_port_that_is_started_again_knows_the_state(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "waits", WAITS, CONFIG)
    (tmp_path / "runs.log").touch()
    address = f"127.0.0.1:{free_port()}"
    with running_node(tmp_path, tmp_path / "models", "--wires", "local,rpc", "--listen", address) as node:
        (port,) = node.children("workers.port")
        subprocess.run(["kill", "-KILL", str(port)], check=True, timeout=10)
        wait_until(lambda: node.children("workers.port") not in ([], [port]))
        wait_until(lambda: state(address) is Serving.SERVING)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("127.0.0.1:1",), 3, "no connection to the node could be made"),
        (("nowhere",), 2, "give HOST:PORT"),
        (("127.0.0.1:1", "--timeout-s", "0"), 2, "give a number from"),
        (("127.0.0.1:1", "--tls-cert", "a.pem"), 2, "--tls-ca"),
        (("127.0.0.1:1", "--tls-ca", "missing.pem"), 2, "missing.pem"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: tuple[str, ...], code: int, told: str) -> None:
    found = health(*words)
    assert found.returncode == code, found.stderr
    assert told in found.stderr
    assert "Traceback" not in found.stderr


def test_a_silent_host_costs_the_timeout_and_no_more() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        found = health(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout-s", "0.5")
    assert found.returncode == 3
    assert time.monotonic() - began < 20.0
