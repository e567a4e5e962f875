"""Dumitrescu's one-vehicle pickup-and-delivery tours: points in the plane, and best-known tours.

Format of a .txt file: the number of points, the depot `1 x y`, then `id x y kind partner` (kind 0 is a pickup), then
-999; distances are Euclidean, rounded to the nearest integer; the tour is closed. Points are renumbered here to
route_plan's stop codes, the depot once more at the end as the end stop. Some files have blank lines and carriage
returns. Next: lilim.py.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.data.records import read_lines, whole_numbers


@dataclass(frozen=True, slots=True)
class Tour:
    """One problem; travel is int32 [2n + 2, 2n + 2]; ids[code] is the file's own number of a stop."""

    name: str
    orders: int
    travel: NDArray[np.int32]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BestTour:
    """A best-known closed tour, in the file's numbers less one (0 is the depot)."""

    name: str
    cost: int
    route: tuple[int, ...]


def load_tour(path: Path) -> Tour:
    """Read one problem. Raises ValueError where it is malformed."""
    lines = [line for line in read_lines(path) if line != "-999"]
    (points,) = whole_numbers(lines[0], path, 1)
    if points < 3 or points % 2 == 0 or len(lines) != points + 1:
        raise ValueError(f"{path}: {points} points announced, an odd number and as many rows are needed")
    depot = whole_numbers(lines[1], path, 3)
    spots = {depot[0]: (depot[1], depot[2])}
    partner: dict[int, int] = {}
    for line in lines[2:]:
        point, x, y, kind, other = whole_numbers(line, path, 5)
        spots[point] = (x, y)
        if kind == 0:
            partner[point] = other
    stops = [stop for pickup in sorted(partner) for stop in (pickup, partner[pickup])]
    if sorted([depot[0], *stops]) != sorted(spots) or len(spots) != points:
        raise ValueError(f"{path}: every point but the depot must be the pickup or delivery of one order")
    ids = (depot[0], *stops, depot[0])
    places = np.array([spots[point] for point in ids], np.float64)
    gaps = places[:, None, :] - places[None, :, :]
    travel = np.floor(np.sqrt((gaps**2).sum(axis=2)) + 0.5).astype(np.int32)
    return Tour(path.stem, len(partner), travel, ids)


def load_best_tour(path: Path) -> BestTour:
    """Read one .sol file. Raises ValueError where it is malformed."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return BestTour(str(fields["instance"]), int(fields["cost"]), tuple(int(point) for point in fields["route"]))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} must be JSON with instance, cost and route") from None
