"""What stands in front of every frame on a queue pair: kind, credits, link epoch; and the number that tells of a write.

A message of the frame pair is `head, frame, small body`. A large body is written to its place in the peer's memory, and
then `head, frame` by the one write that carries an immediate number: where the frame lies, in units of 64 bytes, and
which region that is in. Frames have places of their own in the region, taken in turn, as many as there are credits; a
long one lies behind its body. What was written stays writable by the peer, so head and frame are copied out before they
are looked at. All numbers are little-endian. This module never sends. Read `fabric/rdma/credits.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, final
from zlib import crc32

from fabric.errors import ProtocolError
from fabric.rdma.config import BULK_DEPTH, FRAME_ROOM

MAGIC: Final = 0x524F
VERSION: Final = 1
VERSION_OLDEST: Final = 1
HEAD: Final = struct.Struct("<HBBHHIIIII")
HEAD_BYTES: Final = 32
_CHECKED_BYTES: Final = HEAD.size
_CHECK: Final = struct.Struct("<I")
_WHOLE: Final = struct.Struct("<HBBHHIIIIII")
"""A head and its check, which are read in one step."""
assert _WHOLE.size == HEAD_BYTES, "a head is half a cache line"

FRAMES_BYTES: Final = BULK_DEPTH * FRAME_ROOM
"""Of each of our regions: a place for the frame of each large body that may be on its way."""
FRAMES_BYTES_MIN: Final = 8 * 1024
"""The same of a peer that takes as few and as short frames as terms allow; beyond a region its NIC refuses."""
UNIT_BYTES: Final = 64
"""Bodies and the frames behind them begin at multiples of this."""
_SIZE_AT: Final = 12
_UNIT_BITS: Final = 25
REGION_BYTES_MAX: Final = UNIT_BYTES << _UNIT_BITS
"""2 GiB: what 25 bits of units reach."""
_REGIONS: Final = 1 << (32 - _UNIT_BITS)
HOLDS_INPUT: Final = 1
"""Flag of a final frame: somebody still reads the request's input; a RELEASE follows when that is over."""


class HeadKind(IntEnum):
    """What a message is."""

    FRAME = 1  # one of the fabric's frames follows
    CREDIT = 2  # nothing but the numbers in the head
    RELEASE = 3  # `note` is the unit of an input that nobody reads any more
    HELLO = 4  # the caller's first word on a pair; `note` is its nonce
    ECHO = 5  # the node's answer to it
    REGION = 6  # a new region: what follows is a `RegionNote`
    GROW = 7  # the caller asks for a larger region: what follows says how large
    REFUSED = 8  # no larger region: what follows says why
    BYE = 9  # the sender is about to end the connection; what follows says why
    TAKEN = 11  # `note` is the number of a region that the receiver now knows
    LEFT = 10  # `note` is the number of a region that its user has left: it may be taken back


# To look a member up in its enum costs 50 ns and more, for each message.
FRAME: Final = HeadKind.FRAME
CREDIT: Final = HeadKind.CREDIT
HELLO: Final = HeadKind.HELLO
ECHO: Final = HeadKind.ECHO


@final
@dataclass(init=False, slots=True)
class Head:  # mutable: made for each message, see fabric/frame_values.py
    """The head. `ctl_total` and `bulk_total` count the receives that the sender has posted again since the start."""

    kind: HeadKind
    flags: int
    region: int
    epoch: int
    sequence: int
    ctl_total: int
    bulk_total: int
    note: int

    def __init__(
        self, kind: HeadKind, flags: int, region: int, epoch: int, sequence: int, ctl_total: int, bulk_total: int,
        note: int,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.flags = flags
        self.region = region
        self.epoch = epoch
        self.sequence = sequence
        self.ctl_total = ctl_total
        self.bulk_total = bulk_total
        self.note = note


_KINDS: Final = {int(kind): kind for kind in HeadKind}


def pack_head(head: Head, version: int) -> bytes:
    """The head as it travels on a connection of this version."""
    plain = HEAD.pack(
        MAGIC, version, head.kind, head.flags, head.region, head.epoch, head.sequence, head.ctl_total, head.bulk_total,
        head.note,
    )  # fmt: skip
    return plain + _CHECK.pack(crc32(plain))


def read_head(message: bytes, epoch: int, version: int) -> Head:
    """Checks and reads the head of a message that was copied out. Raises ProtocolError for anything but a head of this
    link epoch and version."""
    if len(message) < HEAD_BYTES:
        raise ProtocolError(
            f"a message of {len(message)} bytes is shorter than its head; the peer must send whole ones"
        )
    magic, told, kind, flags, region, link_epoch, sequence, ctl_total, bulk_total, note, check = _WHOLE.unpack_from(
        message
    )
    if magic != MAGIC or crc32(message[:_CHECKED_BYTES]) != check:
        raise ProtocolError("a message's head is garbled; the connection is closed")
    if told != version:
        raise ProtocolError(f"a message of version {told} came on a connection of version {version}; update one side")
    if link_epoch != epoch:
        raise ProtocolError(f"a message of link epoch {link_epoch} came in epoch {epoch}; the connection is closed")
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"a message of unknown kind {kind} came; the connection is closed")
    return Head(known, flags, region, link_epoch, sequence, ctl_total, bulk_total, note)


