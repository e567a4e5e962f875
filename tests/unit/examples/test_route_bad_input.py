"""Bad input: a status for the pair that has the fault, the right answer for its neighbours, never a crash."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.dispatch.route_plan import Batch, Option, Options, Order, Pair, Rider, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task, build_batch
from examples.dispatch.route_plan.layout import INT32_MAX
from tests.unit.examples.conftest import make_task
from tests.unit.examples.route_reference import sequences

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
    assert (answer.stops[1] == 255).all()
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
    assert (answer.stops[0] != 255).sum() == sum(
        1 if order.on_board else 2 for order in (*tasks[0].hand, *tasks[0].new)
    )


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
        "from tests.unit.examples import test_route_bad_input as bad\n"
        "from tests.unit.examples import test_route_contract as good\n"
        "bad.test_noise_never_crashes()\n"
        "good.test_every_answer_is_a_valid_route_with_its_true_cost()\n"
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
    got = solve_batch(Batch.from_tensors({**batch.tensors(), "orders": wide[:, ::2]}))
    assert got.cost.tolist() == solve_batch(batch).cost.tolist()
