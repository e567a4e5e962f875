"""The node's sessions of one peer: none ends under what runs in it, and one larger one is made for all that want it."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fabric.errors import ArenaFull, Cancelled, DeadlineExceeded, Fate, NodeLost, OverspillError, WireTooSmall
from fabric.frame import Load, RequestFrame
from fabric.layout import layout_of
from fabric.memory.arena import Arena
from fabric.message import Body, RequestId
from fabric.rdma.asking import Asking
from fabric.rdma.config import RdmaConfig
from fabric.rdma.heads import HeadKind
from fabric.rdma.kept import Kept
from fabric.rdma.regions import NodeRegion, NodeRegions
from fabric.transport import Answer, PeerFacts, WireName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.deadline import Deadline
    from fabric.transport import Call, Channel

KIB = 1 << 10
SMALL = 512 * KIB
CONFIG = RdmaConfig(arena_bytes=SMALL, arena_bytes_max=8 << 20)
EMPTY = layout_of(())
ANSWER = Answer(EMPTY, b"", 1, 0, 0, Load(0, 0, 0, 1), WireName.LOCAL)


class Session:
    """A session with an arena, in which `full` answers find no room."""

    alive = True

    def __init__(self, world: World, nbytes: int) -> None:
        self.world = world
        self.arena = Arena.create(nbytes)
        self.running = 0
        self.ended_under = 0
        self.closed = False

    async def call_async(self, _call: Call, _deadline: Deadline) -> Answer:
        self.running += 1
        try:
            await asyncio.sleep(0)
            if self.arena.nbytes <= self.world.full_bytes:
                raise ArenaFull("no room here", needed_bytes=self.world.needed_bytes)
            await self.world.go_on.wait()
            if self.closed:
                raise NodeLost("closed by its owner")
            return ANSWER
        finally:
            self.running -= 1

    def close(self) -> None:
        self.closed = True
        self.ended_under += self.running

    def end(self) -> None:
        self.arena.retire()
        self.arena.close_fd()


class World:
    """The regions of one peer without a device, and what was told to the peer."""

    def __init__(self) -> None:
        self.full_bytes = self.needed_bytes = 0
        self.kept = Kept()
        self.go_on = asyncio.Event()
        self.sessions: list[Session] = []
        self.told: list[HeadKind] = []
        registered = SimpleNamespace(address=0, rkey=1, lkey=1, close=lambda: None)
        connection: Any = SimpleNamespace(register=lambda *_: registered)
        self.regions = NodeRegions(connection, self._open, self._emptied)
        way_back: Any = SimpleNamespace(tell=lambda kind, *_args, **_more: self.told.append(kind))
        self.asking = Asking(7, PeerFacts("n", 1, 1), CONFIG, self.regions, way_back, self.kept)

    async def _open(self, nbytes: int) -> Channel:
        await asyncio.sleep(0.001)  # as long as a real session takes, others run meanwhile
        made = Session(self, nbytes)
        self.sessions.append(made)
        return cast("Channel", made)

    def _emptied(self, region: NodeRegion) -> None:
        cast("Session", region.channel).close()

    async def ask(self, number: int, region: NodeRegion, budget_us: int = 10_000_000) -> Answer:
        request = RequestFrame(7, number, 1, budget_us, 0, 0, 0, 0, 0, 0, 0, "echo", EMPTY.encoded)
        with self.regions.used(region):
            return await self.asking.answer(request, Body(EMPTY, b""), region, 1)


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()  # arenas are held in circles


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def run(loop: asyncio.AbstractEventLoop, full_bytes: int, callers: int) -> World:
    """Callers whose first region has no room; the peer leaves every region but the newest as soon as it is told."""

    async def whole() -> World:
        world = World()
        world.full_bytes = full_bytes
        first = await world.regions.add(SMALL)
        asked = [asyncio.ensure_future(world.ask(number, first)) for number in range(1, callers + 1)]
        await asyncio.sleep(0.1)
        for region in world.regions.every()[:-1]:
            world.regions.leave(region.note.number)
        await asyncio.sleep(0)
        world.go_on.set()
        assert await asyncio.gather(*asked) == [ANSWER] * callers
        return world

    return loop.run_until_complete(whole())


def test_one_larger_session_is_made_for_all_that_find_no_room(loop: asyncio.AbstractEventLoop) -> None:
    world = run(loop, SMALL, callers=50)
    assert [one.arena.nbytes for one in world.sessions] == [SMALL, 4 * SMALL]
    assert world.told.count(HeadKind.REGION) == 1
    _end(world)


def test_no_session_ends_under_what_runs_in_it(loop: asyncio.AbstractEventLoop) -> None:
    """Requests wait for their answers in the second one while the peer asks for a third, and leaves the others."""

    async def whole() -> World:
        world = World()
        world.full_bytes = SMALL
        first = await world.regions.add(SMALL)
        asked = [asyncio.ensure_future(world.ask(number, first)) for number in range(1, 21)]
        await asyncio.sleep(0.1)
        await world.asking.resize(2 * SMALL)
        for region in world.regions.every()[:-1]:
            world.regions.leave(region.note.number)
        await asyncio.sleep(0)
        world.go_on.set()
        assert await asyncio.gather(*asked) == [ANSWER] * 20
        return world

    world = loop.run_until_complete(whole())
    assert not any(one.ended_under for one in world.sessions)
    assert [one.closed for one in world.sessions] == [True, True, False]
    _end(world)


def test_a_session_that_the_peer_left_waits_for_what_is_sent_from_it(loop: asyncio.AbstractEventLoop) -> None:
    async def whole() -> World:
        world = World()
        first = await world.regions.add(SMALL)
        await world.regions.add(SMALL)
        world.regions.began(first)
        world.regions.leave(first.note.number)
        closed = [world.sessions[0].closed]  # not while the NIC still reads a reply there
        world.regions.ended(first)
        closed.append(world.sessions[0].closed)
        assert closed == [False, True]
        return world

    _end(loop.run_until_complete(whole()))


def _full(loop: asyncio.AbstractEventLoop, needed_bytes: int, then: Callable[[World], None], budget_us: int) -> Answer:
    """What becomes of a request that finds no room in the largest session there may be, `then` being done meanwhile."""

    async def whole() -> Answer:
        world = World()
        world.full_bytes, world.needed_bytes = CONFIG.arena_bytes_max, needed_bytes
        world.go_on.set()
        region = await world.regions.add(CONFIG.arena_bytes_max)
        asked = asyncio.ensure_future(world.ask(1, region, budget_us))
        try:
            await asyncio.sleep(0.02)
            then(world)
            return await asked
        finally:
            _end(world)

    return loop.run_until_complete(whole())


FITS = CONFIG.arena_bytes_max // 4
LONG_US, SHORT_US = 60_000_000, 30_000


def test_what_finds_no_room_beside_others_waits_for_them(loop: asyncio.AbstractEventLoop) -> None:
    def others_end(world: World) -> None:
        world.full_bytes = 0
        world.regions.freed()

    assert _full(loop, FITS, others_end, LONG_US) == ANSWER


def test_it_looks_again_where_nobody_tells_of_room(loop: asyncio.AbstractEventLoop) -> None:
    def others_end(world: World) -> None:
        world.full_bytes = 0

    assert _full(loop, FITS, others_end, LONG_US) == ANSWER


def _nothing(_: World) -> None:
    pass


def _cancel(world: World) -> None:
    world.asking.cancel(RequestId(7, 1))


def _lose(world: World) -> None:
    world.asking.over = True


@pytest.mark.parametrize(
    ("needed_bytes", "then", "budget_us", "error"),
    [
        (FITS + 1, _nothing, LONG_US, WireTooSmall),
        (FITS, _nothing, SHORT_US, DeadlineExceeded),
        (FITS, _cancel, LONG_US, Cancelled),
        (FITS, _lose, LONG_US, NodeLost),
    ],
    ids=["larger than all that there may be", "too late", "given up", "the connection ended"],
)
def test_who_waits_for_room_is_told_of_the_end(
    loop: asyncio.AbstractEventLoop, needed_bytes: int, then: Callable[[World], None], budget_us: int,
    error: type[OverspillError],
) -> None:  # fmt: skip
    with pytest.raises(error) as told:
        _full(loop, needed_bytes, then, budget_us)
    assert told.value.fate is Fate.NEVER_RAN


def _end(world: World) -> None:
    for session in world.sessions:
        session.end()
