"""Which residents one executor process was told of, and which memory on its card: each is lent with the first task
that refers to it.

A request that brings a resident goes with the empty memory to fill; any other with the memory that is filled. One that
another executor is filling now is not lent: this one then says that it lacks it, which costs the client one more
sending. Read `workers/shell.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from workers.card_memory import CardRegion
from workers.handover import Control

if TYPE_CHECKING:
    from workers.resident import Kept, Use

    class Send(Protocol):
        """Sends a word to the executor, if there is one."""

        def __call__(self, control: Control, descriptors: tuple[int, ...] = ()) -> None:
            """Its descriptors go with it."""


class Lending:  # mutable: grows with each resident told
    """The residents that one life of an executor knows, and those that it was asked to fill."""

    __slots__ = ("_filling", "_known", "_opening")

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._filling: dict[int, Kept] = {}
        self._opening: dict[int, CardRegion] = {}

    def tell(self, uses: tuple[Use, ...], send: Send) -> None:
        """Lends what the next task needs."""
        for use in uses:
            kept = use.kept
            if use.fills or (kept.whole and kept.number not in self._known):
                self._known.add(kept.number)
                if use.fills:
                    self._filling[kept.number] = kept
                if isinstance(kept, CardRegion):
                    self._opening[kept.number] = kept
                word = "fill" if use.fills else "resident"
                lent = Control(word, kept.number, digest=kept.digest.hex(), nbytes=kept.nbytes)
                send(lent, (kept.fd,))

    def heard(self, control: Control) -> bool:
        """The executor says what became of something lent. True: its answer to a request may come soon."""
        if control.word == "opened":
            region = self._opening.pop(control.number, None)
            if region is not None:
                region.opened(control.models[0] if control.models else "")
            return False
        return self.filled(control.number)

    def filled(self, number: int) -> bool:
        """The executor has filled and verified one, and says so before it runs the request that brought it: from now on
        it is lent to all, and stays though this executor ends. A number that it was not given is somebody's garbage.
        True: its answer may come soon."""
        kept = self._filling.pop(number, None)
        if kept is not None:
            kept.whole = True
        return True

    def drop(self, number: int, send: Send) -> None:
        """The node keeps one no more."""
        self._filling.pop(number, None)
        self._opening.pop(number, None)
        if number in self._known:
            self._known.discard(number)
            send(Control("let_go", number))
