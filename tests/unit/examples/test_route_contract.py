"""What a caller may rely on: true costs, the same answer in any batch, and a status for every kind of bad input."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.dispatch.route_plan import Answer, Batch, Options, Pair, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import Task, build_batch
from tests.unit.examples.conftest import make_task
from tests.unit.examples.route_reference import World

SOLVERS = [Solver.INSERT, Solver.TWO_STAGE, Solver.EXACT, Solver.AUTO]


def stops_of(answer: Answer, row: int) -> tuple[int, ...]:
    return tuple(int(stop) for stop in answer.stops[row] if stop != 255)


def same(first: Answer, second: Answer) -> bool:
    return all(np.array_equal(a, second.tensors()[name]) for name, a in first.tensors().items())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    hand=st.integers(0, 7),
    new=st.integers(0, 2),
    solver=st.sampled_from(SOLVERS),
    hard=st.booleans(),
)
def test_every_answer_is_a_valid_route_with_its_true_cost(
    seed: int, hand: int, new: int, solver: Solver, hard: bool
) -> None:
    task = make_task(random.Random(seed), hand, new)
    options = Options(solver=solver, starts=6, nodes_max=20_000, hard_tw=hard)
    answer = solve_batch(build_batch([task], options))
    world = World(task, options)
    if answer.status[0] != Status.OK:
        assert answer.status[0] == Status.INFEASIBLE
        assert stops_of(answer, 0) == ()
        return
    sequence = stops_of(answer, 0)
    wanted = [
        stop for i, order in enumerate(world.orders) for stop in ((2 * i + 1,) * (not order.on_board) + (2 * i + 2,))
    ]
    assert sorted(sequence) == wanted
    assert all(sequence.index(stop) < sequence.index(stop + 1) for stop in wanted if stop % 2)
    outcome = world.evaluate(sequence)
    assert outcome.feasible
    assert int(answer.cost[0]) == outcome.cost
    assert tuple(answer.arrivals[0][: len(world.orders)]) == outcome.arrivals
    assert (answer.arrivals[0][len(world.orders) :] == -1).all()
    assert (int(answer.late_sum[0]), int(answer.late_max[0])) == (sum(outcome.late), max(outcome.late, default=0))
    alone = solve_batch(build_batch([replace(task, new=())], options))
    assert int(alone.status[0]) == Status.OK
    assert int(answer.marginal[0]) == int(answer.cost[0]) - int(alone.cost[0])
    before = World(replace(task, new=()), options).evaluate(stops_of(alone, 0))
    assert int(answer.delta_metres[0]) == outcome.metres - before.metres


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), hand=st.integers(0, 4))
def test_an_order_more_never_costs_less_where_nobody_waits(seed: int, hand: int) -> None:
    # Euclidean metres rounded up obey the triangle inequality, and so do seconds at 60 metres a minute.
    task = make_task(random.Random(seed), hand, 1)
    held, new = (tuple(replace(order, ready=0) for order in orders) for orders in (task.hand, task.new))
    task = replace(task, rider=replace(task.rider, speed=60), hand=held, new=new)
    answer = solve_batch(build_batch([task], Options(solver=Solver.EXACT, wait_cost=0, detour_permille=1000)))
    if answer.status[0] == Status.OK:
        assert answer.marginal[0] >= 0


def mixed_tasks(count: int) -> list[Task]:
    rng = random.Random(99)
    return [make_task(rng, rng.randrange(7), rng.randrange(1, 3)) for _ in range(count)]


@pytest.mark.parametrize("solver", SOLVERS)
def test_answers_do_not_depend_on_the_batch(solver: Solver) -> None:
    tasks, options = mixed_tasks(40), Options(solver=solver, starts=8, seed=5, nodes_max=5000)
    whole = solve_batch(build_batch(tasks, options))
    order = random.Random(1).sample(range(40), 40)
    shuffled = solve_batch(build_batch([tasks[k] for k in order], options))
    for name, array in whole.tensors().items():
        assert np.array_equal(array[order], shuffled.tensors()[name]), name
    parts = [solve_batch(build_batch(tasks[k : k + 7], options)) for k in range(0, 40, 7)]
    for name, array in whole.tensors().items():
        assert np.array_equal(array, np.concatenate([part.tensors()[name] for part in parts])), name


def test_riders_shared_by_pairs_answer_as_if_each_were_alone() -> None:
    rng = random.Random(4)
    tasks = []
    for _ in range(5):
        base = make_task(rng, 4, 1)
        tasks += [replace(base, new=make_task(rng, 0, 1).new, number=k) for k in range(6)]
    alone = build_batch(tasks, Options(starts=8))
    shared = alone.tensors()
    first_rows = np.repeat(np.arange(0, 30, 6), 6).astype(np.int32)  # all six pairs refer to their first rider's row
    for order in (np.arange(30), np.random.default_rng(3).permutation(30)):
        pairs = alone.pairs.copy()
        pairs[:, Pair.RIDER] = first_rows
        got = solve_batch(Batch.from_tensors({**shared, "pairs": pairs[order]}))
        wanted = solve_batch(alone)
        for name, array in wanted.tensors().items():
            assert np.array_equal(array[order], got.tensors()[name]), name


def test_matrix_mode_equals_coord_mode() -> None:
    tasks, by_matrix = mixed_tasks(30), []
    options = Options(starts=8)
    for task in tasks:
        world = World(task, options)
        stops = [*range(2 * len(world.orders) + 1), *(["end"] if world.has_end else [])]
        legs = np.array([[world.leg(a, b) for b in stops] for a in stops], np.int32)
        by_matrix.append(replace(task, seconds=legs[:, :, 0], metres=legs[:, :, 1]))
    assert same(solve_batch(build_batch(tasks, options)), solve_batch(build_batch(by_matrix, options)))


def test_read_only_tensors_are_welcome_and_left_alone() -> None:
    batch = build_batch(mixed_tasks(5), Options(starts=4))
    tensors = {name: array.copy() for name, array in batch.tensors().items()}
    for array in tensors.values():
        array.flags.writeable = False
    assert same(solve_batch(Batch.from_tensors(tensors)), solve_batch(batch))


def test_more_starts_never_end_worse() -> None:
    tasks = mixed_tasks(30)
    costs = [solve_batch(build_batch(tasks, Options(solver=Solver.TWO_STAGE, starts=s))).cost for s in (1, 4, 16, 64)]
    assert all((later <= earlier).all() for earlier, later in pairwise(costs))


def test_other_seeds_shuffle_otherwise() -> None:
    from examples.dispatch.route_plan.starts import shuffle

    def drawn(seed: int, task: int, start: int) -> list[int]:
        order = np.arange(12)
        shuffle(order, 12, seed, task, start)
        return order.tolist()

    def plain(seed: int, task: int, start: int) -> list[int]:
        def mix(z: int) -> int:
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            return z ^ (z >> 31)

        state = mix((mix((mix(seed) + task) % 2**64) + start) % 2**64)
        order = list(range(12))
        for k in range(11, 0, -1):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            other = (mix(state) >> 33) % (k + 1)
            order[k], order[other] = order[other], order[k]
        return order

    draws = [(1, 2, 4), (1, 2, 5), (1, 3, 4), (2, 2, 4), (2**63 - 1, 2**31 - 1, 63)]
    assert [drawn(*draw) for draw in draws] == [plain(*draw) for draw in draws]
    assert len({tuple(drawn(*draw)) for draw in draws}) == len(draws)


def test_kernels_are_kept_where_a_folder_can_be_written_and_only_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from examples.dispatch.route_plan import jit

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = jit.cache_folder.__wrapped__()
    assert Path(folder).parent == tmp_path / "overspill-route-plan"
    assert list(Path(folder).iterdir()) == []
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/no/such")
    assert jit.cache_folder.__wrapped__() == ""
    monkeypatch.setattr(jit, "cache_folder", lambda: "")

    def double(number: int) -> int:
        return 2 * number

    assert jit.jit(double)(21) == 42
