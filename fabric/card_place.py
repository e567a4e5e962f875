"""Places in the memory of a card, as a request names them: inputs that lie there, and where outputs are to go.

A front door registers memory that its client made on a card, and has a number for it from the node. A place there
stands in a request where a resident's name would (`fabric/resident.py`), as a name that no hash is: an input is carried,
since its room in the body is where it is copied to for whoever cannot read a card, and a place for an output is a
referred tensor of bytes, which is called as the output is, behind `>`. Names say nothing of addresses: the node looks
whether the number is the caller's own. This module keeps nothing. Read `workers/card_memory.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fabric.dtypes import DType
from fabric.layout import TensorSpec

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


def target_spec(output: str, place: CardPlace, nbytes: int) -> TensorSpec:
    """What asks for an output at a place of `nbytes` bytes."""
    return TensorSpec(TARGET + output, DType.UINT8, (nbytes,), nbytes, place.name, referred=True)