def frame_of(payload: bytes) -> bytes:
    """The frame at the front of what follows a head, by the size that it says; it is not checked yet."""
    return payload[: int.from_bytes(payload[_SIZE_AT : _SIZE_AT + 4], "little")]


def pack_place(region: int, offset: int) -> int:
    """The immediate number of a frame that lies at `offset` of a region."""
    assert offset % UNIT_BYTES == 0, "frames begin at units"
    assert 0 <= offset < REGION_BYTES_MAX, "regions are bounded"
    return (region % _REGIONS) << _UNIT_BITS | offset // UNIT_BYTES


def read_place(imm: int) -> tuple[int, int]:
    """(region, offset) of an immediate number; the region is known up to its last bits."""
    return imm >> _UNIT_BITS, (imm & ((1 << _UNIT_BITS) - 1)) * UNIT_BYTES


def same_region(told: int, region: int) -> bool:
    """Whether an immediate number means this region."""
    return told == region % _REGIONS


def round_up(nbytes: int) -> int:
    """To a whole number of units."""
    return (nbytes + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES


HELLO_PLACE: Final = (1 << 32) - 1
"""The immediate number of HELLO and ECHO on the bulk pair, which have no place: nothing is written."""


class RegionNote(NamedTuple):
    """A region that the sender lends: its number, where it begins for the peer's NIC, how large it is, its key; the
    part that the peer lends itself for bodies (0 bytes where the sender names each place), and the part for frames."""

    number: int
    base: int
    nbytes: int
    rkey: int
    window_at: int
    window_bytes: int
    frames_at: int


NO_REGION: Final = RegionNote(0, 0, 0, 0, 0, 0, 0)
REGION: Final = struct.Struct("<HQQIQQQ")


def pack_region(note: RegionNote) -> bytes:
    """The note as it travels."""
    return REGION.pack(*note)


def read_region(payload: bytes) -> RegionNote:
    """Reads a note. Raises ProtocolError when it is none."""
    if len(payload) < REGION.size:
        raise ProtocolError("a region note is cut; the connection is closed")
    note = RegionNote(*REGION.unpack_from(payload))
    check_region(note)
    return note


def check_region(note: RegionNote) -> None:
    """Raises ProtocolError for a region that cannot be."""
    window = note.window_bytes
    sound = (
        0 < note.nbytes <= REGION_BYTES_MAX and note.base + note.nbytes < 1 << 64
        and note.window_at % UNIT_BYTES == 0 and note.window_at + window <= note.nbytes
        and (not window or (window >= 4096 and window & (window - 1) == 0))
        and note.frames_at % UNIT_BYTES == 0 and note.frames_at + FRAMES_BYTES_MIN <= note.nbytes
    )  # fmt: skip
    if not sound:
        raise ProtocolError(f"a region of {note.nbytes} bytes that cannot be was offered; the connection is closed")


_WORD: Final = struct.Struct("<Q")


def pack_word(value: int) -> bytes:
    """A number of 64 bits, as GROW has it."""
    return _WORD.pack(value)


def read_word(payload: bytes) -> int:
    """Reads it. Raises ProtocolError when it is cut."""
    if len(payload) < _WORD.size:
        raise ProtocolError("a number is cut; the connection is closed")
    (value,) = _WORD.unpack_from(payload)
    return int(value)
