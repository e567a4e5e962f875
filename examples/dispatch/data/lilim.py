"""Li & Lim's pickup-and-delivery problems with time windows, their best-known costs, and one-rider routes of ours.

Format of an instance: `vehicles capacity speed`, then `id x y demand ready due service pickup delivery`, where a pickup
names its delivery in the last column and a delivery its pickup in the last but one; id 0 is the depot. Distances and
times are taken x1000 and rounded, the unit of routes_100_vroom.json (distance_milli). Next: deliveries.py.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.dispatch.data.records import read_lines, whole_numbers

UNIT = 1000


@dataclass(frozen=True, slots=True)
class Site:
    """One row; demand is above 0 at pickups, other is the number of the delivery or pickup that belongs to it."""

    number: int
    x: int
    y: int
    demand: int
    ready: int
    due: int
    service: int
    other: int


@dataclass(frozen=True, slots=True)
class LiLimProblem:
    """One instance; sites by number, the depot first."""

    name: str
    vehicles: int
    capacity: int
    sites: tuple[Site, ...]

    def travel_milli(self, first: int, second: int) -> int:
        """Return distance and time between two sites, x1000 and rounded."""
        a, b = self.sites[first], self.sites[second]
        return math.floor(UNIT * math.hypot(a.x - b.x, a.y - b.y) + 0.5)


@dataclass(frozen=True, slots=True)
class BestKnown:
    """Best-known vehicles and cost of an instance."""

    name: str
    vehicles: int
    cost: float


@dataclass(frozen=True, slots=True)
class VehicleRoute:
    """One feasible vehicle's round: sites in order (the depot is left out), distance x1000."""

    instance: str
    sites: tuple[int, ...]
    distance_milli: int


def load_problem(path: Path) -> LiLimProblem:
    """Read one instance. Raises ValueError where it is malformed."""
    lines = read_lines(path)
    vehicles, capacity, _ = whole_numbers(lines[0], path, 3)
    sites = []
    for line in lines[1:]:
        number, x, y, demand, ready, due, service, pickup, delivery = whole_numbers(line, path, 9)
        sites.append(Site(number, x, y, demand, ready, due, service, delivery or pickup))
    if [site.number for site in sites] != list(range(len(sites))):
        raise ValueError(f"{path}: rows must be numbered from 0")
    for site in sites[1:]:
        partner = sites[site.other] if 0 < site.other < len(sites) else None
        if partner is None or partner.other != site.number or partner.demand != -site.demand or site.demand == 0:
            raise ValueError(f"{path}: row {site.number} and its partner {site.other} must name each other")
    return LiLimProblem(path.stem.lower(), vehicles, capacity, tuple(sites))


def load_best_known(path: Path) -> tuple[BestKnown, ...]:
    """Read BKS.json. Raises ValueError where it is malformed."""
    found = []
    for name, fields in _read_object(path).items():
        try:
            found.append(BestKnown(name.lower(), int(fields["solved_with_vehicles"]), float(fields["best_known_cost"])))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: {name} must have solved_with_vehicles and best_known_cost") from None
    return tuple(found)


def load_routes(path: Path) -> tuple[VehicleRoute, ...]:
    """Read routes_100_vroom.json. Raises ValueError where it is malformed."""
    found = []
    for name, fields in _read_object(path).items():
        try:
            for route in fields["routes"]:
                stops = tuple(int(stop) for stop in route["stops"])
                found.append(VehicleRoute(name, stops, int(route["distance_milli"])))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: {name} must have routes with stops and distance_milli") from None
    return tuple(found)


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} must be JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a JSON object by instance")
    return content
