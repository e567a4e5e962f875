"""Places in the memory of a card, as a request names them: inputs that lie there, and where outputs are to go.

A front door registers memory that its client made on a card, and has a number for it from the node. A place there
stands in a request where a resident's name would (`fabric/resident.py`), as a name that no hash is. An input is
carried: its room in the body is where it is copied to for whoever cannot read a card. A place for an output is a
referred tensor of bytes, which is called as the output is, behind `>`. Names say nothing of addresses, and the node
looks whether the number is the caller's own; it reads these names, so nothing here needs numpy. This module keeps
nothing. Read `workers/card_memory.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from typing import Final, NamedTuple

TARGET: Final = ">"
"""Before an output's name, where its place is told."""
_MAGIC: Final = b"\x00on card"
_NAME: Final = struct.Struct("<8sQQ8x")


class CardPlace(NamedTuple):
    """A part of registered memory, from `offset` on."""

    region: int
    offset: int

    @property
    def name(self) -> bytes:
        """What stands in a request for it."""
        return _NAME.pack(_MAGIC, self.region, self.offset)


def place_in(name: bytes) -> CardPlace | None:
    """The place that a name tells; None for the name of a resident."""
    if not name.startswith(_MAGIC):
        return None
    _, region, offset = _NAME.unpack(name)
    return CardPlace(region, offset)
