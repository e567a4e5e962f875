"""Consul's network coordinates as a first guess of the round trip between racks.

Consul's agents place themselves so that distance is round-trip time. Good to a fraction of a millisecond between
racks or rooms, and wrong within one (0.1 ms shown as 0.46); a node that just started stands at zero with full doubt,
which means unknown. So it is a prior: whoever measures forgets it. This module never asks an agent. Read
`discovery/agent/watch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

from discovery.facts import UNREADABLE

_UNKNOWN_ERROR = 1.5
"""The error of a coordinate that has seen no sample (measured; Serf's own starting value)."""
_RTT_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A place in network space, all in seconds."""

    vector: tuple[float, ...]
    height: float
    adjustment: float
    error: float

    @property
    def known(self) -> bool:
        """Whether any sample went into it."""
        return self.error < _UNKNOWN_ERROR


def rtt_s(one: Coordinate, other: Coordinate) -> float | None:
    """The estimated round trip in seconds; None where either place is unknown."""
    if not (one.known and other.known) or len(one.vector) != len(other.vector):
        return None
    straight = sqrt(sum((a - b) ** 2 for a, b in zip(one.vector, other.vector, strict=True)))
    plain = straight + one.height + other.height
    adjusted = plain + one.adjustment + other.adjustment
    return adjusted if adjusted > 0.0 else plain


def parse_coordinates(entries: Any) -> tuple[tuple[str, Coordinate], ...]:  # parsed JSON is anything until read
    """(Consul node, its place) of each readable entry of /v1/coordinate/nodes; of a node in two segments, the last."""
    found: list[tuple[str, Coordinate]] = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            node, told = str(entry["Node"]), entry["Coord"]
            place = Coordinate(
                tuple(float(part) for part in told["Vec"]),
                float(told["Height"]),
                float(told["Adjustment"]),
                float(told["Error"]),
            )
        except UNREADABLE:
            continue
        numbers = (*place.vector, place.height, place.adjustment, place.error)
        if all(isfinite(number) and abs(number) < _RTT_S_MAX for number in numbers):
            found.append((node, place))
    return tuple(found)
