"""A node's load page: what it says of its load, in memory that others read without asking it.

Readers are routers on the same host (they map it), routers elsewhere (their NIC reads it) and the rpc port. None of
them can wait for the writer, and a read of some hundred bytes may meet a write, so everything is checked: the page has
its sequence number at both ends and a checksum, a line its own. A torn page is no page: the reader looks again.

    page      head with sequence, node epoch, outstanding work, executors; up to 64 models; sequence again, checksum
    lines     512 of {client, number of its requests that the node has accepted and how many of them are not over,
              check}; a client's line is one of the eight that follow from its id

A reader reads its own line first, then the page: so a request that the page does not count yet may be counted twice for
a moment, by page and reader, but never by neither. An executor answers its caller before the node hears of it: from how
many are not over a reader knows which of its own the page still counts. This module never maps memory and reads no
clock. Read `fabric/transport.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from fabric.errors import ConfigError
from fabric.frame import Load

if TYPE_CHECKING:
    from collections.abc import Container

MAGIC = b"OVLP"
VERSION = 1
MODELS_MAX = 64
LINES = 512
PROBES = 8
"""Lines that a client's may be: with 256 callers of 512 lines, one in a thousand finds them all taken."""

_HEAD = struct.Struct("<4sHHQQQII")
_MODEL = struct.Struct("<QII")
_END = struct.Struct("<QI")
_LINE = struct.Struct("<QQQ")
LINES_AT = 2048
PAGE_BYTES = 16384
LINE_BYTES = _LINE.size
LINES_BYTES = PROBES * LINE_BYTES
"""What a client reads of the lines: all that may be its own."""
TRIES_MAX = 8
"""Readings until a page counts as torn. Under a writer that never pauses about half of the reads of soft-RoCE are: one
in 256 gives up."""
FILE = "load.page"
"""The page's file, beside the node's socket: whoever may connect to that may map it."""
assert _HEAD.size + MODELS_MAX * _MODEL.size + _END.size <= LINES_AT, "the page ends before the lines"
assert LINES_AT + (LINES + PROBES) * LINE_BYTES <= PAGE_BYTES, "the lines end with the page"
_ACCEPTED_BITS = 40
_ACCEPTED_MAX = (1 << _ACCEPTED_BITS) - 1
_IN_HAND_MAX = (1 << 64 - _ACCEPTED_BITS) - 1
"""One word of a line: a million requests a second for twelve days, and sixteen million at once."""
_MIX = 0x9E37_79B9_7F4A_7C15
_U64 = (1 << 64) - 1


class ModelLoad(NamedTuple):
    """One model: its `key` (of its name), what a unit of its work takes, and how much of it waits."""

    key: int
    unit_us: int
    queued: int


class Reading(NamedTuple):
    """What one caller reads: the load as it should see it, what is known of models, and how many of its own requests
    the page counts as not over."""

    load: Load
    models: tuple[ModelLoad, ...]
    in_hand: int


class PageReport(NamedTuple):
    """A whole page. `sequence` grows with each report of a node epoch."""

    sequence: int
    node_epoch: int
    outstanding_us: int
    executors: int
    models: tuple[ModelLoad, ...]


def model_key(name: str) -> int:
    """What stands for a model's name in a page."""
    data = name.encode(errors="replace")
    return crc32(data) << 32 | crc32(data[::-1])


def line_at(client_id: int) -> int:
    """Where the first of a client's possible lines begins; the others follow it."""
    return LINES_AT + ((client_id * _MIX & _U64) >> 55) * LINE_BYTES


