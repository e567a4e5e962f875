"""What a caller may rely on: true costs, the same answer in any batch, and a status for every kind of bad input."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.dispatch.route_plan import Answer, Batch, Option, Options, Order, Pair, Rider, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task, build_batch
from examples.dispatch.route_plan.layout import INT32_MAX
from tests.unit.examples.conftest import make_task
from tests.unit.examples.route_reference import World, sequences

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


Change = Callable[[dict[str, np.ndarray]], None]


def put(name: str, place: object, value: int) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name][place] = value

    return change


# The batch has three pairs with two orders in hand and one new order each; the fault is in pair 1, with rows 3 to 5.
FAULTS: list[tuple[str, Change, Status]] = [
    ("rider row beyond the table", put("pairs", (1, Pair.RIDER), 3), Status.BAD_INDEX),
    ("rider row negative", put("pairs", (1, Pair.RIDER), -1), Status.BAD_INDEX),
    ("rider row huge", put("pairs", (1, Pair.RIDER), INT32_MAX), Status.BAD_INDEX),
    ("order row beyond the table", put("pairs", (1, Pair.FIRST), 9), Status.BAD_INDEX),
    ("order row below -1", put("pairs", (1, Pair.SECOND), -2), Status.BAD_INDEX),
    ("order row huge", put("pairs", (1, Pair.FIRST), INT32_MAX), Status.BAD_INDEX),
    ("hand row beyond the table", put("hand", 2, 9), Status.BAD_INDEX),
    ("hand row negative", put("hand", 3, -5), Status.BAD_INDEX),
    ("route with a stop twice", put("route", 5, 1), Status.BAD_ROUTE),
    ("route with a delivery first", put("route", 4, 2), Status.BAD_ROUTE),
    ("route with an unknown stop", put("route", 5, 200), Status.BAD_ROUTE),
    ("same order twice", put("pairs", (1, Pair.SECOND), 5), Status.DUPLICATE_ORDER),
    ("order held already", put("pairs", (1, Pair.FIRST), 3), Status.DUPLICATE_ORDER),
    ("negative start", put("riders", (1, Rider.START), -1), Status.BAD_VALUE),
    ("negative capacity", put("riders", (1, Rider.CAPACITY), -1), Status.BAD_VALUE),
    ("speed of nought", put("riders", (1, Rider.SPEED), 0), Status.BAD_VALUE),
    ("place off the globe", put("riders", (1, Rider.X), INT32_MAX), Status.BAD_VALUE),
    ("end flag of 2", put("riders", (1, Rider.HAS_END), 2), Status.BAD_VALUE),
    ("negative ready time", put("orders", (4, Order.READY), -1), Status.BAD_VALUE),
    ("negative due time", put("orders", (5, Order.DUE), -1), Status.BAD_VALUE),
    ("negative service", put("orders", (5, Order.DELIVERY_S), -2), Status.BAD_VALUE),
    ("negative load", put("orders", (5, Order.LOAD), -1), Status.BAD_VALUE),
    ("weight too large", put("orders", (5, Order.WEIGHT), 1001), Status.BAD_VALUE),
    ("order off the globe", put("orders", (5, Order.DELIVERY_Y), -(2**31)), Status.BAD_VALUE),
    ("board flag of 7", put("orders", (5, Order.ON_BOARD), 7), Status.BAD_VALUE),
    ("new order already on board", put("orders", (5, Order.ON_BOARD), 1), Status.BAD_VALUE),
    ("load above capacity", put("orders", (5, Order.LOAD), 1000), Status.INFEASIBLE),
    ("hand above capacity", put("riders", (1, Rider.CAPACITY), 0), Status.INFEASIBLE),
    ("times beyond int32", put("orders", (5, Order.READY), INT32_MAX), Status.OVERFLOW),
    ("service beyond int32", put("orders", (4, Order.PICKUP_S), INT32_MAX), Status.OVERFLOW),
    ("crawling over the globe", put("orders", (5, Order.PICKUP_X), 20_000_000), Status.OVERFLOW),
]


def three_pairs() -> Batch:
    rng, tasks = random.Random(21), []
    for number in range(3):
        task = make_task(rng, 2, 1)
        held = tuple(replace(order, on_board=False) for order in task.hand)
        rider = replace(task.rider, speed=1 if number == 1 else 320, end=None)
        tasks.append(replace(task, rider=rider, hand=held, route=next(sequences(list(held))), number=number))
    return build_batch(tasks, Options(solver=Solver.INSERT))


@pytest.mark.parametrize(("change", "status"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_fault_gets_its_status_and_spares_its_neighbours(change: Change, status: Status) -> None:
    good = three_pairs()
    tensors = {name: array.copy() for name, array in good.tensors().items()}
    change(tensors)
    answer, wanted = solve_batch(Batch.from_tensors(tensors)), solve_batch(good)
    assert (wanted.status == Status.OK).all()
    assert answer.status[1] == status
    assert stops_of(answer, 1) == ()
    assert (answer.arrivals[1] == -1).all()
    assert (answer.cost[1], answer.marginal[1], answer.delta_metres[1]) == (0, 0, 0)
    for row in (0, 2):
        for name, array in wanted.tensors().items():
            assert np.array_equal(array[row], answer.tensors()[name][row]), name


def test_offsets_that_run_backwards_or_beyond_are_bad_indices() -> None:
    for name in ("hand_start", "route_start"):
        for value in (-1, 100, INT32_MAX, -(2**31)):
            tensors = {key: array.copy() for key, array in three_pairs().tensors().items()}
            tensors[name][1] = value
            answer = solve_batch(Batch.from_tensors(tensors))
            assert answer.status[0] == Status.BAD_INDEX
            assert answer.status[1] == Status.BAD_INDEX
            assert answer.status[2] == Status.OK


def test_a_route_of_wrong_length_is_a_bad_route() -> None:
    tensors = {key: array.copy() for key, array in three_pairs().tensors().items()}
    tensors["route_start"][2] = 7  # where the second route ends the third begins
    assert solve_batch(Batch.from_tensors(tensors)).status.tolist() == [Status.OK, Status.BAD_ROUTE, Status.BAD_ROUTE]


def test_seventeen_orders_are_too_many_and_sixteen_are_not() -> None:
    rng = random.Random(8)
    tasks = [make_task(rng, 15, 1), make_task(rng, 15, 2), make_task(rng, 17, 0), make_task(rng, 16, 0)]
    tasks = [replace(task, rider=replace(task.rider, capacity=100)) for task in tasks]
    answer = solve_batch(build_batch(tasks, Options(starts=2)))
    assert answer.status.tolist() == [Status.OK, Status.TOO_MANY_ORDERS, Status.TOO_MANY_ORDERS, Status.OK]
    assert len(stops_of(answer, 0)) == sum(1 if order.on_board else 2 for order in (*tasks[0].hand, *tasks[0].new))


def test_matrices_of_wrong_size_or_sign_are_refused() -> None:
    square = np.full((7, 7), 60, np.int32)
    tasks = [Task(RiderRow(), (OrderRow(),) * 2, (OrderRow(),), seconds=square, metres=square) for _ in range(3)]
    good = build_batch(tasks, Options())
    wanted = solve_batch(good)
    assert (wanted.status == Status.OK).all()
    for name, place, value in (("seconds", 49, -1), ("metres", 97, -7)):
        tensors = {key: array.copy() for key, array in good.tensors().items()}
        tensors[name][place] = value
        assert solve_batch(Batch.from_tensors(tensors)).status.tolist() == [Status.OK, Status.BAD_MATRIX, Status.OK]
    for value in (-1, 48, 50, 2**62, -(2**62)):
        starts = good.matrix_start.copy()
        starts[1] = value
        answer = solve_batch(Batch.from_tensors({**good.tensors(), "matrix_start": starts}))
        assert answer.status.tolist() == [Status.BAD_MATRIX, Status.BAD_MATRIX, Status.OK]


def test_an_empty_batch_has_an_empty_answer() -> None:
    answer = solve_batch(build_batch([], Options()))
    assert {name: array.shape[0] for name, array in answer.tensors().items()} == dict.fromkeys(answer.tensors(), 0)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_noise_never_crashes(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    edges = np.array([-(2**31), -2, -1, 0, 1, 2, 3, 16, 17, 255, INT32_MAX], np.int64)

    def noise(array: np.ndarray) -> np.ndarray:
        hits = rng.random(array.shape) < data.draw(st.sampled_from([0.02, 0.2, 1.0]))
        return np.where(hits, rng.choice(edges, array.shape), array).astype(array.dtype)

    tensors = {name: noise(array) if name != "options" else array for name, array in three_pairs().tensors().items()}
    options = tensors["options"].copy()
    options[Option.SOLVER], options[Option.STARTS] = data.draw(st.integers(0, 3)), 2
    answer = solve_batch(Batch.from_tensors({**tensors, "options": options}))
    assert set(answer.status.tolist()) <= set(Status)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_noise_stays_inside_every_array(tmp_path: Path) -> None:
    # Compiled code does not check indices; with numba's own checks on, one stray access would raise IndexError.
    script = (
        "from tests.unit.examples import test_route_contract as t\n"
        "t.test_noise_never_crashes()\n"
        "t.test_every_answer_is_a_valid_route_with_its_true_cost()\n"
    )
    env = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("riders", None, "missing"),
        ("riders", np.zeros((3, 10), np.int64), "dtype"),
        ("riders", np.zeros((3, 9), np.int32), "shape"),
        ("pairs", np.zeros(12, np.int32), "shape"),
        ("hand_start", np.zeros(3, np.int32), "one entry more"),
        ("route_start", np.zeros(9, np.int32), "one entry more"),
        ("matrix_start", np.zeros(2, np.int64), "entries"),
        ("seconds", np.zeros(2, np.int32), "equal lengths"),
        ("options", np.full(11, -1, np.int64), "option solver is -1"),
        ("options", Options(starts=65).tensor(), "option starts is 65"),
        ("options", Options(late_cost=70_000).tensor(), "option late_cost"),
        ("options", Options(subset_orders_max=16).tensor(), "subset_orders_max"),
    ],
)
def test_a_malformed_request_is_refused_in_one_sentence(name: str, value: np.ndarray | None, words: str) -> None:
    tensors = three_pairs().tensors()
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    with pytest.raises(ValueError, match=words):
        Batch.from_tensors(tensors)


def test_tables_that_are_not_contiguous_are_refused_or_copied() -> None:
    batch = three_pairs()
    wide = np.zeros((len(batch.orders), 2 * len(Order)), np.int32)
    wide[:, ::2] = batch.orders
    with pytest.raises(ValueError, match="not contiguous"):
        replace(batch, orders=wide[:, ::2])
    assert same(solve_batch(Batch.from_tensors({**batch.tensors(), "orders": wide[:, ::2]})), solve_batch(batch))


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
