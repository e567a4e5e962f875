"""The simulated world by itself: what a node does is exact, and a seed is a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.policies.base import Quiet, Task
from router.simulator.compare import compare, simulate
from router.simulator.measure import figures
from router.simulator.node import Node
from router.simulator.report import as_html, as_text
from router.simulator.workload import W_GPU, W_LOCAL, Trace, Workload, draw
from router.simulator.world import World

ONE = Workload("one", speeds=(1.0,), demand=(1.0,), load=0.5, hint_error=None, far_s=0.001, requests=3, warm_up=0)
SMALL = replace(W_GPU, requests=1500, warm_up=300)


class To(Quiet):
    """Sends to the same workers each time."""

    def __init__(self, *workers: int) -> None:
        self.workers = workers

    def choose(self, task: Task, reports: object, now: float) -> tuple[int, ...]:
        return self.workers


def run(world: Workload, at_s: list[float], work_ms: list[float], *to: int, spells: tuple[float, ...] = ()) -> World:
    count = len(at_s)
    trace = Trace(at_s, [0] * count, work_ms, [0.0] * count, [1.0] * count, tuple(spells for _ in world.speeds))
    made = World(replace(world, requests=count), trace, 0.0, lambda nodes: [To(*to)])
    made.run()
    return made


def took_ms(world: World) -> list[float]:
    return [(task.done_s - task.arrived_s) * 1000.0 for task in world.tasks]


def test_requests_wait_for_each_other_and_for_the_way() -> None:
    assert took_ms(run(ONE, [0.0, 0.001, 0.1], [10.0, 10.0, 5.0], 0)) == pytest.approx([12.0, 21.0, 7.0])


def test_a_slow_spell_slows_what_falls_into_it() -> None:
    world = replace(ONE, slow_factor=0.5)
    # Arrives at 1 ms; from 6 ms on it runs at half the pace: 5 ms of work are left, and take 10.
    assert took_ms(run(world, [0.0], [10.0], 0, spells=(0.006, 1.0))) == pytest.approx([17.0])


def test_a_batch_pays_once_what_it_saves() -> None:
    world = replace(ONE, batch_max=4, batch_saves=0.5)
    made = run(world, [0.0, 0.001, 0.002, 0.003], [10.0] * 4, 0)
    # The first runs alone; the other three together: half of 30 and half of the largest.
    assert took_ms(made) == pytest.approx([12.0, 31.0, 30.0, 29.0])


def test_a_tied_request_is_run_by_the_first_that_is_free_and_withdrawn_by_the_other() -> None:
    world = replace(ONE, speeds=(1.0, 1.0))
    made = World(
        replace(world, requests=2),
        Trace([0.0, 0.001], [0, 0], [50.0, 10.0], [0.0] * 2, [1.0] * 2, ((), ())),
        0.0,
        lambda nodes: [Turns((0,), (0, 1))],
    )
    made.run()
    assert (made.tasks[1].worker, made.wasted) == (1, 0)
    assert took_ms(made)[1] == pytest.approx(12.0)
    assert made.nodes[0].waiting == 0


def test_a_tied_request_that_both_begin_at_once_runs_twice_and_is_counted() -> None:
    made = run(replace(ONE, speeds=(1.0, 1.0)), [0.0, 1.0], [10.0, 10.0], 0, 1)
    assert made.wasted == 2
    assert took_ms(made) == pytest.approx([12.0, 12.0])


class Turns(Quiet):
    def __init__(self, *turns: tuple[int, ...]) -> None:
        self.turns = list(turns)

    def choose(self, task: Task, reports: object, now: float) -> tuple[int, ...]:
        return self.turns.pop(0)


def test_true_work_left_is_what_remains_through_spells() -> None:
    node = Node(0, replace(ONE, slow_factor=0.5), (0.010, 1.0))
    node.take(Task(0, 0, 0.0, 20.0, 0.0), 0.0)
    ends_s = node.begin(0.0)
    assert ends_s == pytest.approx(0.030)
    assert node.left_ms(0.0) == pytest.approx(20.0)
    assert node.left_ms(0.020) == pytest.approx(5.0)
    assert node.pace(0.020) == 0.5
    assert node.free_at_s(0.020) == pytest.approx(0.030)


def test_a_node_learns_its_pace_from_what_it_ran_and_tells_work_by_it() -> None:
    node, now = Node(0, replace(ONE, hint_error=0.1, slow_factor=0.25), (0.0, 100.0)), 0.0
    for number in range(30):
        node.take(Task(number, 0, now, 10.0, 10.0), now)
        now = node.begin(now) or 0.0
        node.end(now)
    assert node.rate == pytest.approx(4.0, rel=0.01), "a quarter of the pace: four milliseconds for each hinted one"
    node.take(Task(99, 0, now, 10.0, 10.0), now)
    assert node.report(0, now).work_ms == pytest.approx(40.0, rel=0.01)


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    for policy in ("peak-ewma", "prequal", "ours"):
        assert figures(simulate(SMALL, policy, 3)) == figures(simulate(SMALL, policy, 3))
    assert figures(simulate(SMALL, "ours", 3)) != figures(simulate(SMALL, "ours", 4))


def test_a_trace_has_the_load_it_was_asked_for() -> None:
    trace = draw(replace(W_GPU, requests=40_000), 1)
    offered = sum(trace.work_ms) / 1000.0 / trace.at_s[-1]
    assert offered / W_GPU.capacity == pytest.approx(0.9, rel=0.03)
    spells = [pair for worker in trace.spells for pair in _pairs(worker) if pair[0] < 16.0]
    slow_s = sum(min(end, 16.0) - max(begin, 0.0) for begin, end in spells)
    assert slow_s / 16.0 / 50 == pytest.approx(0.1, abs=0.05)


def _pairs(spells: tuple[float, ...]) -> list[tuple[float, float]]:
    return list(zip(spells[::2], spells[1::2], strict=True))


def test_a_comparison_is_told_as_a_table_and_as_a_page_that_loads_nothing() -> None:
    cells = compare(replace(W_LOCAL, requests=600, warm_up=100), ("ours", "oracle"), (0.5, 0.8), (1, 2))
    assert [(cell.policy, cell.load, len(cell.p99_ms)) for cell in cells] == [
        ("ours", 0.5, 2), ("ours", 0.8, 2), ("oracle", 0.5, 2), ("oracle", 0.8, 2),
    ]  # fmt: skip
    text, page = as_text("T", cells), as_html("T", "overspill simulate", cells)
    assert "1.00" in text
    assert "<svg" in page
    assert "http" not in page


def test_pulled_requests_are_bound_when_they_begin_and_never_run_twice() -> None:
    world = replace(SMALL, load=0.9)
    run = simulate(world, "pulled", 1)
    assert all(task.done_s > task.began_s >= task.sent_s >= task.arrived_s for task in run.tasks)
    assert run.wasted == 0
    assert max(task.began_s - task.sent_s for task in run.tasks) <= world.far_s * 1.001, "nothing waits at a worker"
    assert simulate(world, "pulled", 1).tasks[-1].done_s == run.tasks[-1].done_s
    blind = simulate(replace(world, hint_error=None), "pulled", 1)
    assert figures(blind).p99_ms < figures(simulate(replace(world, hint_error=None), "prequal", 1)).p99_ms


def test_a_worker_pulls_first_what_it_can_answer_in_time() -> None:
    run = simulate(replace(SMALL, load=1.2, requests=5000), "pulled", 1)
    late = [task for task in run.tasks if task.sent_s - task.arrived_s > 0.15]
    soon = [task for task in run.tasks if task.sent_s - task.arrived_s < 0.08]
    assert late, "more came than the fleet can do"
    assert len(soon) > 0.8 * len(run.tasks), "few are late, where a row would make all of them so"