class LoadPage:  # mutable: it is the writer
    """The writer's end. `memory` has `PAGE_BYTES`, and nobody else writes to it."""

    def __init__(self, memory: memoryview, node_epoch: int) -> None:
        if len(memory) < PAGE_BYTES:
            raise ConfigError(f"a load page takes {PAGE_BYTES} bytes, and {len(memory)} were given")
        self._memory = memory
        self._node_epoch = node_epoch
        self._sequence = 0
        self._lines: dict[int, int] = {}

    def publish(
        self, outstanding_us: int, executors: int, models: tuple[ModelLoad, ...] = (), sequence: int = 0
    ) -> int:
        """Writes a report; gives its sequence number, which is the next one unless the writer counts reports itself.
        Models past the first 64 are left out."""
        self._sequence = sequence or self._sequence + 1
        shown = models[:MODELS_MAX]
        head = (MAGIC, VERSION, len(shown), self._sequence, self._node_epoch, outstanding_us, executors, 0)
        body = _HEAD.pack(*head) + b"".join(_MODEL.pack(*model) for model in shown)
        page = body + _END.pack(self._sequence, crc32(body))
        self._memory[: len(page)] = page
        return self._sequence

    def accept(self, client_id: int, accepted: int, in_hand: int) -> bool:
        """So many requests of this client are in the reports from now on, `in_hand` of them not over; False where it
        finds no line."""
        at = self._lines.get(client_id)
        if at is None:
            at = self._free_line(client_id)
            if at is None:
                return False
            self._lines[client_id] = at
        counts = min(in_hand, _IN_HAND_MAX) << _ACCEPTED_BITS | accepted & _ACCEPTED_MAX
        self._memory[at : at + LINE_BYTES] = _LINE.pack(client_id, counts, _line_check(client_id, counts))
        return True

    def forget(self, client_id: int) -> None:
        """The client is gone: its line is another's."""
        at = self._lines.pop(client_id, None)
        if at is not None:
            self._memory[at : at + LINE_BYTES] = bytes(LINE_BYTES)

    def forget_but(self, known: Container[int]) -> None:
        """All clients but these are gone."""
        for client_id in [each for each in self._lines if each not in known]:
            self.forget(client_id)

    def close(self) -> None:
        """Lets go of the memory."""
        self._memory.release()

    def _free_line(self, client_id: int) -> int | None:
        first, taken = line_at(client_id), set(self._lines.values())
        return next((at for at in range(first, first + PROBES * LINE_BYTES, LINE_BYTES) if at not in taken), None)


def read_both(lines: bytes, page: bytes, client_id: int, node_epoch: int) -> Reading | None:
    """What a client reads in copies of its `PROBES` lines and of the page, made in this order; None when either is
    torn, or the page is another life's."""
    counts, report = read_line(lines, client_id), read_report(page)
    if counts is None or report is None or report.node_epoch != node_epoch:
        return None
    accepted, in_hand = counts
    load = Load(report.sequence, accepted, report.outstanding_us, report.executors)
    return Reading(load, report.models, in_hand)


def read_report(raw: bytes) -> PageReport | None:
    """The report in a copy of the page's first bytes (`LINES_AT` of them are enough); None when it is torn or none."""
    if len(raw) < _HEAD.size + _END.size:
        return None
    magic, version, count, sequence, node_epoch, outstanding_us, executors, _ = _HEAD.unpack_from(raw)
    end_at = _HEAD.size + count * _MODEL.size
    if magic != MAGIC or version != VERSION or count > MODELS_MAX or len(raw) < end_at + _END.size:
        return None
    again, check = _END.unpack_from(raw, end_at)
    if again != sequence or crc32(raw[:end_at]) != check:
        return None
    models = tuple(ModelLoad(*_MODEL.unpack_from(raw, _HEAD.size + each * _MODEL.size)) for each in range(count))
    return PageReport(sequence, node_epoch, outstanding_us, executors, models)


def read_line(raw: bytes, client_id: int) -> tuple[int, int] | None:
    """The client's requests that were accepted and that are not over, in a copy of its `PROBES` lines; none where it
    has no line, None where a line of it is torn."""
    for at in range(0, min(len(raw), PROBES * LINE_BYTES) - LINE_BYTES + 1, LINE_BYTES):
        client, counts, check = _LINE.unpack_from(raw, at)
        if client == client_id:
            whole = check == _line_check(client, counts)
            return (counts & _ACCEPTED_MAX, counts >> _ACCEPTED_BITS) if whole else None
    return 0, 0


def _line_check(client_id: int, counts: int) -> int:
    return (client_id * _MIX ^ (counts + 1) * 0xC2B2_AE3D_27D4_EB4F) & _U64
