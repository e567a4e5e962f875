"""Where an executor sits: on a processor or a card, with what is known of the card and how its standby is kept.

It is a record and the way to the watcher; it decides nothing. Read `workers/shell.py` for who sits there.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from workers.cuda.faults import FaultBook, read_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.device import Card


class StandbyKind(Enum):
    """What stands beside an executor, ready to follow it: nothing, a process with a context and its libraries, or one
    whose models are loaded and warm as well."""

    OFF = "off"
    CONTEXT = "context"
    FULL = "full"


class Cards(Protocol):
    """The watcher as a seat asks it."""

    def await_free(self, uuid: str, pid: int, then: Callable[[bool], None]) -> None:
        """Calls `then(True)` when a process that ended holds nothing of a card any more, `then(False)` when it still
        does after a bounded time."""

    def held_bytes(self, uuid: str, pid: int) -> int:
        """What a process holds of a card, as last seen; 0 where the driver does not say."""

    def free_bytes(self, uuid: str) -> int:
        """Memory of a card that nobody holds, as last seen."""

    def is_good(self, uuid: str) -> bool:
        """Whether the driver answers for a card and wants nothing done about it."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One executor's place. `card` and `cards` are None on a processor, `word` is what the executor is told."""

    word: str = "cpu"
    card: Card | None = None
    cards: Cards | None = None
    standby: StandbyKind = StandbyKind.OFF
    quarantine_faults: int = 0
    book: FaultBook | None = None

    def fault_name(self, code: int) -> str:
        """A CUDA error in words."""
        return (self.book or read_faults()).name(code)

    def clear(self, pid: int, then: Callable[[bool], None]) -> None:
        """See `Cards.await_free`; at once on a processor."""
        if self.card is None or self.cards is None:
            then(True)  # noqa: FBT003 - the answer itself
        else:
            self.cards.await_free(self.card.uuid, pid, then)

    def is_good(self) -> bool:
        """See `Cards.is_good`."""
        return self.card is None or self.cards is None or self.cards.is_good(self.card.uuid)


CPU_SEAT = Seat()
