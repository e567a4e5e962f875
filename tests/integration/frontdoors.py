"""A node with a front door for stock clients, its models, and clients that are closed with their block."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, shared_memory

from tests.integration.nodes import RunningNode, running_node, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

ECHO = """
class Model:
    def __init__(self, config):
        self.pairs = list(zip([i.name for i in config.inputs], [o.name for o in config.outputs]))
    def execute(self, inputs, outputs):
        for given, told in self.pairs:
            outputs[told] = inputs[given]
"""
ROUGH = """
import os, signal, time
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def execute(self, inputs, outputs):
        what, number = inputs["x"][:2]
        with open(self.log, "a") as log:
            log.write(f"{number}\\n")
        if what == 1: os.kill(os.getpid(), signal.SIGKILL)
        if what == 4: time.sleep(number / 1000)
        if what == 6: raise KeyError("six")
        outputs["y"] = inputs["x"]
"""
OK, KILL, SLEEP, RAISE = 0, 1, 4, 6
MESSAGE_BYTES = 4 << 20
"""The limit of the shared node."""
REGION = 1 << 20
"""Bytes of a test's region, where the test needs no other number."""
DTYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
)  # fmt: skip


def config(inputs: dict[str, str], outputs: dict[str, str], dtype: str, more: str = "") -> str:
    """A config.pbtxt of tensors with these dims."""
    written = "TYPE_STRING" if dtype == "BYTES" else f"TYPE_{dtype}"
    lines = ['backend: "python"']
    lines += [f'input {{ name: "{name}" data_type: {written} dims: [{dims}] }}' for name, dims in inputs.items()]
    lines += [f'output {{ name: "{name}" data_type: {written} dims: [{dims}] }}' for name, dims in outputs.items()]
    return "\n".join([*lines, more, ""])


def front_models(folder: Path) -> Path:
    """`echo_DTYPE` for each datatype, `scalar`, `grid` (two dimensions), `trio` (three of each), `rough`, `batch`."""
    models = folder / "models"
    for dtype in DTYPES:
        write_model(models, f"echo_{dtype}", ECHO, config({"x": "-1"}, {"y": "-1"}, dtype))
    write_model(models, "scalar", ECHO, config({"x": ""}, {"y": ""}, "FP32"))
    write_model(models, "grid", ECHO, config({"x": "-1, -1"}, {"y": "-1, -1"}, "FP32"))
    three = [{f"{letter}{number}": "-1" for number in range(3)} for letter in "xy"]
    write_model(models, "trio", ECHO, config(three[0], three[1], "FP32"))
    write_model(models, "rough", ROUGH, config({"x": "-1"}, {"y": "-1"}, "INT64"))
    write_model(models, "batch", ECHO, config({"x": "4"}, {"y": "4"}, "FP32", "max_batch_size: 8"))
    return models


@dataclass(frozen=True, slots=True)
class Front:
    """A node and where its front door listens."""

    node: RunningNode

    @property
    def ports(self) -> tuple[int, int]:
        """For gRPC and for HTTP."""
        log = self.node.log.read_text()
        found = re.findall(r"front door of \S+: gRPC on port (\d+), HTTP and metrics on port (\d+)", log)
        return int(found[-1][0]), int(found[-1][1])

    @property
    def grpc(self) -> str:
        """Its address for gRPC."""
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def http(self) -> str:
        """Its address for HTTP."""
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def pid(self) -> int:
        """The front door's process."""
        (pid,) = self.node.children("frontdoor.port")
        return pid


@contextmanager
def running_front(folder: Path, models: Path, *words: str) -> Iterator[Front]:
    """A node with a front door on free ports, ready."""
    with running_node(folder, models, "--frontdoor", "0", *words) as node:
        wait_until(lambda: "front door of" in node.log.read_text())
        yield Front(node)


def wait_serving(front: Front, *models: str) -> None:
    """Until clients are told that the server and these models are ready: a front door asks its node once a second."""
    with grpc_client(front.grpc) as client:
        wait_until(lambda: client.is_server_ready() and all(client.is_model_ready(model) for model in models))


@contextmanager
def grpc_client(address: str) -> Iterator[Any]:
    """A stock client for gRPC."""
    client = triton.InferenceServerClient(address)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def http_client(address: str) -> Iterator[Any]:
    """A stock client for HTTP."""
    client = triton_http.InferenceServerClient(address)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def region(client: Any, name: str, nbytes: int = REGION) -> Iterator[Any]:
    """Shared memory, made and registered as stock clients do."""
    handle = shared_memory.create_shared_memory_region(name, f"/osp_test_{name}", nbytes)
    try:
        client.register_system_shared_memory(name, f"/osp_test_{name}", nbytes)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def given(name: str, array: np.ndarray[Any, Any], dtype: str = "FP32") -> Any:
    """An input that travels in the message."""
    tensor = triton.InferInput(name, array.shape, dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def lies(name: str, shape: list[int], dtype: str, where: str, nbytes: int, offset: int = 0) -> Any:
    """An input in shared memory."""
    tensor = triton.InferInput(name, shape, dtype)
    tensor.set_shared_memory(where, nbytes, offset)
    return tensor


def goes(name: str, where: str, nbytes: int, offset: int = 0) -> Any:
    """An output that goes there."""
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(where, nbytes, offset)
    return output


def code(call: Any) -> str:
    """The code that a call fails with."""
    with pytest.raises(InferenceServerException) as raised:
        call()
    return str(raised.value.status()).removeprefix("StatusCode.")
