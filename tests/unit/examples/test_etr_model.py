"""The shipped networks: every way of running them agrees, and company in the batch changes no answer.

1e-3 minutes between implementations and 1e-4 within one are what float32 sums in another order may differ by.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest

from examples.dispatch.etr import rounds
from examples.dispatch.etr.deliveries import MiniInputs
from examples.dispatch.etr.features import EtrInputs
from examples.dispatch.etr.modelfile import read_weights, shipped
from examples.dispatch.etr.network import BASE, MINI, Weights
from examples.dispatch.etr.reference import etr_forward, mini_forward
from examples.dispatch.etr.serve import Session

IMPLEMENTATIONS_MIN, COMPANY_MIN = 1e-3, 1e-4


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(shipped("etr"), threads=1)


@pytest.fixture(scope="module")
def mini_session() -> Session:
    return Session(shipped("etr_mini"), threads=1)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return read_weights(BASE, shipped("etr"))


@pytest.fixture(scope="module")
def pairs() -> EtrInputs:
    return rounds.simulate(rounds.make_city(), 300, seed=21).inputs


def mini_rows(count: int, seed: int) -> MiniInputs:
    rng = np.random.default_rng(seed)
    day = rng.integers(0, 7, count)
    hour = rng.uniform(10.0, 22.0, count)
    ids = np.stack((day, day * 48 + (hour * 2).astype(np.int64)), axis=1).astype(np.int32)
    items = rng.poisson(0.1, (count, 27))
    return MiniInputs(ids, np.concatenate((hour[:, None], rng.uniform(2, 8, (count, 1)), items), 1).astype(np.float32))


def widened(inputs: EtrInputs, width: int, rubbish: float) -> EtrInputs:
    """The same pairs with more padded columns, and rubbish in every padded stop."""
    now = inputs.mask.shape[1]
    extra = ((0, 0), (0, width - now))
    mask = np.pad(inputs.mask, extra)
    stops = np.pad(inputs.stops, (*extra, (0, 0)))
    stops[mask == 0] = rubbish
    types, grid = np.pad(inputs.stop_type, extra), np.pad(inputs.stop_grid, extra)
    types[mask == 0], grid[mask == 0] = 2, 77
    return dataclasses.replace(inputs, mask=mask, stops=stops, stop_type=types, stop_grid=grid)


def wild(count: int, width: int, seed: int) -> EtrInputs:
    """Inputs nobody would send: ids over the whole of int32, huge floats, any mask, empty routes too."""
    rng = np.random.default_rng(seed)

    def ids(*shape: int) -> np.ndarray:
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)

    def floats(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 38, shape)).astype(np.float32)

    real = np.arange(width) < rng.integers(0, width + 1, (count, 1))
    return EtrInputs(
        ids(count, 7),
        floats(count, 16),
        floats(count, width, 14),
        ids(count, width),
        ids(count, width),
        real.astype(np.float32),
    )


def test_runtime_and_reference_agree(session: Session, weights: Weights, pairs: EtrInputs) -> None:
    assert np.abs(session.etr(pairs) - etr_forward(weights, pairs)).max() < IMPLEMENTATIONS_MIN


def test_runtime_and_reference_agree_on_the_small_network(mini_session: Session) -> None:
    rows = mini_rows(500, seed=1)
    reference = mini_forward(read_weights(MINI, shipped("etr_mini")), rows)
    assert np.abs(mini_session.mini(rows) - reference).max() < IMPLEMENTATIONS_MIN


def test_torch_agrees_with_both(session: Session, mini_session: Session, weights: Weights, pairs: EtrInputs) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, which only training installs: pip install 'overspill[train]'")
    from examples.dispatch.etr import torch_nets

    answer = torch_nets.etr_forward(torch_nets.from_weights(weights), pairs).numpy()
    assert np.abs(session.etr(pairs) - answer).max() < IMPLEMENTATIONS_MIN
    assert np.abs(etr_forward(weights, pairs) - answer).max() < IMPLEMENTATIONS_MIN
    rows = mini_rows(100, seed=2)
    small = torch_nets.mini_forward(torch_nets.from_weights(read_weights(MINI, shipped("etr_mini"))), rows).numpy()
    assert np.abs(mini_session.mini(rows) - small).max() < IMPLEMENTATIONS_MIN


@pytest.mark.parametrize("width", [1, 2, 16, 32])
def test_wild_inputs_give_finite_answers_that_never_go_back(session: Session, weights: Weights, width: int) -> None:
    inputs = wild(64, width, seed=width)
    answer = session.etr(inputs)
    assert np.isfinite(answer).all()
    assert (answer >= 0).all()
    assert (np.diff(answer, axis=1) >= 0).all()
    reference = etr_forward(weights, inputs)
    # Saturated inputs make answers of hundreds of minutes: float32 keeps seven digits of those.
    assert np.allclose(answer, reference, rtol=1e-5, atol=IMPLEMENTATIONS_MIN)


def test_answers_never_go_back_along_a_route(session: Session, pairs: EtrInputs) -> None:
    answer = session.etr(pairs)
    real = pairs.mask > 0
    assert (np.diff(answer, axis=1) >= 0).all()
    assert (answer[:, 0] > 0).all()
    assert (np.diff(answer, axis=1)[real[:, 1:]] > 0).all()


@pytest.mark.parametrize("rubbish", [0.0, 1e30, np.nan, np.inf])
def test_padded_stops_change_nothing(session: Session, pairs: EtrInputs, rubbish: float) -> None:
    plain, wide = session.etr(pairs), session.etr(widened(pairs, 32, rubbish))
    assert np.abs(wide[:, :16] - plain).max() < COMPANY_MIN
    assert np.array_equal(wide[:, 16:], np.repeat(wide[:, 15:16], 16, axis=1))


def test_a_route_cut_to_its_own_length_answers_the_same(session: Session, pairs: EtrInputs) -> None:
    plain = session.etr(pairs)
    for row in range(40):
        width = max(int(pairs.mask[row].sum()), 1)
        cut = pairs.rows(slice(row, row + 1)).trimmed()
        assert cut.mask.shape[1] == width
        assert np.abs(session.etr(cut)[0] - plain[row, :width]).max() < COMPANY_MIN


@pytest.mark.parametrize("batch", [1, 2, 7, 64, 299])
def test_a_pair_answers_the_same_in_any_batch(session: Session, pairs: EtrInputs, batch: int) -> None:
    whole = session.etr(pairs)
    parts = [session.etr(pairs.rows(slice(start, start + batch))) for start in range(0, pairs.pairs, batch)]
    assert np.abs(np.concatenate(parts) - whole).max() < COMPANY_MIN


def test_a_pair_answers_the_same_in_any_order(session: Session, mini_session: Session, pairs: EtrInputs) -> None:
    order = np.random.default_rng(3).permutation(pairs.pairs)
    assert np.abs(session.etr(pairs.rows(order)) - session.etr(pairs)[order]).max() < COMPANY_MIN
    rows = mini_rows(200, seed=4)
    order = np.random.default_rng(5).permutation(200)
    assert np.abs(mini_session.mini(rows.rows(order)) - mini_session.mini(rows)[order]).max() < COMPANY_MIN
    assert np.abs(mini_session.mini(rows.rows(slice(7, 8))) - mini_session.mini(rows)[7]).max() < COMPANY_MIN


def test_an_empty_batch_has_an_empty_answer(session: Session, mini_session: Session, pairs: EtrInputs) -> None:
    assert session.etr(pairs.rows(slice(0, 0))).shape == (0, 16)
    assert mini_session.mini(mini_rows(0, seed=1)).shape == (0,)


def test_a_bad_row_spoils_only_itself(session: Session, pairs: EtrInputs) -> None:
    """Nodes refuse NaN (refuse_nan); should one slip through, the neighbours in the batch must not feel it."""
    good = session.etr(pairs)
    dense, stops = pairs.dense.copy(), pairs.stops.copy()
    dense[3], stops[5, 0] = np.nan, np.inf
    answer = session.etr(dataclasses.replace(pairs, dense=dense, stops=stops))
    others = np.delete(np.arange(pairs.pairs), [3, 5])
    assert np.abs(answer - good)[others].max() < COMPANY_MIN


def test_ids_wrap_by_their_bucket_count(session: Session, pairs: EtrInputs) -> None:
    ids = pairs.ids + np.array([4096, -8192, 8192, 8192, 336, -8, 1024], np.int32)
    moved = dataclasses.replace(pairs, ids=ids, stop_grid=pairs.stop_grid - 8192)
    assert np.array_equal(session.etr(moved), session.etr(pairs))


@pytest.mark.parametrize("column", range(7))
def test_every_id_matters(session: Session, pairs: EtrInputs, column: int) -> None:
    ids = pairs.ids.copy()
    ids[:, column] += 1
    assert not np.allclose(session.etr(dataclasses.replace(pairs, ids=ids)), session.etr(pairs), atol=COMPANY_MIN)


def test_every_small_network_id_matters(mini_session: Session) -> None:
    rows = mini_rows(50, seed=6)
    moved = MiniInputs(rows.ids + np.array([1, 0], np.int32), rows.dense)
    assert not np.allclose(mini_session.mini(moved), mini_session.mini(rows), atol=COMPANY_MIN)
    edges = MiniInputs(np.full((50, 2), -(2**31), np.int32), rows.dense)
    assert np.isfinite(mini_session.mini(edges)).all()
