"""What answers teach: the line of a wire, the speed of a worker; and that unknown is not zero."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.transport import WireName
from router.learned import COMPUTE_PRIOR_MS, Kind, Speed, TransportLine, Work

MIB = 1 << 20


def test_a_line_finds_intercept_and_slope() -> None:
    line, rng = TransportLine(WireName.RPC), Random(1)
    for _ in range(300):
        nbytes = int(2 ** rng.uniform(6, 24))
        line.learn(nbytes, 0.7 + 2.5 * nbytes / MIB, 0.0)
    assert line.predict_ms(64, 0.0) == pytest.approx(0.7, abs=0.25)
    assert line.predict_ms(16 * MIB, 0.0) == pytest.approx(40.7, rel=0.05)


def test_a_line_of_one_size_keeps_the_slope_it_was_born_with() -> None:
    line = TransportLine(WireName.RPC)
    for _ in range(50):
        line.learn(1000, 0.9, 0.0)
    assert line.predict_ms(1000, 0.0) == pytest.approx(0.9)
    assert line.predict_ms(MIB, 0.0) == pytest.approx(2.4, rel=0.05)


def test_a_guess_of_the_network_counts_until_the_first_answer() -> None:
    near, far = TransportLine(WireName.RPC), TransportLine(WireName.RPC, rtt_ms=12.0)
    assert far.predict_ms(64, 0.0) == pytest.approx(near.predict_ms(64, 0.0) + 12.0)
    far.learn(64, 0.9, 0.0)
    assert far.predict_ms(64, 0.0) == pytest.approx(0.9)
    assert TransportLine(WireName.LOCAL, rtt_ms=12.0).predict_ms(64, 0.0) < 1.0, "shared memory crosses no network"


def test_a_wire_that_became_slow_is_seen_within_twenty_answers() -> None:
    line = TransportLine(WireName.LOCAL)
    for _ in range(100):
        line.learn(1000, 0.05, 0.0)
    for _ in range(20):
        line.learn(1000, 5.0, 0.0)
    assert line.predict_ms(1000, 0.0) > 4.0


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 1e4)), max_size=40), st.integers(0, 1 << 34))
def test_a_prediction_is_never_below_zero(samples: list[tuple[int, float]], asked: int) -> None:
    line = TransportLine(WireName.RDMA)
    for nbytes, took_ms in samples:
        line.learn(nbytes, took_ms, 0.0)
    assert 0.0 <= line.predict_ms(asked, 0.0) < 1e12


def test_a_slow_first_call_does_not_bar_a_wire_for_ever() -> None:
    line = TransportLine(WireName.RPC)
    line.learn(1000, 40.0, 0.0)
    assert line.predict_ms(1000, 0.5) == pytest.approx(40.0)
    assert line.predict_ms(1000, 200.0) < 1.2
    good = TransportLine(WireName.RPC)
    good.learn(1000, 0.4, 0.0)
    assert good.predict_ms(1000, 900.0) == pytest.approx(0.4), "a good figure is believed"


def test_a_wire_with_one_slow_answer_is_believed_after_a_few_good_ones() -> None:
    """It is asked again when its figure has faded below that of another wire, 0.45 ms."""
    line, now, tries = TransportLine(WireName.LOCAL), 3.0, 0
    for number in range(3000):
        line.learn(64, 0.25, number / 1000)
    line.learn(64, 54.0, now)
    while line.predict_ms(64, now) >= 0.45:
        while line.predict_ms(64, now) >= 0.45:
            now += 0.1
        line.learn(64, 0.25, now)
        tries += 1
    assert tries <= 6
    assert now < 120.0, "not twenty minutes, a minute for each tenth of the figure"


def test_unknown_is_not_zero_and_fades_until_somebody_tries() -> None:
    kind, speed = Work().kind("m", 1000), Speed()
    first = speed.predict_ms(kind, 50.0)
    assert first == COMPUTE_PRIOR_MS, "it fades from when it was first asked for"
    assert first > speed.predict_ms(kind, 52.0) > speed.predict_ms(kind, 70.0) >= 0.0
    assert speed.full_ms(kind) == COMPUTE_PRIOR_MS, "what a try is charged does not fade"


def learn(speed: Speed, kind: Kind, ms: float, now: float = 0.0) -> None:
    speed.learn(kind, ms, now)
    kind.learn(ms, 100, now)


def test_a_worker_that_never_ran_the_model_is_judged_by_those_that_did() -> None:
    work, known, fresh = Work(), Speed(), Speed()
    kind = work.kind("m", 1000)
    learn(known, kind, 8.0)
    assert fresh.predict_ms(kind, 0.0) == pytest.approx(12.0)
    assert fresh.predict_ms(kind, 2.0) == pytest.approx(12.0 / 2.718, rel=0.01)
    assert fresh.full_ms(kind) == pytest.approx(12.0)
    assert known.predict_ms(work.kind("m", 4000), 0.0) == pytest.approx(32.0), "four times the size"
    assert known.predict_ms(work.kind("m", 1 << 30), 0.0) == pytest.approx(128.0), "16 times at most"
    assert known.predict_ms(work.kind("m", 10), 0.0) == pytest.approx(8.0), "never less for a smaller one"
    assert fresh.predict_ms(work.kind("other", 1000), 0.0) == COMPUTE_PRIOR_MS


def test_a_slow_worker_is_slow_at_sizes_it_never_ran() -> None:
    work, fast, slow = Work(), Speed(), Speed()
    kind, larger = work.kind("m", 1000), work.kind("m", 4000)
    for _ in range(50):
        learn(fast, kind, 1.0)
        learn(slow, kind, 10.0)
    learn(fast, larger, 4.0)
    assert slow.predict_ms(larger, 0.0) > 1.4 * fast.predict_ms(larger, 0.0)


def test_one_slow_answer_does_not_bar_a_worker_for_ever() -> None:
    kind, usual, unlucky = Work().kind("m", 1000), Speed(), Speed()
    learn(unlucky, kind, 900.0)  # compiled something
    for _ in range(100):
        learn(usual, kind, 1.0, 1.0)
    assert unlucky.predict_ms(kind, 1.0) > 800.0
    assert unlucky.predict_ms(kind, 300.0) < 2.0


def test_one_that_was_slow_for_a_while_is_believed_at_its_first_good_run() -> None:
    kind, speed = Work().kind("m", 1000), Speed()
    for number in range(50):
        learn(speed, kind, 100.0, number * 0.1)
    assert speed.predict_ms(kind, 5.5) == pytest.approx(100.0)
    assert speed.predict_ms(kind, 5.0 + 12.6) < 10.0, "tried again where others take a tenth"
    learn(speed, kind, 10.0, 18.0)
    assert speed.full_ms(kind) < 20.0


def test_one_that_is_slow_for_good_is_tried_ever_less_often() -> None:
    kind, speed, now, tries = Work().kind("m", 1000), Speed(), 0.0, []
    learn(speed, kind, 100.0)
    while now < 3600.0:
        now += 1.0
        if speed.predict_ms(kind, now) < 10.0:
            learn(speed, kind, 100.0, now)
            tries.append(now)
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert waits == sorted(waits)
    assert waits[0] < 30.0
    assert 100.0 < waits[-1] < 150.0


def test_kinds_are_powers_of_two() -> None:
    work = Work()
    assert [work.kind("m", n).bucket for n in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 3, 10, 11]
    assert work.kind("m", 1000) is work.kind("m", 900)
    assert work.kind("m", 1000) is not work.kind("n", 1000)


def test_the_guess_of_a_reply_is_the_largest_seen_lately() -> None:
    work = Work()
    kind = work.kind("m", 10)
    assert kind.reply_bytes == 64 * 1024
    assert work.kind("m", 16 * MIB).reply_bytes == 4 * MIB
    kind.learn(1.0, 100_000, 0.0)
    kind.learn(1.0, 10, 0.0)
    assert 98_000 < kind.reply_bytes < 100_000
    for _ in range(1000):
        kind.learn(1.0, 10, 0.0)
    assert kind.reply_bytes < 100
    fresh = work.kind("n", 10)
    fresh.learn(1.0, 10, 0.0)
    assert fresh.reply_bytes == 10, "what was only guessed does not linger"
