"""Who asks for what, of which workers: the workloads of the simulator, and the traces that a seed makes of them.

A trace is drawn before a run and is the same for every policy, so that two policies meet the same requests at the same
instants with the same slow spells. This module simulates nothing. Read `router/simulator/world.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Spells = tuple[float, ...]
    """Seconds at which a worker turns slow, turns usual, turns slow, ..."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One world. Times of work are milliseconds on a worker of speed 1, lognormal."""

    name: str
    speeds: tuple[float, ...]
    """Of each worker."""
    demand: tuple[float, ...]
    """Of each router, in shares of any unit."""
    load: float
    """Work that arrives, as a share of what all workers can do, slow spells counted."""
    work_mean_ms: float = 20.0
    work_sd_ms: float = 20.0
    hint_error: float | None = 0.3
    """Standard deviation of the caller's guess over the truth; None: callers give no hints."""
    slow_share: float = 0.0
    """Part of the time in which a worker is slow."""
    slow_for_s: float = 2.0
    slow_factor: float = 1 / 3
    near_s: float = 0.0001
    """One way to a worker of the router's own host."""
    far_s: float = 0.0001
    """One way to any other."""
    per_host: int = 0
    """Workers on each router's host; 0: no worker is near to anybody."""
    batch_max: int = 1
    """Requests that a worker runs together."""
    batch_saves: float = 0.0
    """Part of a run that a batch pays once, for its largest request, instead of for each."""
    stalled_share: float = 0.0
    """Requests that take `stalled_factor` times as long where they run first (a hiccup of that worker)."""
    stalled_factor: float = 10.0
    requests: int = 80_000
    warm_up: int = 20_000

    @property
    def capacity(self) -> float:
        """What all workers do in a millisecond, in milliseconds of a worker of speed 1."""
        return sum(self.speeds) * (1.0 - self.slow_share * (1.0 - self.slow_factor))

    def near(self, router: int) -> tuple[int, ...]:
        """The workers on the router's own host."""
        return tuple(range(router * self.per_host, (router + 1) * self.per_host))

    def reach_s(self, router: int) -> tuple[float, ...]:
        """One way from a router to each worker."""
        near = set(self.near(router))
        return tuple(self.near_s if worker in near else self.far_s for worker in range(len(self.speeds)))


W_GPU = Workload(
    name="W-GPU",
    speeds=(1.0,) * 20 + (0.5,) * 15 + (2.0,) * 15,
    demand=(1.0,) * 16,
    load=0.9,
    slow_share=0.1,
)
"""Fifty workers of three card generations, each slow now and then, sixteen routers that do not know of each other."""

W_LOCAL = Workload(
    name="W-LOCAL",
    speeds=(1.0,) * 32,
    demand=(3.0,) + (1.0,) * 7,
    load=0.85,
    near_s=0.00001,
    per_host=4,
)
"""Eight hosts of four workers with a router each; one host is asked three times as much as the others."""

WORKLOADS = {"w-gpu": W_GPU, "w-local": W_LOCAL}


def workload(name: str, **changes: float | None) -> Workload:
    """The workload of this name, with fields changed. Raises ConfigError for a name that is none."""
    found = WORKLOADS.get(name)
    if found is None:
        raise ConfigError(f"there is no workload {name!r}; take one of {', '.join(WORKLOADS)}")
    return replace(found, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that chance decides, drawn before the run: `at_s`, `router`, `work_ms`, `hint_ms` and `stalled` of
    each request, and the slow spells of each worker."""

    at_s: list[float]
    router: list[int]
    work_ms: list[float]
    hint_ms: list[float]
    stalled: list[float]
    spells: tuple[Spells, ...]


def draw(world: Workload, seed: int) -> Trace:
    """Draws the trace of a seed."""
    rng = np.random.default_rng(seed)
    count = world.requests
    gap_s = world.work_mean_ms / 1000.0 / (world.load * world.capacity)
    at_s = np.cumsum(rng.exponential(gap_s, count))
    share = np.asarray(world.demand) / sum(world.demand)
    router = rng.choice(len(share), count, p=share)
    work_ms = _lognormal(rng, world.work_mean_ms, world.work_sd_ms, count)
    noise = _lognormal(rng, 1.0, world.hint_error, count) if world.hint_error else np.ones(count)
    hint_ms = np.zeros(count) if world.hint_error is None else work_ms * noise
    stalled = np.where(rng.random(count) < world.stalled_share, world.stalled_factor, 1.0)
    end_s = float(at_s[-1]) * 1.5 + 60.0
    spells = tuple(_spells(rng, world, end_s) for _ in world.speeds)
    return Trace(at_s.tolist(), router.tolist(), work_ms.tolist(), hint_ms.tolist(), stalled.tolist(), spells)


def _lognormal(rng: np.random.Generator, mean: float, sd: float, count: int) -> Floats:
    """Lognormal with this mean and standard deviation, not those of its logarithm."""
    if sd <= 0.0:
        return np.full(count, mean)
    variance = log(1.0 + (sd / mean) ** 2)
    return rng.lognormal(log(mean) - variance / 2.0, sqrt(variance), count)


def _spells(rng: np.random.Generator, world: Workload, end_s: float) -> Spells:
    """Spells of `slow_for_s` with exponential gaps, from a moment that is as likely slow as any."""
    if not world.slow_share:
        return ()
    gap_s = world.slow_for_s * (1.0 - world.slow_share) / world.slow_share
    edges: list[float] = []
    begun_s, due_s = float(rng.uniform(0.0, world.slow_for_s)), float(rng.exponential(gap_s))
    at_s = -begun_s if rng.random() < world.slow_share else due_s
    while at_s < end_s:
        edges += (at_s, at_s + world.slow_for_s)
        at_s += world.slow_for_s + float(rng.exponential(gap_s))
    return tuple(edges)
