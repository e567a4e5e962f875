"""A first guess of the round trip to each worker, asked of Consul's network coordinates.

A guess is made once for each life of a node, when it is first seen, and never changed: it is worth something only
until the router has measured. Nobody waits for coordinates: where ACLs hide them, or the agent does not know them,
there is no guess. This module never compares workers. Read `discovery/agent/coordinates.py` next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from discovery.agent.coordinates import parse_coordinates, rtt_s
from discovery.agent.faults import ConsulError
from discovery.consul import parsed

if TYPE_CHECKING:
    from discovery.agent.coordinates import Coordinate
    from discovery.agent.listing import Listing
    from discovery.agent.url import ConsulSettings
    from discovery.consul import ConsulClient
    from discovery.instance import Instance

ASK_AGAIN_S = 60.0


class Nearness:  # mutable: remembers its guesses
    """The guesses of one watch."""

    def __init__(self, settings: ConsulSettings, client: ConsulClient) -> None:
        self._settings, self._client = settings, client
        self._own_place = ""
        self._places: tuple[tuple[str, Coordinate], ...] = ()
        self._asked_at: float | None = None
        self._guesses: dict[tuple[str, int], float] = {}

    def told(self, listing: Listing, now: float) -> tuple[Instance, ...]:
        """The instances of a listing, with what is guessed of each."""
        new = any(
            one.key not in self._guesses and place != self._own_place
            for one, (_, place) in zip(listing.instances, listing.places, strict=True)
        )
        if new and (self._asked_at is None or now - self._asked_at >= ASK_AGAIN_S):
            self._asked_at = now
            self._ask()
        keys = {one.key for one in listing.instances}
        self._guesses = {key: guess for key, guess in self._guesses.items() if key in keys}
        if not self._places:
            return listing.instances
        known = dict(self._places)
        own = known.get(self._own_place)
        found: list[Instance] = []
        for one, (_, place) in zip(listing.instances, listing.places, strict=True):
            guess_ms = self._guesses.get(one.key)
            if guess_ms is None:
                guess_ms = self._guesses[one.key] = self._guess_ms(one, place, own, known.get(place))
            found.append(replace(one, rtt_prior_ms=guess_ms) if guess_ms else one)
        return tuple(found)

    def _guess_ms(self, one: Instance, place: str, own: Coordinate | None, other: Coordinate | None) -> float:
        near = place == self._own_place or (one.rack and one.rack == self._settings.rack)
        if near or own is None or other is None:
            return 0.0  # within a rack coordinates cannot tell one from another
        guess_s = rtt_s(own, other)
        return round(guess_s * 1e3, 3) if guess_s is not None else 0.0

    def _ask(self) -> None:
        place = self._settings.place
        try:
            own = parsed(self._client.get("/v1/agent/self"), place)
            self._own_place = str(own["Config"]["NodeName"])
            self._places = parse_coordinates(parsed(self._client.get("/v1/coordinate/nodes"), place))
        except (ConsulError, KeyError, TypeError):
            self._places = ()
