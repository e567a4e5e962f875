"""What is pure about planning on a GPU: which rows go together, how much memory, where bytes lie."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.city.rounds import with_matrices
from examples.dispatch.route_plan import Batch, Options, Pair, Solver
from examples.dispatch.route_plan.gpu import cuda, geometry, packing, source
from examples.dispatch.route_plan.gpu.source import FILES, HEAD, Flag, program
from examples.dispatch.route_plan.layout import ORDERS_MAX
from examples.dispatch.route_plan.planner import CpuPlanner, planner_for

SHARED_BYTES = 227 * 1024  # what one block may have on compute capability 9.0


@pytest.fixture(scope="module")
def batch() -> Batch:
    return city_round(CityPlan(seed=1, orders=30, riders=90, near=8, options=Options(starts=2))).batch


def test_every_row_is_launched_once_with_room_for_its_orders() -> None:
    rng = np.random.default_rng(3)
    orders = rng.integers(0, ORDERS_MAX + 1, 1000).astype(np.uint8)
    rows = rng.permutation(5000)[:1000].astype(np.int32)
    work = geometry.work_for(rows, orders, geometry.NARROW, Flag.HANDS, 5)
    assert sorted(work.rows.tolist()) == sorted(rows.tolist())
    size_of = dict(zip(rows.tolist(), orders.tolist(), strict=True))
    place = 0
    for launch in work.launches:
        assert launch.first == place
        place = launch.last
        sizes = [size_of[row] for row in work.rows[launch.first : launch.last].tolist()]
        assert max(sizes) <= launch.orders
        assert launch.blocks * launch.warps >= len(sizes) > (launch.blocks - 1) * launch.warps
        assert (Flag.EXACT in launch.flags) == (min(sizes) <= 5)
    assert place == 1000
    assert [launch.orders for launch in work.launches] == sorted(geometry.SIZES, reverse=True)


def test_no_rows_make_no_launches() -> None:
    empty = np.zeros(0, np.int32)
    assert geometry.work_for(empty, empty.astype(np.uint8), geometry.WIDE, Flag(0), -1).launches == ()


def test_a_warp_of_any_task_fits_a_block() -> None:
    for worth in (geometry.NARROW, geometry.WIDE, geometry.HARD):
        for orders in range(1, ORDERS_MAX + 1):
            assert geometry.task_bytes(orders, worth, Flag.EXACT) <= SHARED_BYTES
    # Ten orders with 32-bit costs: sixteen such warps share a multiprocessor.
    assert 16 * geometry.task_bytes(10, geometry.NARROW, Flag(0)) <= SHARED_BYTES


def test_sizes_are_bounds_whatever_the_tables_say(batch: Batch) -> None:
    pairs = batch.pairs.copy()
    pairs[0, Pair.RIDER], pairs[1, Pair.RIDER], pairs[2, Pair.SECOND] = -1, 2**31 - 1, -7
    start = batch.hand_start.copy()
    start[5:8] = -(2**31), 2**31 - 1, 0
    wild = replace(batch, pairs=pairs, hand_start=start)
    orders = geometry.orders_of_pairs(wild)
    assert orders[:2].tolist() == [1, 1]
    assert orders.max() <= ORDERS_MAX
    assert set(geometry.riders_of(wild, np.arange(2, dtype=np.int32)).tolist()) == set()
    everything = np.arange(len(pairs), dtype=np.int32)
    assert geometry.riders_of(batch, everything).tolist() == np.unique(batch.pairs[:, Pair.RIDER]).tolist()


def test_lean_memory_and_searches_are_for_those_who_need_them(batch: Batch) -> None:
    insert = replace(batch, options=Options(solver=Solver.INSERT).tensor())
    assert geometry.pair_flags(insert) == Flag.LEAN
    assert geometry.pair_flags(batch) == Flag(0)
    assert geometry.pair_flags(with_matrices(insert)) == Flag(0)
    assert geometry.exact_orders(insert) == -1
    assert geometry.exact_orders(batch) == 5
    assert geometry.exact_orders(with_matrices(batch)) == 7


@pytest.mark.parametrize("direct_bytes", [1 << 20, 512])
def test_sections_lie_apart_and_are_all_there(batch: Batch, direct_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "DIRECT_BYTES", direct_bytes)
    plan = packing.plan_of(batch)
    sections = sorted(
        (plan.head, plan.rows, *plan.inputs, plan.hands, plan.hand_routes, *plan.outputs), key=lambda s: (s.at, s.end)
    )
    for section, following in pairwise(sections):
        assert section.at % packing.ALIGN_BYTES == 0
        assert section.end <= following.at
    assert sections[-1].end == plan.size == plan.reply.end
    for section, tensor in zip(plan.inputs, batch.tensors().values(), strict=True):
        assert section.size == tensor.nbytes
        assert packing.is_direct(tensor) == (section.at >= plan.staged.size) or section.size == 0


def test_the_staged_block_holds_addresses_and_tensors(batch: Batch) -> None:
    plan = packing.plan_of(batch)
    block = np.zeros(plan.size, np.uint8)
    packing.stage(plan, batch, 1 << 40, block)
    words = block[: plan.head.size].view(np.int64)
    by_name = dict(zip(HEAD, words.tolist(), strict=True))
    assert by_name["riders_len"] == len(batch.riders)
    at = by_name["pairs"] - (1 << 40)
    assert block[at : at + batch.pairs.nbytes].view(np.int32).tolist() == batch.pairs.ravel().tolist()
    answer = packing.answer_of(plan, len(batch.pairs), block[plan.reply.at : plan.reply.end])
    assert len(answer.status) == len(batch.pairs)


def test_the_text_is_whole() -> None:
    text = program()
    assert text.count('extern "C" __global__') == 1
    assert "static const int ORDERS_MAX = 16;" in text
    folder = Path(source.__file__).parent
    assert sorted(FILES) == sorted(path.name for path in folder.glob("*.cu"))
    assert all((folder / name).read_text(encoding="utf-8") in text for name in FILES)


def test_without_cupy_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(cuda.GpuMissing, match="pip install cupy-cuda13x"):
        cuda.open_engine()
    with pytest.raises(cuda.GpuMissing, match="CuPy"):
        planner_for("gpu")
    assert isinstance(planner_for("auto"), CpuPlanner)


def test_a_device_is_one_of_three_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='"auto", "cpu" or "gpu"'):
        planner_for("cuda")
    assert isinstance(planner_for("cpu"), CpuPlanner)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert isinstance(planner_for("auto"), CpuPlanner)
