"""What every routing policy of the simulator sees and may do: the same for a coin toss, for an oracle, and for ours.

A router asks its policy twice for each request: which workers to read (`wants`), and, with what was read, where the
request goes (`choose`). It tells it of every answer. A policy never sees the true work of a request before it is done:
`Task.work_ms` is there for nodes and for oracles. This module simulates nothing. Read `router/simulator/world.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


class Task:  # mutable: nodes write down what became of it
    """One request. `work_ms` is what it computes on a worker of speed 1; `hint_ms` what its caller guessed of that, 0
    for no guess. Times are seconds of the simulated clock."""

    __slots__ = (
        "arrived_s",
        "began_s",
        "begun_by",
        "copied_to",
        "copies_begun",
        "done_s",
        "hint_ms",
        "number",
        "router",
        "sent_s",
        "slot",
        "stalled",
        "tied",
        "units",
        "work_ms",
        "worker",
    )

    def __init__(self, number: int, router: int, arrived_s: float, work_ms: float, hint_ms: float) -> None:
        self.number = number
        self.router = router
        self.arrived_s = arrived_s
        self.work_ms = work_ms
        self.hint_ms = hint_ms
        self.worker = -1
        self.began_s = -1.0
        self.done_s = -1.0
        self.begun_by = -1
        self.copies_begun = 0
        self.tied: tuple[int, ...] = ()
        self.copied_to: tuple[int, ...] = ()
        self.sent_s = 0.0
        self.units = hint_ms or 1.0
        """What its router tells the worker of its size; a policy that doubts the hint may tell another figure."""
        self.stalled = 1.0
        self.slot: object = None
        """Whatever the policy that chose for it wants to find again with its answer."""

    def begun(self, worker: int, now: float) -> None:
        """A worker runs it."""
        self.copies_begun += 1
        if self.begun_by < 0:
            self.begun_by, self.began_s = worker, now


class Report(NamedTuple):  # made for each read and each answer
    """What a worker says of itself, at one moment. Work is in milliseconds of that worker, by its own estimate."""

    worker: int
    made_s: float
    """When it was made."""
    waiting: int
    """Requests queued and running."""
    work_ms: float
    """Until they are done."""
    rate: float
    """Milliseconds that one hinted millisecond takes here; without hints, what a request takes on the average."""
    latency_ms: float
    """The median of what recent requests that found as many others here took, queue included (Prequal's signal)."""
    service_ms: float
    """The mean of what a request computes here (C3's signal)."""
    accepted: int = 0
    """Requests of the reading router that were counted."""
    sequence: int = 0


class Answered(NamedTuple):  # made for each answer
    """One answer as its router sees it."""

    worker: int
    took_ms: float
    """From dispatch to answer."""
    compute_ms: float
    queue_ms: float
    report: Report
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy is made with. `nodes` is for oracles; `near` are the workers of the router's own host."""

    router: int
    routers: int
    speeds: tuple[float, ...]
    reach_s: tuple[float, ...]
    """One way to each worker."""
    near: tuple[int, ...]
    rng: Random
    hinted: bool
    nodes: Sequence[Knowable]

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self.speeds)


class Knowable(Protocol):
    """What an oracle may know of a worker."""

    def left_ms(self, now: float) -> float:
        """The true work it has still to do, on a worker of speed 1."""

    def pace(self, now: float) -> float:
        """What it truly does now, in milliseconds of a worker of speed 1 for each millisecond."""

    def free_at_s(self, now: float) -> float:
        """When all that it has been given will be done."""

    def finish_s(self, begin_s: float, work_ms: float) -> float:
        """When work that begins then will be done, through all slow spells to come."""


class Policy(Protocol):
    """One router's policy."""

    def wants(self, task: Task, now: float) -> tuple[int, ...]:
        """The workers to read before the choice. The request waits for them; empty costs nothing."""

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The workers the request goes to: one, or several that are tied (the first to begin it claims it). None to be
        asked once more what it wants to read."""

    def beside(self, task: Task) -> tuple[int, ...]:
        """The workers to read beside a request that was just sent, for `tie`."""

    def tie(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The worker, if any, that a request which has not begun is sent to as well: `beside` was read."""

    def late_s(self, task: Task) -> float | None:
        """How long after its dispatch a request that has no answer yet is asked about by `late`; None for never."""

    def look(self, task: Task, now: float) -> tuple[int, ...]:
        """The workers to read before `late` is asked."""

    def late(self, task: Task, reports: Sequence[Report], now: float) -> tuple[tuple[int, ...], float | None]:
        """The workers that get a copy of it, which is not begun there once an answer is known; and in how many seconds
        it is asked about again, None for never."""

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """An answer came."""

    def probes(self, now: float) -> tuple[int, ...]:
        """The workers to probe beside a request that was sent, for the sake of later ones."""

    def probed(self, report: Report, now: float) -> None:
        """A probe's answer, or a line of a snapshot."""


class Quiet:
    """The parts of a policy that reads nothing and learns nothing."""

    __slots__ = ()

    def wants(self, task: Task, now: float) -> tuple[int, ...]:
        """Reads nobody."""
        return ()

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """Learns nothing."""

    def beside(self, task: Task) -> tuple[int, ...]:
        """Reads nobody."""
        return ()

    def tie(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Ties nothing."""
        return ()

    def late_s(self, task: Task) -> float | None:
        """Copies nothing."""
        return None

    def look(self, task: Task, now: float) -> tuple[int, ...]:
        """Reads nobody."""
        return ()

    def late(self, task: Task, reports: Sequence[Report], now: float) -> tuple[tuple[int, ...], float | None]:
        """Never asked."""
        return (), None

    def probes(self, now: float) -> tuple[int, ...]:
        """Probes nobody."""
        return ()

    def probed(self, report: Report, now: float) -> None:
        """Forgets it."""
