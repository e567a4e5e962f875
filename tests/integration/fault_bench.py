"""Makes one executor die, stop or hang under a request, and measures from outside how soon that is known.

A trial takes the time from the fault (a signal that we send, or the moment that the model noted just before it left)
to the error at the caller, and to the executor's end as the kernel sees it. Read `tests/integration/test_faults.py`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import OverspillError
from tests.integration.bad_node import NodeProcess, copy_models, wait_dead, wait_until
from tests.integration.bad_ways import only

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fabric.transport import WireName
    from router.config import RouterConfig

from overspill import Router

LONG_MS = 20_000


@dataclass(frozen=True, slots=True)
class Times:
    """One trial, in milliseconds from the fault: until the caller had its error, until there was another executor that
    answered. `after_end_ms`: from the executor's end, as a thread of ours saw it, to the caller's error: what the node
    takes, without what the kernel takes to end a process and a busy machine to give both their turn."""

    told_ms: float
    after_end_ms: float
    replaced_ms: float
    error: OverspillError


def inputs(what: str, note: Path) -> dict[str, np.ndarray]:
    """What the models of `act` take."""
    return {"what": np.array([what.encode()]), "note": np.array([str(note).encode()])}


def noted(note: Path) -> list[tuple[int, float]]:
    """(pid, monotonic seconds) of each run that the model noted."""
    lines = note.read_text().splitlines() if note.exists() else []
    return [(int(pid), int(at_ns) / 1e9) for pid, at_ns in (line.split() for line in lines)]


class Asked:
    """One request in a thread, and when its outcome came."""

    def __init__(self, router: Router, model: str, what: str, note: Path, timeout_s: float) -> None:
        self.outcome: int | OverspillError | None = None
        self.attempts = 0
        self.at_s = 0.0
        self._words = (router, model, inputs(what, note), timeout_s)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        router, model, given, timeout_s = self._words
        try:
            with router.infer(model, given, timeout_s=timeout_s) as reply:
                self.attempts = reply.trace.attempts
                self.outcome = int(reply["pid"][0])
        except OverspillError as error:
            self.outcome = error
        self.at_s = time.monotonic()

    def join(self) -> int | OverspillError:
        """The outcome: the pid that answered, or the error."""
        self._thread.join(60)
        assert self.outcome is not None, "neither a reply nor an error came"
        return self.outcome


class EndWatch(threading.Thread):
    """Sees when a process ends."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self.at_s = 0.0
        self.start()

    def run(self) -> None:
        self.at_s = wait_dead(self._pid, 30.0) or 0.0


class Bench:
    """One node with one executor, and a router to it."""

    def __init__(self, folder: Path, wire: WireName | None = None, name: str = "a", devices: str = "cpu:1") -> None:
        self.folder = folder
        self._notes = 0
        if not (folder / "models").exists():
            copy_models(folder / "models", "act", "once", "limited", "hung", "double")
        self.registry = f"dir:{folder / 'registry'}"
        self.node = NodeProcess(folder, self.registry, folder / "models", name=name, devices=devices)
        self.node.wait_ready()
        config: RouterConfig | None = only(wire) if wire is not None else None
        self.router = Router.connect(self.registry, config=config)

    def note(self) -> Path:
        """A file that was not there before."""
        self._notes += 1
        return self.folder / f"note-{self._notes}"

    def ok(self, model: str = "act", timeout_s: float = 20.0) -> int:
        """A good request; the pid that answered."""
        with self.router.infer(model, inputs("ok", self.note()), timeout_s=timeout_s) as reply:
            return int(reply["pid"][0])

    def running(self, model: str, what: str, timeout_s: float = 30.0) -> tuple[Asked, int, Path]:
        """A request that runs now, and the executor that runs it."""
        note = self.note()
        asked = Asked(self.router, model, what, note, timeout_s)
        assert wait_until(lambda: bool(noted(note)) or asked.outcome is not None, 30.0, 0.001)
        assert noted(note), repr(asked.outcome)
        return asked, noted(note)[0][0], note

    def signalled(self, number: signal.Signals) -> Times:
        """A signal to the executor of a running request."""
        asked, pid, _ = self.running("once", f"sleep {LONG_MS}")
        watch = EndWatch(pid)
        time.sleep(0.02)
        began_s = time.monotonic()
        os.kill(pid, number)
        return self._settled(asked, began_s, watch)

    def left(self, what: str) -> Times:
        """A model that ends its own executor."""
        (pid,) = self.node.executors()
        watch = EndWatch(pid)
        asked, _, note = self.running("once", what)
        asked.join()
        return self._settled(asked, noted(note)[0][1], watch)

    def hung(self, timeout_s: float) -> tuple[float, float]:
        """A run without an end: milliseconds from the request's deadline to the executor's end, and to a good reply."""
        self.ok("hung")  # so that the node knows how long this model takes
        deadline_s = time.monotonic() + timeout_s
        asked, pid, _ = self.running("hung", f"sleep {LONG_MS}", timeout_s)
        dead_s = wait_dead(pid, 10.0)
        assert dead_s is not None, "the hung executor lives on"
        asked.join()
        self.ok()
        return (dead_s - deadline_s) * 1e3, (time.monotonic() - deadline_s) * 1e3

    def _settled(self, asked: Asked, began_s: float, watch: EndWatch) -> Times:
        outcome = asked.join()
        assert isinstance(outcome, OverspillError), outcome
        watch.join()
        self.ok()
        told_ms, after_end_ms = ((asked.at_s - since_s) * 1e3 for since_s in (began_s, watch.at_s))
        return Times(told_ms, after_end_ms, (time.monotonic() - began_s) * 1e3, outcome)

    def close(self) -> None:
        """Ends router and node."""
        self.router.close()
        self.node.end()


FRESH_EVERY = 3
"""Faults of one executor: from the third on its replacement is slowed down, as a crash loop must be."""


def trials(make: Callable[[], Bench], count: int) -> Iterator[Bench]:
    """A bench for each trial, with a fresh node where a slowed replacement would be measured otherwise."""
    bench = make()
    try:
        for number in range(count):
            if number and number % FRESH_EVERY == 0:
                bench.close()
                bench = make()
            yield bench
    finally:
        bench.close()


def p95(values_ms: list[float]) -> float:
    """The value that one trial in twenty passes."""
    return sorted(values_ms)[min(len(values_ms) - 1, len(values_ms) * 95 // 100)]


def row(name: str, goal_ms: float, values_ms: list[float]) -> str:
    """One line of the table."""
    figures = (median(values_ms), p95(values_ms), max(values_ms), goal_ms)
    return f"{name:<24} {len(values_ms):>4}" + "".join(f"  {figure:>8.2f}" for figure in figures)


HEAD = f"\n{'ms from the fault':<24} {'n':>4}" + "".join(f"  {word:>8}" for word in ("p50", "p95", "max", "goal"))
