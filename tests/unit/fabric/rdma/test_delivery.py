"""The way back to a peer, over a connection that only remembers: no slot is lent again while its NIC reads it, and what
ran is sent, however full the memory is that it is sent from."""

from __future__ import annotations

import asyncio
import gc
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fabric.dtypes import DType
from fabric.errors import ArenaFull, ResourceExhausted
from fabric.frame import Load, RequestFrame
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import Body
from fabric.rdma.delivery import Delivery
from fabric.rdma.heads import FRAMES_BYTES, RegionNote
from fabric.rdma.kept import Kept
from fabric.rdma.regions import NodeRegions
from fabric.transport import Answer, WireName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.transport import Channel

KIB = 1 << 10
ARENA_BYTES = 1 << 20
LARGE, SMALL = 128 * KIB, 8 * KIB
NOTE = RegionNote(1, 1 << 40, 64 << 20, 5, 0, 0, 0)


class World:  # mutable: writes come and go
    """The delivery, and what its connection was given to write: (address in the arena, bytes, done)."""

    def __init__(self) -> None:
        self.arena = Arena.create(ARENA_BYTES)
        self.writes: list[tuple[int, int, Callable[[], None]]] = []
        self.written = asyncio.Event()
        self.refuses = False
        registered = SimpleNamespace(address=0, rkey=1, lkey=1, close=lambda: None)
        connection: Any = SimpleNamespace(register=lambda *_: registered, write=self._write, frame_room=4096)
        self.regions = NodeRegions(connection, self._open, lambda _: None)
        self.kept = Kept()
        self.delivery = Delivery(connection, self.regions, 1, self.kept)
        self.delivery.know(NOTE)

    async def _open(self, _nbytes: int) -> Channel:
        return cast("Channel", SimpleNamespace(arena=self.arena))

    def _write(
        self, source: tuple[int, int, int], _note: object, _at: int, _long: int, _message: object,
        done: Callable[[], None],
    ) -> None:  # fmt: skip
        if self.refuses:
            raise ResourceExhausted("too many writes")
        self.writes.append((source[0], source[1], done))
        self.written.set()

    def leased(self, nbytes: int, fill: bytes) -> Answer:
        lease = Lease.of(self.arena, nbytes)
        lease.view[:nbytes] = fill * nbytes
        return answer(nbytes, lease)

    def reply(self, number: int, made: Answer) -> None:
        """Keeps and sends it, as the node's end does."""
        self.kept.keep(number, made, 0.0)
        room = 1 << 20
        request = RequestFrame(7, number, 1, 10**7, 0, 0, 0, number * room, room, 0, 0, "echo", made.layout.encoded)
        self.delivery.reply(request, made, 1, Body(layout_of(()), b""))


def answer(nbytes: int, memory: bytes | Lease) -> Answer:
    layout = layout_of((TensorSpec.of("x", DType.UINT8, (nbytes,)),))
    return Answer(layout, memory, 1, 0, 0, Load(0, 0, 0, 0), WireName.LOCAL)


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def run(story: Callable[[World], Any]) -> None:
    async def whole() -> None:
        world = World()
        await world.regions.add(ARENA_BYTES)
        await story(world)
        world.delivery.end()
        world.kept.end()
        world.regions.unregister()
        world.arena.retire()
        world.arena.close_fd()

    with asyncio.Runner() as runner:
        runner.run(whole())


def fill(arena: Arena, nbytes: int) -> list[Lease]:
    """All that is left of it."""
    leases: list[Lease] = []
    while True:
        try:
            leases.append(Lease.of(arena, nbytes))
        except ArenaFull:
            return leases


def test_what_the_nic_reads_is_not_lent_again_though_nobody_keeps_it() -> None:
    async def story(world: World) -> None:
        world.reply(1, world.leased(LARGE, b"a"))
        ((at, nbytes, done),) = world.writes
        assert world.kept.give_up(inf) == 1
        for other in fill(world.arena, 4096):
            other.view[:] = b"b" * other.nbytes
        assert world.arena.view[at : at + nbytes] == b"a" * nbytes
        assert world.arena.table.quarantined_bytes == LARGE
        done()
        assert world.arena.table.quarantined_bytes == 0

    run(story)


def test_a_reply_that_finds_no_room_to_be_sent_from_is_sent_later() -> None:
    async def story(world: World) -> None:
        others = fill(world.arena, 4096)
        world.reply(1, answer(SMALL, b"a" * SMALL))
        assert not world.writes
        for other in others:
            other.release()
        async with asyncio.timeout(30):
            await world.written.wait()
        ((at, nbytes, done),) = world.writes
        assert world.arena.view[at : at + nbytes] == b"a" * nbytes
        done()

    run(story)


def test_replies_that_are_kept_make_room_for_one_that_is_not_sent_yet() -> None:
    async def story(world: World) -> None:
        number = 1
        while True:
            try:
                world.reply(number, world.leased(LARGE, b"k"))
            except ArenaFull:
                break
            number += 1
        for _, _, done in world.writes:
            done()
        world.writes.clear()
        world.reply(number, answer(SMALL, b"a" * SMALL))
        assert len(world.writes) == 1
        world.writes[0][2]()

    run(story)


def test_a_reply_waits_while_too_many_writes_do() -> None:
    async def story(world: World) -> None:
        world.refuses = True
        world.reply(1, world.leased(LARGE, b"a"))
        world.kept.end()
        for other in fill(world.arena, 4096):
            other.view[:] = b"b" * other.nbytes
            other.release()
        world.refuses = False
        world.reply(2, world.leased(LARGE, b"b"))
        world.writes[0][2]()  # whose end lets the first one go
        await asyncio.sleep(0)
        at, nbytes, done = world.writes[1]
        assert world.arena.view[at : at + nbytes] == b"a" * nbytes
        done()
        assert world.arena.lent_bytes() == ARENA_BYTES // 2 + FRAMES_BYTES + LARGE  # the second one is kept

    run(story)
