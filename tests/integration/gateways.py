"""A gateway for stock clients over nodes of one registry, for tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tritonclient.grpc as triton

from tests.integration.frontdoors import ECHO, ROUGH, config
from tests.integration.nodes import IDEMPOTENT, ROOT, RunningNode, running_node, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

MANY = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        for number in inputs["x"]:
            outputs["y"] = inputs["x"] * 0 + number
            yield
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's process, where it listens, and the nodes behind it."""

    process: subprocess.Popen[bytes]
    address: str
    http: str
    nodes: tuple[RunningNode, ...]


def given(array: np.ndarray[Any, Any], dtype: str = "FP32", name: str = "x") -> Any:
    """An input that travels in the message."""
    tensor = triton.InferInput(name, array.shape, dtype)
    tensor.set_data_from_numpy(array)
    return tensor


@contextmanager
def gateway_process(registry: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """A gateway that is ready, and its addresses for gRPC and HTTP."""
    command = [sys.executable, "-m", "overspill", "gateway", "--registry", registry, "--listen", "0", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        ports = re.search(r"gRPC on (\S+), HTTP and metrics on port (\d+)", line)
        assert ports is not None, line
        yield process, ports[1], f"127.0.0.1:{ports[2]}"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.communicate()


@contextmanager
def running_gateway(
    folder: Path, nodes: int, node_words: tuple[str, ...] = (), words: tuple[str, ...] = ()
) -> Iterator[Gateway]:
    """Nodes of one registry, and a gateway over them that is ready."""
    models, registry = folder / "models", f"dir:{folder / 'registry'}"
    for dtype in ("FP32", "BF16", "BYTES"):
        write_model(models, f"echo_{dtype}", ECHO, config({"x": "-1"}, {"y": "-1"}, dtype, IDEMPOTENT))
    write_model(models, "rough", ROUGH, config({"x": "-1"}, {"y": "-1"}, "INT64", IDEMPOTENT))
    write_model(models, "many", MANY, config({"x": "-1"}, {"y": "-1"}, "INT64", DECOUPLED + IDEMPOTENT))
    write_model(models, "broken", "raise ImportError('no such card')", config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with ExitStack() as stack:
        found = []
        for number in range(nodes):
            own = folder / f"node {number}"
            own.mkdir()
            own_words = ("--registry", registry, "--node-id", f"n{number}", *node_words)
            found.append(stack.enter_context(running_node(own, models, *own_words)))
        process, address, http = stack.enter_context(gateway_process(registry, *words))
        yield Gateway(process, address, http, tuple(found))
