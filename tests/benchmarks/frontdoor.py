"""The front door as a stock client meets it: tritonclient over gRPC, raw in the message and through shared memory.

The calls are those of `tests/benchmarks/triton_peer.py`, so that the two can be set beside each other.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from tests.benchmarks.nodes import running_node
from tests.benchmarks.timing import Figure, p50_us
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RAW, SHM = "front door, raw in the message", "front door, system shared memory"
MODEL = "echo"
READY_S = 30.0


def figures(sizes: list[int], seconds: float, rounds: int) -> list[Figure]:
    """An echo at each size, both ways."""
    found = []
    port = free_port()
    with running_node("local", "--frontdoor", str(port)):
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        try:
            _wait_ready(client)
            for _ in range(rounds):
                for size in sizes:
                    found.append(Figure(RAW, size, p50_us(_raw(client, size), seconds)))
                    with _shared(client, size) as call:
                        found.append(Figure(SHM, size, p50_us(call, seconds)))
        finally:
            client.close()
    return found


def _raw(client: Any, size: int) -> Callable[[], object]:
    array = np.ones(size // 4, np.float32)
    tensor, output = triton.InferInput("x", array.shape, "FP32"), triton.InferRequestedOutput("y")
    tensor.set_data_from_numpy(array)
    return lambda: client.infer(MODEL, [tensor], outputs=[output]).as_numpy("y")


@contextmanager
def _shared(client: Any, size: int) -> Iterator[Callable[[], object]]:
    array = np.ones(size // 4, np.float32)
    handles = []
    try:
        for region in ("in", "out"):
            key = f"/overspill_bench_{os.getpid()}_{region}"
            handles.append(shared_memory.create_shared_memory_region(region, key, size))
            client.register_system_shared_memory(region, key, size)
        shared_memory.set_shared_memory_region(handles[0], [array])
        tensor, output = triton.InferInput("x", array.shape, "FP32"), triton.InferRequestedOutput("y")
        tensor.set_shared_memory("in", size)
        output.set_shared_memory("out", size)
        yield lambda: client.infer(MODEL, [tensor], outputs=[output])
    finally:
        client.unregister_system_shared_memory()
        for handle in handles:
            shared_memory.destroy_shared_memory_region(handle)


def _wait_ready(client: Any) -> None:
    give_up_at = time.monotonic() + READY_S
    while True:
        try:
            if client.is_model_ready(MODEL):
                return
        except InferenceServerException:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(0.05)
