"""What answers teach: the line of a wire, the speed of a worker; and that unknown is not zero."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.transport import WireName
from router.learned import COMPUTE_PRIOR_MS, Speed, TransportLine, Work, bucket_of
from router.sizes import ReplySizes

MIB = 1 << 20


def test_a_line_finds_intercept_and_slope() -> None:
    line, rng = TransportLine(WireName.RPC), Random(1)
    for _ in range(300):
        nbytes = int(2 ** rng.uniform(6, 24))
        line.learn(nbytes, 0.7 + 2.5 * nbytes / MIB)
    assert line.predict_ms(64) == pytest.approx(0.7, abs=0.25)
    assert line.predict_ms(16 * MIB) == pytest.approx(40.7, rel=0.05)


def test_a_line_of_one_size_keeps_the_slope_it_was_born_with() -> None:
    line = TransportLine(WireName.RPC)
    for _ in range(50):
        line.learn(1000, 0.9)
    assert line.predict_ms(1000) == pytest.approx(0.9)
    assert line.predict_ms(MIB) == pytest.approx(2.4, rel=0.05)


def test_a_wire_that_became_slow_is_seen_within_twenty_answers() -> None:
    line = TransportLine(WireName.LOCAL)
    for _ in range(100):
        line.learn(1000, 0.05)
    for _ in range(20):
        line.learn(1000, 5.0)
    assert line.predict_ms(1000) > 4.0


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 1e4)), max_size=40), st.integers(0, 1 << 34))
def test_a_prediction_is_never_below_zero(samples: list[tuple[int, float]], asked: int) -> None:
    line = TransportLine(WireName.RDMA)
    for nbytes, took_ms in samples:
        line.learn(nbytes, took_ms)
    assert 0.0 <= line.predict_ms(asked) < 1e12


def test_unknown_is_not_zero_and_fades_until_somebody_tries() -> None:
    speed = Speed(Work(), 0.0)
    first = speed.predict_ms("m", 10, 0.0)
    assert first == COMPUTE_PRIOR_MS
    assert first > speed.predict_ms("m", 10, 2.0) > speed.predict_ms("m", 10, 20.0) >= 0.0


def test_a_worker_that_never_ran_the_model_is_judged_by_those_that_did() -> None:
    work = Work()
    known, fresh = Speed(work, 0.0), Speed(work, 0.0)
    known.learn("m", 10, 8.0, 0.0)
    assert fresh.predict_ms("m", 10, 0.0) == pytest.approx(12.0)
    assert fresh.predict_ms("m", 10, 30.0) == pytest.approx(8.0, rel=0.01)
    assert fresh.predict_ms("m", 12, 30.0) == pytest.approx(32.0, rel=0.01), "four times the size"
    assert fresh.predict_ms("m", 8, 30.0) == pytest.approx(8.0, rel=0.01), "never less for a smaller one"


def test_a_slow_worker_is_slow_at_sizes_it_never_ran() -> None:
    work = Work()
    fast, slow = Speed(work, 0.0), Speed(work, 0.0)
    for _ in range(50):
        fast.learn("m", 10, 1.0, 0.0)
        slow.learn("m", 10, 10.0, 0.0)
    fast.learn("m", 12, 4.0, 0.0)
    assert slow.predict_ms("m", 12, 0.0) > 1.4 * fast.predict_ms("m", 12, 0.0)


def test_one_slow_answer_does_not_bar_a_worker_for_ever() -> None:
    work = Work()
    usual, unlucky = Speed(work, 0.0), Speed(work, 0.0)
    unlucky.learn("m", 10, 900.0, 0.0)  # compiled something
    for _ in range(100):
        usual.learn("m", 10, 1.0, 1.0)
    assert unlucky.predict_ms("m", 10, 1.0) > 800.0
    assert unlucky.predict_ms("m", 10, 300.0) < 2.0


def test_buckets_are_powers_of_two() -> None:
    assert [bucket_of(n) for n in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 3, 10, 11]


def test_the_guess_of_a_reply_is_the_largest_seen_lately() -> None:
    sizes = ReplySizes()
    assert sizes.guess("m", 4, 10) == 64 * 1024
    assert sizes.guess("m", 24, 16 * MIB) == 4 * MIB
    sizes.learn("m", 4, 100_000)
    sizes.learn("m", 4, 10)
    assert 98_000 < sizes.guess("m", 4, 10) < 100_000
    for _ in range(1000):
        sizes.learn("m", 4, 10)
    assert sizes.guess("m", 4, 10) < 100
