"""Coordinates are read entry by entry: one that is garbled costs its own place alone."""

from __future__ import annotations

import pytest

from discovery.agent.coordinates import parse_coordinates

GOOD = {"Node": "host", "Coord": {"Vec": [0.0, 0.001], "Height": 1e-4, "Adjustment": 0.0, "Error": 0.5}}


@pytest.mark.parametrize(
    "bad", [{"Coord": GOOD["Coord"]}, {"Node": "x"}, 5, None, {"Node": "x", "Coord": {"Vec": ["a"]}}]
)
def test_one_bad_place_costs_itself(bad: object) -> None:
    assert [name for name, _ in parse_coordinates([bad, GOOD])] == ["host"]
