"""What a run came to: latencies, who did the work, what it cost in messages; and how several seeds of it agree.

Requests of the warm-up are left out. This module runs nothing. Read `router/simulator/compare.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.simulator.world import World

HERD_WINDOW_S = 0.1
"""Work that was sent is compared over windows of this length."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or the mean of several. Times are milliseconds."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    far_share: float
    """Requests that ran on another host than their router's."""
    messages: float
    """Load reads and probes for each request."""
    twice_share: float
    """Requests that ran at two workers, though one would do."""
    busiest: float
    """Busy time of the busiest twentieth of the workers over the mean."""
    herd: float
    """99th percentile, over windows, of the work sent to one worker over the mean of all, speed for speed."""


def figures(run: World) -> Figures:
    """The figures of one run."""
    world = run.world
    counted = run.tasks[world.warm_up :]
    took_ms = np.array([(task.done_s - task.arrived_s) * 1000.0 for task in counted])
    p50, p90, p99, p999 = (float(np.percentile(took_ms, at)) for at in (50, 90, 99, 99.9))
    near = [frozenset(world.near(router)) for router in range(len(world.demand))]
    busy = sorted((node.busy_s for node in run.nodes), reverse=True)
    top = max(1, len(busy) // 20)
    return Figures(
        mean_ms=float(took_ms.mean()),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p999_ms=p999,
        far_share=sum(task.worker not in near[task.router] for task in counted) / len(counted),
        messages=(run.reads + run.probes) / world.requests,
        twice_share=run.wasted / world.requests,
        busiest=(sum(busy[:top]) / top) / (sum(busy) / len(busy)),
        herd=_herd(run),
    )


def _herd(run: World) -> float:
    """Work sent to each worker in each window, over its speed; the largest of them over their mean."""
    counted = run.tasks[run.world.warm_up :]
    sent_s = np.array([task.sent_s for task in counted])
    worker = np.array([task.worker for task in counted])
    speeds = np.asarray(run.world.speeds)
    took_ms = np.array([task.work_ms for task in counted]) / speeds[worker]
    window = ((sent_s - sent_s.min()) / HERD_WINDOW_S).astype(int)
    table = np.zeros((window.max() + 1, len(speeds)))
    np.add.at(table, (window, worker), took_ms)
    means = table.mean(axis=1)
    full = means > 0.0
    return float(np.percentile(table[full].max(axis=1) / means[full], 99))


def mean_of(runs: Sequence[Figures]) -> Figures:
    """The mean of each figure over the seeds."""
    return Figures(*(float(np.mean([getattr(run, field.name) for run in runs])) for field in fields(Figures)))
