"""The resident tensors of a node: which ones it keeps, in what memory, and which ones make room for others.

Each lies in a memfd of its own, which executors map read-only. A request that carries one makes the room; the executor
that runs the request copies the content there, hashes its copy, and says whether it is what its name says: only then
is it kept, so that no tenant can put other bytes under a name. The least recently used ones are dropped when the budget
is spent, but none that a request in the node refers to: where those fill the budget, a carried one is used and not
kept. To drop one costs its client one more sending, never a wrong answer. The node never maps or reads the content.
Read `workers/held.py` for the executor's end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fabric.card_place import place_in
from fabric.errors import InvalidArgument, ResidentMissing
from fabric.resident import refs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.resident import Ref

KEPT_MAX: Final = 1024
"""Each holds a descriptor here and in every executor."""


class Kept:  # mutable: filled once, dropped once
    """One resident. `number` is its own at this node, never reused; `users` counts the requests that refer to it now;
    `whole` says that an executor has filled and verified it."""

    __slots__ = ("digest", "fd", "nbytes", "number", "users", "whole")

    def __init__(self, number: int, digest: bytes, nbytes: int, fd: int) -> None:
        self.number = number
        self.digest = digest
        self.nbytes = nbytes
        self.fd = fd
        self.users = 0
        self.whole = False

    def idle(self) -> None:
        """No request uses it now; it is kept all the same."""

    def __repr__(self) -> str:
        return f"<Kept {self.digest.hex()[:12]} {self.nbytes} bytes, {'whole' if self.whole else 'to be filled'}>"


class Use:  # mutable: ends once
    """One resident of one request. `fills`: the request brings the content that it waits for."""

    __slots__ = ("fills", "kept")

    def __init__(self, kept: Kept, *, fills: bool) -> None:
        self.kept = kept
        self.fills = fills


class Residents:  # mutable: a table with a budget
    """The residents of one life of a node. `dropped(number)` hears of each that is gone, so that executors unmap it."""

    def __init__(self, bytes_max: int, kept_max: int = KEPT_MAX) -> None:
        self.bytes_max = bytes_max
        self._kept_max = kept_max
        self.nbytes = 0
        self.missed = 0
        """References to what was not there."""
        self.dropped: Callable[[int], None] = lambda _: None
        self._numbers = 0
        self._kept: dict[bytes, Kept] = {}  # the least recently used first

    def number(self) -> int:
        """A new number, for what is lent to executors."""
        self._numbers += 1
        return self._numbers

    def claim(self, descriptors: bytes) -> tuple[Use, ...]:
        """Holds the residents that a request names until `ended`; places on cards (`fabric/card_place.py`) are none.

        Raises ResidentMissing for the first that it refers to and that is not here, InvalidArgument for one of another
        size. What is being filled by a request before it counts as here: an executor looks again.
        """
        refs = tuple(ref for ref in refs_of(descriptors) if place_in(ref.digest) is None)
        for ref in refs:
            kept = self._kept.get(ref.digest)
            if kept is None and not ref.carried:
                self.missed += 1
                raise ResidentMissing(
                    f"the node keeps no resident {ref.digest.hex()[:16]} now; send its content with the request once"
                )
            if kept is not None and kept.nbytes != ref.nbytes:
                raise InvalidArgument(
                    f"resident {ref.digest.hex()[:16]} has {kept.nbytes} bytes, not {ref.nbytes}; give its own shape"
                )
        # In two passes, so that what is refused has moved nothing.
        uses: list[Use] = []
        for ref in refs:
            use = self._use(ref, tuple(use.kept for use in uses))
            if use is not None:
                use.kept.users += 1
                uses.append(use)
        return tuple(uses)

    def ended(self, uses: tuple[Use, ...]) -> None:
        """A request has come to its end. What it was to fill and did not is dropped."""
        for use in uses:
            use.kept.users -= 1
            if not use.kept.users:
                use.kept.idle()
            if use.fills and not use.kept.whole:
                self._drop(use.kept)

    def close(self) -> None:
        """Lets go of all memory."""
        for kept in tuple(self._kept.values()):
            self._drop(kept)

    def _use(self, ref: Ref, mine: tuple[Kept, ...]) -> Use | None:
        kept = self._kept.pop(ref.digest, None)
        if kept is not None:
            self._kept[ref.digest] = kept  # the latest used stands last
            # While somebody else fills it, a request that brings it too reads its own body.
            return Use(kept, fills=False) if kept.whole or not ref.carried or kept in mine else None
        if ref.nbytes > self.bytes_max or not self._make_room(ref.nbytes):
            return None
        try:
            fd = os.memfd_create("overspill-resident", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:  # out of descriptors: it is used and not kept
            return None
        try:
            os.ftruncate(fd, ref.nbytes)
        except OSError:
            os.close(fd)
            return None
        kept = self._kept[ref.digest] = Kept(self.number(), ref.digest, ref.nbytes, fd)
        self.nbytes += ref.nbytes
        return Use(kept, fills=True)

    def _make_room(self, nbytes: int) -> bool:
        """Drops what was not used for longest; False, with nothing dropped, where that would not be enough."""
        idle = [kept for kept in self._kept.values() if not kept.users]
        spare = self.bytes_max - self.nbytes
        if spare + sum(kept.nbytes for kept in idle) < nbytes or len(self._kept) - len(idle) >= self._kept_max:
            return False
        for kept in idle:
            if self.nbytes + nbytes <= self.bytes_max and len(self._kept) < self._kept_max:
                break
            self._drop(kept)
        return True

    def _drop(self, kept: Kept) -> None:
        if self._kept.get(kept.digest) is kept:
            del self._kept[kept.digest]
            self.nbytes -= kept.nbytes
            os.close(kept.fd)
            self.dropped(kept.number)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Residents: {len(self._kept)} of {self.nbytes} bytes, at most {self.bytes_max}>"
