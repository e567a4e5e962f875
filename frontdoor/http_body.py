"""Reads the body of a request over HTTP: bounded in bytes, in time and in what all bodies together may hold.

A body that is announced as too large is refused unread. One that comes slower than anybody's line is given up, since a
connection costs its client nothing and its memory us a lot. Compressed bodies are opened here and not by the HTTP
library, which would go on opening one that was refused. This module never looks into a body. Read
`frontdoor/http_service.py` next.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from fabric.deadline import Deadline
from fabric.errors import InvalidArgument
from frontdoor.aside import TEXT_INLINE_BYTES, aside
from frontdoor.failures import Refusal, Status
from frontdoor.room import Room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BODY = "overspill.body"
"""Where a request keeps its body for whoever answers it."""
SMALL_BYTES = 64 * 1024
"""Bodies up to this take no part in the room: all connections together hold less than one large body's worth each."""
HELD_BYTES_MIN = 1 << 30
HELD_MESSAGES = 8
"""Room for so many of the largest bodies, or for 1 GiB: further large ones wait unread, at their clients."""
PATIENCE_S = 10.0
BYTES_PER_S_MIN = 64 * 1024
"""A body has `PATIENCE_S`, and a second more for each of these: half a megabit, less than mobile lines have."""


class BodyTooLarge(Refusal):
    """More bytes than one message may have; HTTP has a number of its own for it."""

    __slots__ = ()

    def __init__(self, limit: int) -> None:
        super().__init__(Status.RESOURCE_EXHAUSTED, f"the body is larger than {limit} bytes; split it")


class Bodies:  # mutable: shares its room
    """The bodies of one front door: `limit` bytes each, `timeout_s` for a place in the room."""

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._room = Room(max(HELD_BYTES_MIN, HELD_MESSAGES * limit))

    @asynccontextmanager
    async def of(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole body, decompressed. Raises InvalidArgument, BodyTooLarge, ArenaFull, or DEADLINE_EXCEEDED for one
        that comes too slowly."""
        if not request.can_read_body:
            yield b""
            return
        announced = request.content_length
        if announced is not None and announced > self._limit:
            raise BodyTooLarge(self._limit)
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        packed = encoding not in {"", "identity"}
        # What a body unpacks to is not announced, and neither is one that comes in chunks.
        taken = self._limit if packed or announced is None else announced
        if taken > SMALL_BYTES:
            await self._room.take(taken, Deadline.after(self._timeout_s, time.monotonic()))
        try:
            body = await self._read(request)
            if packed:
                work = partial(unpacked, body, encoding, self._limit)
                body = work() if len(body) <= TEXT_INLINE_BYTES // 64 else await aside(work)
            yield body
        finally:
            if taken > SMALL_BYTES:
                self._room.give_back(taken)

    async def _read(self, request: web.BaseRequest) -> bytes:
        body = bytearray()
        began_s = asyncio.get_running_loop().time()
        try:
            while True:
                async with asyncio.timeout_at(began_s + PATIENCE_S + len(body) / BYTES_PER_S_MIN):
                    piece = await request.content.readany()
                if not piece:
                    return bytes(body)
                body += piece
                if len(body) > self._limit:
                    raise BodyTooLarge(self._limit)
        except TimeoutError:
            told = f"{len(body)} bytes of the body came in {PATIENCE_S:.0f} s or more; send it faster"
            raise Refusal(Status.DEADLINE_EXCEEDED, told) from None
        except web.RequestPayloadError:
            raise InvalidArgument("the body is cut or garbled; send a whole one") from None


def unpacked(packed: bytes, encoding: str, limit: int) -> bytes:
    """A body without its compression, `gzip` or `deflate`. Raises InvalidArgument for what is neither, BodyTooLarge as
    soon as it is larger than `limit`."""
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidArgument(f"Content-Encoding is {encoding[:40]!r}; give gzip or deflate, or send the body as it is")
    bare = encoding == "deflate" and packed[:1] != b"\x78"  # deflate without zlib's header, as some clients send it
    window = -zlib.MAX_WBITS if bare else zlib.MAX_WBITS if encoding == "deflate" else zlib.MAX_WBITS | 16
    whole = bytearray()
    rest = packed
    try:
        while rest:  # gzip may have several members
            stream = zlib.decompressobj(window)
            whole += stream.decompress(rest, limit + 1 - len(whole))
            if len(whole) > limit:
                raise BodyTooLarge(limit)
            if not stream.eof:
                raise InvalidArgument(f"the body ends within its {encoding}; send all of it")
            rest = stream.unused_data
    except zlib.error:
        raise InvalidArgument(f"the body is no {encoding}; correct it or its Content-Encoding") from None
    return bytes(whole)
