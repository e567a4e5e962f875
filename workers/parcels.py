"""What one leg of an ensemble gave and later ones take, as the node holds it: by descriptors, until nobody needs it.

| state | means | who holds the memory | who may die |
| --- | --- | --- | --- |
| (before) | an executor made it, and fills it | that executor | it, and the request with it: nothing had a name |
| held | filled, waited for, and named; a leg waits | the node | its maker: nothing changes |
| lent | the executor of a later leg may read it | the node, and that one | its maker; that one, and its leg with it |
| over | the request has ended | nobody: it is freed with the last mapping | |

Nothing is filled twice, so nobody has to be waited for before it may be let go: a reader that is still there has a
mapping of its own. Its maker counts what it has out, and is told if it still lives. The node never maps it. Read
`workers/onward.py` next.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from fabric.errors import IllegalTransition
from fabric.local.sockets import close_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.legwords import Contents


class ParcelState(Enum):
    """Where a parcel is."""

    HELD = "held"
    LENT = "lent"
    OVER = "over"


class ParcelEvent(Enum):
    """What happens around it."""

    TOLD = "an executor was told of it"
    CAME_BACK = "that executor ended before it began"
    LEG_RAN = "that executor has run its leg"
    ENDED = "the request has ended"


class ParcelCommand(Enum):
    """What follows."""

    LET_GO = "close the descriptors"
    TELL_MAKER = "tell its maker how much less is out"


_S, _E, _C = ParcelState, ParcelEvent, ParcelCommand
_END: Final = (_S.OVER, (_C.LET_GO, _C.TELL_MAKER))
TABLE: Final[dict[ParcelState, dict[ParcelEvent, tuple[ParcelState, tuple[ParcelCommand, ...]]]]] = {
    _S.HELD: {_E.TOLD: (_S.LENT, ()), _E.ENDED: _END},
    _S.LENT: {_E.CAME_BACK: (_S.HELD, ()), _E.LEG_RAN: (_S.HELD, ()), _E.ENDED: _END},
    _S.OVER: {},
}


class Parcel:  # mutable: a place in the table, and descriptors
    """One parcel. `source` is the number of the executor that made it; `returned` tells that process, if it lives."""

    __slots__ = ("_returned", "contents", "descriptors", "source", "state")

    def __init__(
        self, source: int, contents: Contents, descriptors: tuple[int, ...], returned: Callable[[int], None]
    ) -> None:
        self.source = source
        self.contents = contents
        self.descriptors = descriptors
        self.state = ParcelState.HELD
        self._returned = returned

    def handle(self, event: ParcelEvent) -> None:
        """Does what follows. Raises IllegalTransition where nothing can."""
        edge = TABLE[self.state].get(event)
        if edge is None:
            raise IllegalTransition(f"a parcel that is {self.state.value} met {event.value!r}")
        self.state, commands = edge
        if ParcelCommand.LET_GO in commands:
            close_all(self.descriptors)
        if ParcelCommand.TELL_MAKER in commands and self.contents.card_bytes:
            self._returned(self.contents.card_bytes)

    def __repr__(self) -> str:
        contents = self.contents
        return f"<Parcel {self.state.value}, {contents.card_bytes} and {contents.host_bytes} bytes>"
