"""Many routers that ask at one instant: with fresh reads, taken in turn, they do not run to one worker."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from router.policies.base import Report, Setting, Task
from router.policies.priced import Priced

ROUTERS, WORKERS = 64, 32


def at_once(reads: int, seed: int) -> int:
    """Each of 64 routers sends one request to 32 idle workers; the most that one worker gets."""
    sent: Counter[int] = Counter()
    for number in range(ROUTERS):
        setting = Setting(
            router=number,
            routers=ROUTERS,
            speeds=(1.0,) * WORKERS,
            reach_s=(0.0001,) * WORKERS,
            near=(),
            rng=Random(seed * 1000 + number),
            hinted=True,
            nodes=(),
        )
        router = Priced(setting, reads=reads, tied=False)
        task = Task(number, number, 1.0, 20.0, 20.0)
        wanted = router.wants(task, 1.0)
        assert len(wanted) == reads
        reports = [Report(worker, 1.0, sent[worker], 20.0 * sent[worker], 1.0, 20.0, 20.0, 0, 1) for worker in wanted]
        (chosen,) = router.choose(task, reports, 1.0)
        sent[chosen] += 1
    return max(sent.values())


@pytest.mark.parametrize(("reads", "most"), [(2, 4), (5, 3)])
def test_fresh_reads_in_turn_leave_no_worker_with_many(reads: int, most: int) -> None:
    assert max(at_once(reads, seed) for seed in range(5)) <= most
