"""The node's end of one rdma connection: its requests go to the node over a channel, its replies are written back.

Each request has exactly one final frame, whatever happens, and after that frame nothing is written for it: that is what
the caller's memory relies on. When the connection is lost, what runs goes on, since the caller asks for it again over
another wire. All of it lives on the port's loop. This module never decides whether a request may run: the node does.
Read `fabric/rdma/listener.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fabric.deadline import Deadline
from fabric.errors import ArenaFull, NodeLost, OverspillError, ProtocolError, ReplyTooLarge
from fabric.frame import Kind, check_header, decode_request
from fabric.hello import encode_pong
from fabric.layout import parse_layout
from fabric.memory.lease import Lease
from fabric.message import Body, RequestId
from fabric.rdma.asking import Asking
from fabric.rdma.delivery import Delivery
from fabric.rdma.heads import FRAME, UNIT_BYTES, HeadKind, frame_of, read_region, read_word
from fabric.rdma.kept import HELD_S, Kept
from fabric.rdma.regions import NodeRegions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fabric.frame import Header, RequestFrame
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import Head, RegionNote
    from fabric.rdma.regions import NodeRegion, OpenSession
    from fabric.transport import Answer, PeerFacts

_log = logging.getLogger(__name__)
LOOK_S: Final = 0.05
PING_S: Final = 2.0
_REQUEST: Final = Kind.REQUEST  # to look a member up in its enum costs 50 ns and more


class Serving:  # mutable: one peer's connection
    """One peer. `gone` is called once its connection is fenced and nothing of it is left."""

    awaits: Final[frozenset[object]] = frozenset()  # a node awaits no replies of its callers

    def __init__(
        self, client_id: int, facts: PeerFacts, config: RdmaConfig, gone: Callable[[Serving], None]
    ) -> None:  # fmt: skip
        self.client_id = client_id
        self.spoke, self.heard_s = False, time.monotonic()
        self._facts, self._config, self._gone = facts, config, gone
        self._connection: Connection | None = None
        self._regions: NodeRegions | None = None
        self._delivery: Delivery | None = None
        self._asking: Asking | None = None
        self._running: set[RequestId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = self._ending = False
        self._loop = asyncio.get_running_loop()
        self.over = asyncio.Event()  # the connection is over: whoever holds its line may hang up

    async def begin(self, connection: Connection, replies: RegionNote, open_session: OpenSession) -> RegionNote:
        """Opens the first region. Raises what the node's session or the registration raises."""
        self._connection = connection
        self._regions = regions = NodeRegions(connection, open_session, self._emptied)
        kept = Kept()
        self._delivery = Delivery(connection, regions, self._facts.node_epoch, kept)
        self._asking = Asking(self.client_id, self._facts, self._config, regions, self._delivery, kept)
        self._delivery.know(replies)
        return (await self._regions.add(self._config.arena_bytes)).note

    def doubt(self, why: str) -> None:
        """Something speaks for the peer's death: its NIC is asked."""
        if self._connection is not None and not self._lost:
            _log.info("client %016x is doubted: %s", self.client_id, why)
            self._connection.doubt()

    def end(self, why: str) -> None:
        """Tells the peer, and ends the connection soon after."""
        if self._connection is not None and not (self._lost or self._ending):
            self._ending = True
            self._way_back.tell(HeadKind.BYE, why.encode()[:512])
            asyncio.get_running_loop().call_later(LOOK_S, self._connection.close, NodeLost(why))

    def look(self) -> None:
        """Ends the connection if the node behind it is gone: there is nobody to ask any more."""
        regions = self._regions
        if regions is not None and regions.every() and not regions.newest.channel.alive:
            self.end(f"node {self._facts.node_id} is gone")

    def forget(self, now: float) -> None:
        """Lets go of replies that the node has forgotten too."""
        if self._asking is not None:
            self._asking.kept.acknowledge(0, now)

    def bury(self) -> None:
        """Ends what is left. Harmless twice."""
        if self._asking is not None:
            self._asking.kept.end()
        if self._regions is not None:
            self._regions.abort("the caller is gone")
        self._gone(self)

    # What the connection tells, in the loop's thread.

    def view_of(self, region: int) -> memoryview | None:
        """The region that the peer writes to."""
        found = self._memory.find(region)
        return found.arena.view if found is not None else None

    def lived(self) -> None:
        """Both pairs have proved themselves."""
        _log.info("client %016x speaks rdma", self.client_id)

    def arrived(self, head: Head, payload: bytes, place: int | None) -> None:
        """A message of the peer's. Raises ProtocolError."""
        self.spoke = True
        if head.kind is FRAME:
            self._frame(head, payload, place)
        elif head.kind is HeadKind.REGION:
            note = read_region(payload)
            self._way_back.know(note)
            self._way_back.tell(HeadKind.TAKEN, note=note.number)
        elif head.kind is HeadKind.GROW:
            self._start(self._questions.resize(read_word(payload)))
        elif head.kind is HeadKind.LEFT:
            self._memory.leave(head.note)
        elif head.kind is HeadKind.BYE:
            self._questions.kept.end()  # and asks for nothing again
            raise NodeLost("the caller said goodbye")
        else:
            raise ProtocolError(f"a caller sent {head.kind.name}, which is not for nodes; update the older side")

    def lost(self, error: OverspillError) -> None:
        """The connection is over."""
        self._lost = True
        if self._asking is not None:
            self._asking.over = True
        with suppress(RuntimeError):  # the loop has ended: nobody holds a line
            self._loop.call_soon_threadsafe(self.over.set)
        _log.info("the rdma connection of client %016x ended: %s", self.client_id, str(error))

    def fenced(self) -> None:
        """The peer's NIC reaches nothing of ours any more."""
        if self._regions is not None:
            self._regions.unregister()
        self._way_back.end()
        self._start(self._run_out(), even_if_lost=True)

    @property
    def _memory(self) -> NodeRegions:
        assert self._regions is not None, "begun before the pairs are connected"
        return self._regions

    @property
    def _way_back(self) -> Delivery:
        assert self._delivery is not None, "begun before the pairs are connected"
        return self._delivery

    @property
    def _questions(self) -> Asking:
        assert self._asking is not None, "begun before the pairs are connected"
        return self._asking

    def _frame(self, head: Head, payload: bytes, place: int | None) -> None:
        frame = frame_of(payload)
        header = check_header(frame)
        if header.kind is _REQUEST:
            self._request(head, header, frame, payload, place)
        elif header.kind is Kind.CANCEL:
            request_id = RequestId(header.client_id, header.request_no)
            self._questions.cancel(request_id)
            for region in self._memory.every():
                region.channel.cancel(request_id)
        elif header.kind is Kind.PING:
            self._start(self._pong(header.client_id, header.request_no))
        else:
            raise ProtocolError(f"a caller sent {header.kind.name}, which is not for nodes; update the older side")

    def _request(self, head: Head, header: Header, frame: bytes, payload: bytes, place: int | None) -> None:
        request = decode_request(frame, header)
        request_id = RequestId(request.client_id, request.request_no)
        layout = parse_layout(request.descriptors)
        if layout.body_bytes != request.body_bytes:
            raise ProtocolError("a request's tensors and its body differ in size; the connection is closed")
        if request_id in self._running:
            raise ProtocolError(f"request {request_id} came twice on one connection; the connection is closed")
        region = self._memory.newest
        memory: bytes | Lease
        if place is None:
            memory = payload[len(frame) : len(frame) + request.body_bytes]
            if len(memory) != request.body_bytes:
                raise ProtocolError("a request's body is cut; the connection is closed")
        else:
            found = self._memory.find(head.region)
            if found is None or found.note.number != head.region:
                raise ProtocolError("a request lies in a region that was not lent; the connection is closed")
            region, memory = found, found.input_at(request.body_offset, request.body_bytes)
        self._running.add(request_id)
        self._memory.began(region)
        body, note = Body(layout, memory), head.note

        def done(outcome: Answer | OverspillError) -> None:
            if isinstance(outcome, OverspillError) and isinstance(outcome, ArenaFull | ReplyTooLarge):
                self._start(self._serve(request, body, region, note), even_if_lost=True)
            else:
                self._finish(request, outcome, body, note)
                self._done(body, region)

        if self._lost or not self._questions.begin(request, body, region, len(self._running), done):
            self._start(self._serve(request, body, region, note))

    async def _serve(self, request: RequestFrame, body: Body, region: NodeRegion, reply_region: int) -> None:
        outcome: Answer | OverspillError
        try:
            outcome = await self._questions.answer(request, body, region, len(self._running))
        except Exception as error:  # noqa: BLE001 - a bug of ours must still end the caller's wait
            outcome = self._told(request, error)
        self._finish(request, outcome, body, reply_region)
        self._done(body, region)

    def _finish(self, request: RequestFrame, outcome: Answer | OverspillError, body: Body, reply_region: int) -> None:
        """Sends the final frame of a request."""
        # Before that frame: the id may come again as soon as it is there.
        self._running.discard(RequestId(request.client_id, request.request_no))
        if not isinstance(outcome, OverspillError):
            try:
                self._way_back.reply(request, outcome, reply_region, body)
            except Exception as error:  # noqa: BLE001 - a bug of ours must still end the caller's wait
                outcome = self._told(request, error)
                if isinstance(outcome, ReplyTooLarge):
                    self._questions.kept.owe(request.request_no, time.monotonic())
        if isinstance(outcome, OverspillError):
            self._way_back.refuse(request, outcome, body)
            self.look()

    def _told(self, request: RequestFrame, error: Exception) -> OverspillError:
        """What the caller is told of an error; a bug of ours has a fate that is true, too."""
        if isinstance(error, OverspillError):
            return error.with_traceback(None)
        _log.error("request %d of client %016x failed here", request.request_no, self.client_id, exc_info=error)
        return OverspillError("the node's rdma port failed on this request; its log tells why, report it")

    def _done(self, body: Body, region: NodeRegion) -> None:
        """The final frame of a request is out."""
        self._memory.ended(region)
        self._memory.freed()
        if isinstance(body.memory, Lease) and body.memory.slot.writers:
            self._start(self._release_later(body.memory, region))

    async def _release_later(self, lease: Lease, region: NodeRegion) -> None:
        """The final frame is out, and an executor may still read the input: the caller keeps the place until then."""
        end_s = time.monotonic() + HELD_S
        still = lease.slot
        while still.writers and time.monotonic() < end_s and region.channel.alive:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)
        self._way_back.tell(HeadKind.RELEASE, region=region.note.number, note=lease.offset // UNIT_BYTES)

    async def _pong(self, client_id: int, request_no: int) -> None:
        try:
            load = await self._memory.newest.channel.ping(Deadline.after(PING_S, time.monotonic()))
        except NodeLost as error:
            self.end(str(error))
        except OverspillError:
            return  # a node that is silent gives no sign of life, and neither do we for it
        else:
            self._way_back.tell(HeadKind.FRAME, encode_pong(client_id, request_no, load))

    # Regions, and the end.

    def _emptied(self, region: NodeRegion) -> None:
        self._start(self._end_session(region), even_if_lost=True)

    async def _end_session(self, region: NodeRegion) -> None:
        """Kept replies may lie in its arena: it ends when none of that time is left."""
        kept = self._questions.kept
        while len(kept):  # noqa: ASYNC110 - there is no hurry, and none is kept for longer than its time
            await asyncio.sleep(LOOK_S)
        region.channel.close(Deadline(time.monotonic()))

    async def _run_out(self) -> None:
        """What runs comes to its end, and kept replies stay for as long as the caller may ask for them elsewhere."""
        end_s, me, kept = time.monotonic() + HELD_S, asyncio.current_task(), self._questions.kept
        while time.monotonic() < end_s and (len(kept) or self._running or self._tasks - {me}):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self.bury()

    def _start(self, work: Coroutine[None, None, None], *, even_if_lost: bool = False) -> None:
        if self._lost and not even_if_lost:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
