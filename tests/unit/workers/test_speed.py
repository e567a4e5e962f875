"""What is expected of a run: by size, by any run, or pessimistic."""

from __future__ import annotations

from workers.speed import UNKNOWN_US, WEIGHT, ModelSpeed


def test_unknown_is_not_zero() -> None:
    assert ModelSpeed().estimate_us(100) == UNKNOWN_US


def test_sizes_are_learned_apart_by_powers_of_two() -> None:
    speed = ModelSpeed()
    speed.ran(100, 50)
    speed.ran(10_000, 900)
    assert speed.estimate_us(127) == 50
    assert speed.estimate_us(16_000) == 900
    assert 50 < speed.estimate_us(1 << 30) < 900  # a size never seen: by any


def test_newer_runs_count_more() -> None:
    speed = ModelSpeed()
    speed.ran(100, 100)
    speed.ran(100, 200)
    assert speed.estimate_us(100) == int(100 + WEIGHT * 100)


def test_warm_up_counts_for_any_size_and_for_the_slowest() -> None:
    speed = ModelSpeed()
    speed.warmed(5000)
    assert speed.estimate_us(1) == 5000
    speed.ran(1, 10)
    assert speed.slowest_us == 5000
