"""A connection as the engine sees it, and how completions find the one that they are of.

This module never takes completions: `fabric/rdma/rounds.py` does. Read `fabric/rdma/engine.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fabric.errors import OverspillError
    from fabric.rdma.device import Done

LINK_BITS: Final = 32
"""A work request's id is the connection's number above this bit, and what the connection says below it."""


class Member(Protocol):
    """A connection, as the engine sees it."""

    gid: str

    def completed(self, done: list[Done]) -> None:
        """What its pairs have done; in the loop's thread."""

    def fail(self, error: OverspillError, *, cut: bool = False) -> None:
        """Ends it. Safe from any thread."""

    def tend(self, now: float) -> None:
        """Looks after it; in the loop's thread."""

    def end_now(self) -> None:
        """Destroys what has failed, whatever of it did not come back."""


def hand_out(done: list[Done], members: Mapping[int, tuple[Member, object]]) -> None:
    """Gives each connection what is its own, in the order of the queue; `members` has them by their numbers."""
    if len(done) == 1:  # as mostly
        found = members.get(done[0].wr_id >> LINK_BITS)
        if found is not None:
            found[0].completed(done)
        return
    whose: dict[int, list[Done]] = {}
    for each in done:
        whose.setdefault(each.wr_id >> LINK_BITS, []).append(each)
    for number, theirs in whose.items():
        found = members.get(number)
        if found is not None:
            found[0].completed(theirs)
