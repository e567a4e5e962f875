"""Callers of nodes in processes of their own: one interpreter cannot keep several GPUs busy.

The requests of a round lie in a file that each process reads once. What is to be asked is said in lines: a registry, a
model, and which requests go there. Callers belong to one line each and take its requests one after the other, so a
round over one line is placed by the node behind it, and one over several is dealt out. Read `tests/hw/several.py`.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from overspill import Router

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized
    from pathlib import Path

Arrays = dict[str, np.ndarray[Any, Any]]
LINES_MAX = 16
TIMEOUT_S = 120.0
HEAD_START_S = 0.05
"""From the word to go until everybody goes, so that nobody is late."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where to ask for what: requests by their numbers in the file, in this order."""

    registry: str
    model: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer; `check` is the CRC-32 of its outputs by name, in the order of their names."""

    request: int
    began_s: float
    ended_s: float
    compute_ms: float
    attempts: int
    check: int


def check_of(outputs: Arrays) -> int:
    """What `Seen.check` says of these outputs."""
    check = 0
    for name in sorted(outputs):
        check = zlib.crc32(np.ascontiguousarray(outputs[name]).tobytes(), check)
    return check


def makespan_s(seen: list[Seen]) -> float:
    """From the first question to the last answer."""
    return max(each.ended_s for each in seen) - min(each.began_s for each in seen)


class Callers:  # mutable: owns processes
    """`threads` callers in each of `processes`. With several lines they are shared out over them."""

    def __init__(self, folder: Path, requests: list[Arrays], processes: int, threads: int) -> None:
        file = folder / "requests.npz"
        packed = {f"{number} {name}": array for number, each in enumerate(requests) for name, array in each.items()}
        np.savez(file, **packed)  # type: ignore[arg-type]
        context = multiprocessing.get_context("spawn")
        self._taken = [context.Value("q", 0) for _ in range(LINES_MAX)]
        self._ends: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            words = (theirs, str(file), number * threads, threads, self._taken)
            process = context.Process(target=_serve, args=words, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def run(self, *lines: Line) -> list[Seen]:
        """Asks all of it. Raises RuntimeError with what a caller met."""
        for taken in self._taken:
            taken.value = 0
        self._tell(lines)
        for end in self._ends:
            self._hear(end)
        self._tell(time.monotonic() + HEAD_START_S)
        seen = [each for end in self._ends for each in self._hear(end)]
        assert len(seen) == sum(len(line.requests) for line in lines)
        return seen

    def close(self) -> None:
        """Ends the processes."""
        self._tell(None)
        for process in self._processes:
            process.join(TIMEOUT_S)

    def _tell(self, what: object) -> None:
        for end in self._ends:
            end.send(what)

    def _hear(self, end: Connection) -> list[Seen]:
        if not end.poll(2 * TIMEOUT_S):
            raise RuntimeError("a process of callers says nothing")
        said: list[Seen] | str = end.recv()
        if isinstance(said, str):
            raise RuntimeError(said)
        return said


def _serve(end: Connection, file: str, first: int, threads: int, taken: list[Synchronized[int]]) -> None:
    with np.load(file) as packed:
        requests: dict[int, Arrays] = {}
        for key in packed.files:
            number, _, name = key.partition(" ")
            requests.setdefault(int(number), {})[name] = packed[key]
    with ExitStack() as open_routers:
        routers: dict[str, Router] = {}
        while lines := end.recv():
            for line in lines:
                if line.registry not in routers:
                    routers[line.registry] = open_routers.enter_context(Router.connect(line.registry))
            end.send([])
            start_s = end.recv()
            end.send(_ask_all(lines, routers, requests, first, threads, taken, start_s))


def _ask_all(
    lines: tuple[Line, ...], routers: dict[str, Router], requests: dict[int, Arrays], first: int, threads: int,
    taken: list[Synchronized[int]], start_s: float,
) -> list[Seen] | str:  # fmt: skip
    seen: list[Seen] = []
    failures: list[str] = []

    def call(number: int) -> None:
        line = lines[number % len(lines)]
        router, counter = routers[line.registry], taken[number % len(lines)]
        time.sleep(max(0.0, start_s - time.monotonic()))
        try:
            while not failures:
                with counter.get_lock():
                    at, counter.value = counter.value, counter.value + 1
                if at >= len(line.requests):
                    return
                request = line.requests[at]
                began_s = time.monotonic()
                with router.infer(line.model, requests[request], timeout_s=TIMEOUT_S) as reply:
                    ended_s, trace = time.monotonic(), reply.trace
                    check = check_of(dict(reply.items()))
                seen.append(Seen(request, began_s, ended_s, trace.compute_ms, trace.attempts, check))
        except Exception as error:  # noqa: BLE001 - told by whoever asked for the round
            failures.append(repr(error))

    callers = [threading.Thread(target=call, args=(first + number,)) for number in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return failures[0] if failures else seen
