"""What a small stock call costs in processor time: the front door, its node and executor, and bare echoes of gRPC.

Neighbours of a machine change processor time less than latency, and the echoes of the same run tell by how much. Run it
as `python -m tests.benchmarks.frontdoor_cpu [BYTES]`; the figures are in `docs/benchmarks.md`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import tritonclient.grpc as triton

from tests.benchmarks.frontdoor import _raw, _wait_ready
from tests.benchmarks.nodes import running_node
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS, WARM, ROUNDS = 1500, 200, 3
ECHO = "bench.Echo"
ECHOES = ("grpc.aio", "threads")


def cpu_us(pid: int) -> float:
    """What all threads of a process have taken of processors."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def per_call(call: Callable[[], object], pids: dict[str, int]) -> dict[str, float]:
    """Microseconds of processor time per call of each process and of this one, and the median latency."""
    for _ in range(WARM):
        call()
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        before, own_s, times = {name: cpu_us(pid) for name, pid in pids.items()}, time.process_time(), []
        for _ in range(CALLS):
            began_s = time.perf_counter()
            call()
            times.append(time.perf_counter() - began_s)
        found = {name: (cpu_us(pid) - before[name]) / CALLS for name, pid in pids.items()}
        found["client"] = (time.process_time() - own_s) / CALLS * 1e6
        found["p50"] = statistics.median(times) * 1e6
        rounds.append(found)
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def of_front_door(nbytes: int) -> dict[str, float]:
    """A node's processes, for an echo of raw bytes."""
    port = free_port()
    with running_node("local", "--frontdoor", str(port)):
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        try:
            _wait_ready(client)
            return per_call(_raw(client, nbytes), _processes(os.getpid()))
        finally:
            client.close()


def _processes(root: int) -> dict[str, int]:
    """The node below `root`, its front door and its executor."""
    names = {"frontdoor.port": "front door", "workers.executor": "executor", "overspill\0node": "node"}
    children: dict[int, list[int]] = {}
    words: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words[int(folder.name)] = (folder / "cmdline").read_text(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, ahead = {}, [root]
    while ahead:
        for pid in children.get(ahead.pop(), []):
            ahead.append(pid)
            found.update({name: pid for word, name in names.items() if word in words[pid]})
    return found


def of_echo(kind: str, nbytes: int) -> dict[str, float]:
    """A bare echo in a process of its own."""
    words = [sys.executable, "-m", "tests.benchmarks.frontdoor_cpu", "serve", kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}") as channel:
                echo, raw = channel.unary_unary(f"/{ECHO}/Call"), bytes(nbytes)
                return per_call(lambda: echo(raw), {kind: server.pid})
        finally:
            server.kill()


def _serve_threads() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_handler(lambda raw, _context: raw),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def _serve_aio() -> None:
    async def echo(raw: bytes, _context: Any) -> bytes:
        return raw

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handler(echo),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def _handler(echo: Any) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(ECHO, {"Call": grpc.unary_unary_rpc_method_handler(echo)})


def main() -> None:
    """Prints a row for each server."""
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    rows = [("front door", of_front_door(nbytes)), *((kind, of_echo(kind, nbytes)) for kind in ECHOES)]
    for name, found in rows:
        print(f"{name}: " + ", ".join(f"{part} {us:.0f}" for part, us in found.items()) + " us per call")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve_threads() if sys.argv[2] == "threads" else asyncio.run(_serve_aio())
    else:
        main()
