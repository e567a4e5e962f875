"""Splitting a batch: how it is cut and joined, and how near to the ideal unequal workers end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.errors import InvalidArgument
from router.split import LANES_MAX, PARTS_PER_EXECUTOR, join, plan, rows_of
from tests.unit.router.town import Node, Town


@given(st.integers(1, 100_000), st.integers(0, 300), st.one_of(st.none(), st.floats(0.0, 1e6)))
def test_parts_hold_each_row_once_and_in_order(rows: int, executors: int, whole_ms: float | None) -> None:
    split = plan(rows, executors, whole_ms)
    assert [row for part in split.parts[:3] for row in range(part.start, part.stop)] == list(
        range(split.parts[:3][-1].stop)
    )
    assert split.parts[0].start == 0
    assert split.parts[-1].stop == rows
    assert all(one.stop == two.start for one, two in zip(split.parts[:-1], split.parts[1:], strict=True))
    assert all(part.stop > part.start for part in split.parts)
    assert 1 <= split.lanes <= LANES_MAX


def test_a_batch_that_takes_no_time_is_cut_into_few() -> None:
    assert len(plan(10_000, 3, 1.0).parts) == 3
    parts = plan(10_000, 3, 1000.0).parts
    assert 3 * PARTS_PER_EXECUTOR < len(parts) <= 5 * PARTS_PER_EXECUTOR
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) <= 10_000 // (3 * PARTS_PER_EXECUTOR) + 1
    assert max(sizes[-3:]) <= max(sizes) // 4, "the last ones are short, since they are waited for"
    assert len(plan(2, 3, 1000.0).parts) == 2


@pytest.mark.parametrize("known", [True, False], ids=["measured before", "never measured"])
def test_workers_of_speed_one_two_and_four_end_within_a_tenth_of_the_ideal(known: bool) -> None:
    """Parts are equal, so the ideal is their number over the speeds together."""
    town = Town(slow=Node(0.040, 0.0002, 1), middle=Node(0.020, 0.0002, 1), fast=Node(0.010, 0.0002, 1))
    if known:
        town.run(6, 200)
    # 24 parts would do where all was measured; before that, the first few parts are sent blindly.
    parts = plan(1_000_000, 3, None)
    count = 3 * PARTS_PER_EXECUTOR if known else 12 * PARTS_PER_EXECUTOR
    began_s = town.now
    served = town.run(parts.lanes, count)
    took_s = max(one.began_s + one.took_s for one in served) - began_s
    assert took_s <= (1.10 if known else 1.15) * count / (1 / 0.040 + 1 / 0.020 + 1 / 0.010)


def test_rows_come_back_in_order() -> None:
    parts = plan(10, 1, None).parts
    outputs = [{"y": np.arange(part.start, part.stop)} for part in parts]
    np.testing.assert_array_equal(join("plan", parts, outputs)["y"], np.arange(10))


def test_an_output_without_a_row_for_each_row_cannot_be_joined() -> None:
    with pytest.raises(InvalidArgument, match="use infer"):
        join("plan", (slice(0, 2), slice(2, 4)), [{"y": np.zeros(1)}, {"y": np.zeros(2)}])
    with pytest.raises(InvalidArgument, match="use infer"):
        join("plan", (slice(0, 1),), [{"y": np.float32(3)}])  # type: ignore[dict-item]


@pytest.mark.parametrize("batch", [{}, {"x": np.zeros((2, 1)), "y": np.zeros(3)}, {"x": np.zeros((0, 4))}, {"x": 3.0}])
def test_a_batch_needs_the_same_rows_in_each_input(batch: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="rows"):
        rows_of(batch)


def test_a_number_has_no_rows_which_is_not_the_same_as_none() -> None:
    with pytest.raises(InvalidArgument, match=r"\(x has no dimension, y has 0\)"):
        rows_of({"x": 3.0, "y": np.zeros(0)})


def test_eight_long_tasks_on_three_workers_end_within_a_tenth_of_the_best_makespan() -> None:
    """They need 7.8, 20.2 and 34.5 s for each: five, two and one of them end after 40.4 s, and nothing ends sooner."""
    town = Town(a=Node(7.8, 0.0002, 1), b=Node(20.2, 0.0002, 1), c=Node(34.5, 0.0002, 1))
    town.run(3, 24)
    began_s = town.now
    served = town.run(8, 8)
    assert max(one.began_s + one.took_s for one in served) - began_s <= 1.10 * 40.4
