"""What node and executors say of the legs of an ensemble: what a leg has given, and what the next one is to do.

Both travel as text beside descriptors: a parcel's first descriptor is of the card's memory, if it has some there, the
next of the host's. The node looks at sizes alone. What an executor says is checked here, since a model of it may write
to its node. This module sends nothing. Read `workers/legrun.py` for the executor's end, `workers/onward.py` for the
node's.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fabric.errors import ProtocolError

NOWHERE: Final = -1
_GARBLED: Final = "told of tensors between two steps that cannot be; look which of its models writes to its node"


class Way(Enum):
    """Where a leg lays what the next one gets: in the host's memory, on its card, or, until it is known whether the
    other card can read that, in both."""

    HOST = "host"
    CARD = "card"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a parcel: its name in the ensemble, the protocol's datatype, shape and bytes, and where it begins
    in the card's memory and in the host's, NOWHERE where it is not there."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    on_card: int
    on_host: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a leg has given. Of each kind of memory it takes so many bytes; `number` counts the parcels of an executor;
    `why_host` says why what could have stayed on the card did not."""

    number: int
    parts: tuple[Part, ...]
    card_bytes: int
    host_bytes: int
    why_host: str = ""

    @property
    def descriptors(self) -> int:
        """How many descriptors come with it."""
        return (self.card_bytes > 0) + (self.host_bytes > 0)


@dataclass(frozen=True, slots=True)
class LegOrder:
    """The next task runs the steps from `first` to before `upto`. Earlier ones took `before_us`. What it gives goes on
    by `way`, with `card_bytes_max` of the card's memory out at a time."""

    first: int
    upto: int
    before_us: int
    way: Way
    card_bytes_max: int


def encode_contents(contents: Contents) -> bytes:
    """As it travels."""
    parts = [[p.tensor, p.dtype, list(p.shape), p.nbytes, p.on_card, p.on_host] for p in contents.parts]
    words = [contents.number, parts, contents.card_bytes, contents.host_bytes, contents.why_host]
    return json.dumps(words).encode()


def decode_contents(text: bytes | str) -> Contents:
    """Reads it. Raises ProtocolError for what no executor of ours would say."""
    try:
        number, rows, card_bytes, host_bytes, why_host = json.loads(text)
        found = Contents(int(number), tuple(map(_part, rows)), int(card_bytes), int(host_bytes), str(why_host))
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError(_GARBLED) from None
    sizes = (found.card_bytes, found.host_bytes)
    if min(sizes) < 0 or any(not _lies_well(part, *sizes) for part in found.parts):
        raise ProtocolError(_GARBLED)
    return found


def encode_order(order: LegOrder) -> str:
    """As it travels."""
    return json.dumps([order.first, order.upto, order.before_us, order.way.value, order.card_bytes_max])


def decode_order(text: str) -> LegOrder:
    """Reads it; it is the node's own word."""
    first, upto, before_us, way, card_bytes_max = json.loads(text)
    return LegOrder(first, upto, before_us, Way(way), card_bytes_max)


def _part(row: Any) -> Part:
    tensor, dtype, shape, nbytes, on_card, on_host = row
    return Part(str(tensor), str(dtype), tuple(map(int, shape)), int(nbytes), int(on_card), int(on_host))


def _lies_well(part: Part, card_bytes: int, host_bytes: int) -> bool:
    placed = [(part.on_card, card_bytes), (part.on_host, host_bytes)]
    there = [(at, whole) for at, whole in placed if at != NOWHERE]
    return bool(there) and part.nbytes >= 0 and all(0 <= at <= whole - part.nbytes for at, whole in there)
