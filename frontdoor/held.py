"""What is registered under a name, of whatever kind: whose it is, who uses it, and when it is closed.

A region goes when nobody uses it any more, also when its client has taken its name away before. This module opens
nothing and moves no bytes. Read `frontdoor/regions.py` for shared memory of the system, `frontdoor/cuda_regions.py` for
that of cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from frontdoor.clients import Owner
    from frontdoor.mappable import Mappable
    from frontdoor.values import Place

Kind = TypeVar("Kind", bound="Held")


class Held:  # mutable: counts its users, and is closed after the last one
    """What is registered under a name, of whatever kind. It stays open while a request uses it, also after it was
    unregistered."""

    __slots__ = ("_ended", "_open", "_users", "begin", "mappable", "name", "nbytes", "owner")
    way = "shm"
    """What metrics call it."""
    is_copied = True
    """Whether the front door copies between it and the engine."""

    def __init__(self, name: str, owner: Owner, nbytes: int) -> None:
        self.name = name
        self.owner = owner
        self.nbytes = nbytes
        self.begin = 0
        """Where it begins in what is mappable."""
        self.mappable: Mappable | None = None
        """Its pages, where copiers may map them."""
        self._users = 0
        self._ended = False
        self._open = True

    def hold(self) -> None:
        """A request begins to use it."""
        self._users += 1

    def let_go(self) -> None:
        """A request has ended with it."""
        self._users -= 1
        self._close_unused()

    def end(self) -> None:
        """It is no longer registered; it is closed once nobody uses it."""
        self._ended = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self._ended and not self._users and self._open:
            self._open = False
            self.close()

    def close(self) -> None:
        """Lets go of what it is."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fills `view` from what lies there, where the front door does so."""

    def read_part(self, offset: int, at: int, view: memoryview) -> None:
        """The same for a part of what lies at `offset`."""
        self.read_into(offset + at, view)

    def write_from(self, offset: int, view: memoryview) -> None:
        """Writes `view` there, where the front door does so."""

    def write_part(self, offset: int, at: int, view: memoryview) -> None:
        """The same for a part of what goes to `offset`, which other threads may write other parts of meanwhile."""
        self.write_from(offset + at, view)

    def check_end(self, end: int) -> None:
        """Raises InvalidArgument where it has fewer bytes by now."""

    def check(self, place: Place) -> None:
        """Raises InvalidArgument unless the place lies in the region."""
        if place.offset + place.nbytes > self.nbytes:
            raise InvalidArgument(
                f"{place.nbytes} bytes at {place.offset} do not lie in region {self.name!r} of {self.nbytes};"
                " correct offset and byte size"
            )
