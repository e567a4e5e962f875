"""Many requests in the line of a model: all come out once, and those that left leave nothing behind."""

from __future__ import annotations

import random

import pytest

from tests.unit.workers.batch_scene import Scene
from workers.batchconfig import Batching, QueuePolicy
from workers.job import JobState


def test_a_hundred_thousand_that_waited_too_long_leave_nothing_behind() -> None:
    scene = Scene(Batching(4, policy=QueuePolicy(timeout_us=1000)), model_max=100_000)
    scene.desks[0].open = False
    for turn in range(100):
        now = float(turn)
        for width in range(2, 12):
            for _ in range(100):
                scene.offer(now=now, width=width)
        assert len(scene.admission.expire(now + 0.001)) == 1000
    line = scene.model.line
    assert line is not None
    assert (scene.admission.waiting, line.waiting, line._buckets, scene.admission.next_look_s()) == (0, 0, {}, None)
    scene.offer(now=1000.0)
    gone = scene.offer(now=1000.0)
    scene.admission.withdraw(gone)
    scene.admission.tidy()
    assert [len(bucket.heap) for bucket in line._buckets.values()] == [1]  # what left holds nobody's memory


@pytest.mark.parametrize("seed", range(4))
def test_all_come_out_once_in_batches_that_are_allowed_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    batching = Batching(8, preferred=(4,) if seed % 2 else (), queue_delay_max_us=rng.choice((0, 500)))
    scene = Scene(batching, executors=2)
    now, rows, out, seen = 0.0, dict[int, int](), list[list[int]](), list[int]()
    for _ in range(3000):
        now += rng.expovariate(4000)
        act = rng.random()
        if act < 0.5:
            many = rng.randint(1, 8)
            width, lasts_s = rng.choice((2, 3)), rng.choice((0.01, 10.0))
            job = scene.offer(many, now=now, width=width, lasts_s=lasts_s)
            rows[job.request_no] = many
            if job.state is JobState.HANDED_OVER:
                out.append([job.request_no])
                seen.append(job.request_no)
        elif act < 0.55 and scene.admission.waiting:
            gone = rng.choice(scene.admission.waiting_jobs())
            seen.append(gone.request_no)
            scene.admission.withdraw(gone)
        elif out:
            scene.done(out.pop(rng.randrange(len(out))), now)
        seen += [job.request_no for job in scene.admission.expire(now)]
        while batch := scene.take(now):
            assert len(batch) == 1 or sum(rows[number] for number in batch) <= 8
            out.append(batch)
            seen += batch
    now += 100.0
    seen += [job.request_no for job in scene.admission.expire(now)]
    for batch in out:
        scene.done(batch, now)
    while batch := scene.take(now):
        seen += batch
        scene.done(batch, now)
    assert sorted(seen) == sorted(rows)
    assert (scene.admission.waiting, scene.admission.outstanding_us, scene.model.waiting) == (0, 0, 0)
