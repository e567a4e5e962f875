"""All policies by name, in the order of a report: what each is called, what it reads, and how it is made.

Read `router/simulator/compare.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from router.policies.base import Quiet
from router.policies.c3 import C3
from router.policies.oracle import Clairvoyant, Greedy, OnTheWay
from router.policies.plain import LeastLoaded, PeakEwma, PickTwo, Random, RoundRobin, Weighted
from router.policies.polled import SNAPSHOT_S, Polled, Snapshot, count, count_over_measured, count_over_speed, work
from router.policies.prequal import Prequal
from router.policies.priced import Priced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policies.base import Policy, Report, Setting, Task

READS = 5
"""Load reads of one request, at most, where the workload does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the routers of one run share: oracles have one memory."""

    way: OnTheWay


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy. `snapshot_s`: how often it is shown all workers; 0 for never. `pulled`: requests wait at their
    routers until a worker asks for one, so the policy chooses nothing."""

    name: str
    title: str
    make: Callable[[Setting, Shared], Policy]
    snapshot_s: float = 0.0
    pulled: bool = False


def _plain(kind: Callable[[Setting], Policy]) -> Callable[[Setting, Shared], Policy]:
    return lambda setting, shared: kind(setting)


def _ours(setting: Setting, shared: Shared, *, reads: int, tied: bool, hedge_ratio: float = 0.0) -> Policy:
    return Priced(setting, reads=reads, tied=tied, hedge_ratio=hedge_ratio)


class Waiting(Quiet):
    """Chooses nobody: workers ask for what waits."""

    def __init__(self, _: Setting) -> None:
        pass

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Never asked."""
        raise NotImplementedError


ENTRIES = (
    Entry("random", "random", _plain(Random)),
    Entry("round-robin", "round robin for each router", _plain(RoundRobin)),
    Entry("weighted", "round robin weighted by nominal speed", _plain(Weighted)),
    Entry("least-loaded", "least loaded, own in flight", _plain(LeastLoaded)),
    Entry("p2c", "two at random, own in flight", _plain(PickTwo)),
    Entry("peak-ewma", "two at random, peak EWMA (Finagle, Linkerd, tower)", _plain(PeakEwma)),
    Entry("jsq", "shortest queue of a 100 ms snapshot", _plain(Snapshot), SNAPSHOT_S),
    Entry("jsq-own", "the same, own dispatches added", _plain(partial(Snapshot, own=True)), SNAPSHOT_S),
    Entry("polled-count", "two polled, request count (Meta)", _plain(partial(Polled, reads=2, cost=count))),
    Entry(
        "polled-speed", "two polled, count over nominal speed", _plain(partial(Polled, reads=2, cost=count_over_speed))
    ),
    Entry("polled-work", "five polled, outstanding work", _plain(partial(Polled, reads=READS, cost=work))),
    Entry(
        "polled-5",
        "five polled, count over measured speed",
        _plain(partial(Polled, reads=READS, cost=count_over_measured)),
    ),
    Entry("c3", "C3", _plain(C3)),
    Entry("prequal", "Prequal, asynchronous", _plain(Prequal)),
    Entry("ours-reports", "ours, reports with answers only", partial(_ours, reads=0, tied=False)),
    Entry("ours-untied", "ours, reads, no ties", partial(_ours, reads=READS, tied=False)),
    Entry(
        "ours-hedged", "ours, reads, copies of late requests", partial(_ours, reads=READS, tied=False, hedge_ratio=0.05)
    ),
    Entry("ours", "ours", partial(_ours, reads=READS, tied=True)),
    Entry("pulled", "late binding: free workers ask five routers", _plain(Waiting), pulled=True),
    Entry("greedy", "greedy oracle", lambda setting, shared: Greedy(setting, shared.way)),
    Entry("oracle", "clairvoyant oracle", lambda setting, shared: Clairvoyant(setting, shared.way)),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
