"""The caller's end of the rdma wire, as a `Channel`: one connection to one node's rdma port.

A call takes a place in the node's region, has the NIC write its body there, and waits until the node has written the
reply into our own region. A small call is one frame each way. A region that is too small is replaced by a larger one
meanwhile; a call that cannot be carried at all raises `WireTooSmall`, and goes over another wire. Where the connection
breaks, every call raises NodeLost, and memory that the node may still write to stays out of use until its pairs are
destroyed. This module never chooses a wire. Read `fabric/rdma/calls.py` next, `fabric/rdma/serving.py` for the other
end.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from threading import Condition, RLock
from typing import TYPE_CHECKING, Final

from fabric.errors import Fate, NodeLost, OverspillError, ProtocolError, StaleEpoch
from fabric.frame import Kind, check_header, decode_error
from fabric.rdma.bell import await_through, wait_through
from fabric.rdma.calls import Calls
from fabric.rdma.choice import gid_text
from fabric.rdma.config import BULK_DEPTH, CTL_DEPTH, FRAME_ROOM
from fabric.rdma.connection import Connection
from fabric.rdma.handed import hand_over
from fabric.rdma.heads import FRAME, NO_REGION, HeadKind, frame_of
from fabric.rdma.neighbour import find_neighbour
from fabric.rdma.page_reads import page_life
from fabric.rdma.pings import Pings
from fabric.rdma.replies import Replies
from fabric.rdma.terms import Terms, agree, own_versions, pack_terms, read_terms
from fabric.rdma.window import Windows
from fabric.transport import PeerFacts, WireName
from fabric.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.frame import Load
    from fabric.load_page import Reading
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.rdma.choice import Choice
    from fabric.rdma.engine import Engine
    from fabric.rdma.heads import Head
    from fabric.rdma.line import Line
    from fabric.transport import Answer, Call

    Bootstrap = Callable[[bytes, Deadline], tuple[bytes, Line]]
    """Brings an offer to the node and its answer back, over a wire that is authenticated, and keeps the line open."""

# To look a member up in its enum costs 50 ns and more, for each message.
_REPLY: Final = Kind.REPLY
_ERROR: Final = Kind.ERROR


class RdmaChannel:  # mutable: open, then closed
    """A connection with a node. Made by `open`; whoever opens it ends it."""

    def __init__(self, engine: Engine, client_id: int, choice: Choice, arena: Arena | None) -> None:
        self._engine = engine
        self._client_id = client_id
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._reason = ""
        self._made = self._live = self._closing = False
        self.awaits: set[object] = set()  # something of each call: no lock is needed for that
        self._page = NO_REGION
        self._line: Line | None = None
        self._watcher = Watcher()
        self.peer_facts = PeerFacts("", 0, 0)
        self._connection = Connection(engine, self, choice, secrets.randbits(32), caller=True)
        self._pings = Pings(self._connection, client_id)
        config = engine.config
        try:
            self._replies = Replies(self._connection, config.arena_bytes, config.arena_bytes_max)
        except BaseException:  # whatever it was, nothing may stay behind it
            self._connection.close(NodeLost("there is no memory for this connection"))
            raise
        self._calls = Calls(self._connection, self._replies, arena, config)
        self._made = True

    @classmethod
    def open(
        cls, engine: Engine, bootstrap: Bootstrap, client_id: int, deadline: Deadline,
        expect: tuple[str, int] | None = None, arena: Arena | None = None,
    ) -> RdmaChannel:  # fmt: skip
        """Connects to the node that `bootstrap` asks. Blocks: not for the loop. `expect` is the (node id, node epoch)
        that should be there; inputs that lie in leases of `arena`, or of any other, are not copied again.

        Raises Unavailable where there is no device or the node refuses, NodeLost when its address does not answer,
        StaleEpoch, VersionMismatch, ResourceExhausted over the pinned budget, MissingDependency.
        """
        choice = engine.choose()
        channel = cls(engine, client_id, choice, arena)
        try:
            channel._greet(choice, bootstrap, deadline, expect)
        except BaseException as error:  # whatever it was, nothing may stay open behind it
            channel.abort(str(error) or "the channel could not be opened")
            if isinstance(error, OverspillError):
                error.fate = Fate.NEVER_RAN
            raise
        return channel

    @property
    def wire(self) -> WireName:
        """Always `rdma`."""
        return WireName.RDMA

    @property
    def peer(self) -> PeerFacts:
        """What the node said of itself."""
        return self.peer_facts

    @property
    def arena(self) -> Arena | None:
        """The caller's own arena: the NIC sends from it where it lies."""
        return self._calls.memory.arena

    @property
    def alive(self) -> bool:
        """False once the channel is closed or the connection is lost."""
        return self._live and not self._closing and not self._reason

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError."""
        if (loop := self._engine.interrupted()) is not None:
            return hand_over(lambda: self.call_async(call, deadline), deadline, loop)
        return wait_through(lambda ring: self._life(call, deadline, ring), deadline, self._connection.rounds)

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same on the running loop; cancelling it cancels the request at the node."""
        return await await_through(lambda ring: self._life(call, deadline, ring), deadline, self._connection.rounds)

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a running call, whose own outcome still comes. Safe from any thread."""
        self._calls.cancel(request)

    async def ping(self, deadline: Deadline) -> Load:
        """Asks the node's own code for a sign of life. Raises DeadlineExceeded or NodeLost."""
        self._calls.tidy(time.monotonic())
        return await await_through(lambda ring: self._pings.life(deadline, ring), deadline, self._connection.rounds)

    def read_page(self, deadline: Deadline) -> Reading:
        """Reads the node's load page with the NIC alone: nobody at the node is asked, so it is no sign of life. Raises
        Unavailable where the node has none or it stays torn, DeadlineExceeded, NodeLost."""
        of, mine = (self._connection, self._page), (self._client_id, self.peer_facts.node_epoch)
        rounds, make = self._connection.rounds, lambda ring: page_life(*of, *mine, deadline, ring)
        if (loop := self._engine.interrupted()) is not None:
            return hand_over(lambda: await_through(make, deadline, rounds), deadline, loop)
        return wait_through(make, deadline, rounds)

    def watch(self, doubted: Callable[[], None]) -> None:
        """`doubted()` is called, from any thread, when the connection is over: its line tells of the node's death."""
        self._watcher.watch(doubted)

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, then ends the connection."""
        with self._changed:
            self._closing = True
            left_s = deadline.remaining_s(time.monotonic())
            self._changed.wait_for(lambda: not (self.awaits and not self._reason), left_s)
        if not self._reason:
            with suppress(OverspillError):  # it is over already
                self._connection.send(HeadKind.BYE, control=True)
            if self._engine.in_loop():
                with self._changed:  # what a kernel has not sent when the pairs go into error, it never sends
                    self._changed.wait_for(lambda: self._reason != "", self._engine.config.ack_s)
        self.abort("closed by its owner")

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises NodeLost with this reason. Safe from any thread, twice too."""
        self._connection.close(NodeLost(reason))

    # What the connection tells.

    def view_of(self, region: int) -> memoryview | None:
        """The region that the node writes to."""
        found = self._replies.region(region)
        return found.arena.view if found is not None else None

    def lived(self) -> None:
        """Both pairs have proved themselves."""
        with self._changed:
            self._live = True
            self._changed.notify_all()

    def arrived(self, head: Head, payload: bytes, place: int | None) -> None:
        """A message of the node's. Raises ProtocolError."""
        if head.kind is not FRAME:
            if head.kind is HeadKind.BYE:
                raise NodeLost(f"the node ends the connection ({payload.rstrip(bytes(1)).decode(errors='replace')})")
            self._calls.told(head, payload)
            return
        header = check_header(frame := frame_of(payload))
        kind = header.kind
        if (kind is _REPLY or kind is _ERROR) and header.request_no:
            self._calls.answered(head, header, payload, place)
        elif kind is Kind.PONG:
            self._pings.answered(frame, header)
        elif kind is _ERROR:
            raise decode_error(frame, header).error
        else:
            raise ProtocolError(f"the node sent {header.kind.name}, which is not for callers; update the older side")

    def lost(self, error: OverspillError) -> None:
        """The connection is over."""
        with self._changed:
            self._reason = self._reason or str(error) or "the connection was lost"
            if self._made:
                self._calls.lost(error)
            self._pings.lost(self._reason)
            self._changed.notify_all()
            line, self._line = self._line, None
        if line is not None:
            line.close()
        self._watcher.end()

    def fenced(self) -> None:
        """Nobody writes any more: all memory is ours."""
        if self._made:
            self._calls.fenced()

    def _greet(
        self, choice: Choice, bootstrap: Bootstrap, deadline: Deadline, expect: tuple[str, int] | None
    ) -> None:  # fmt: skip
        engine, connection = self._engine, self._connection
        ctl, bulk = connection.notes
        oldest, newest = own_versions()
        ours = Terms(
            oldest, newest, "", expect[1] if expect is not None else 0, connection.epoch, choice.link_layer, choice.lid,
            gid_text(choice.gid), engine.mtu(choice), engine.read_depth, ctl, bulk, CTL_DEPTH, BULK_DEPTH, FRAME_ROOM,
            secrets.randbits(32), self._replies.current.note, NO_REGION,
        )  # fmt: skip
        answer, line = bootstrap(pack_terms(ours), deadline)
        self._hold(line)
        if answer[:4] != pack_terms(ours)[:4]:
            raise decode_error(answer, check_header(answer)).error
        theirs = read_terms(answer)
        if expect is not None and expect != (theirs.node_id, theirs.node_epoch):
            raise StaleEpoch(
                f"node {theirs.node_id} in epoch {theirs.node_epoch} answered, not {expect[0]} in {expect[1]};"
                " ask discovery again"
            )
        agreed = agree(ours, theirs)
        if (theirs.nonce, theirs.link_epoch) != (ours.nonce, ours.link_epoch):
            raise ProtocolError("the node answered another offer than ours; try again")
        find_neighbour(choice.address_of(theirs.gid), choice.address, engine.config.resolve_s)
        self.peer_facts = PeerFacts(theirs.node_id, theirs.node_epoch, agreed.version)
        self._page = theirs.page
        self._calls.begin(Windows(theirs.region), theirs.node_epoch)
        connection.connect(agreed, theirs)
        left_s = deadline.remaining_s(time.monotonic())
        with self._changed:
            if not self._changed.wait_for(lambda: self._live or self._reason != "", left_s):
                raise NodeLost(
                    "the node's queue pairs did not answer in time; see that UDP port 4791 passes between the two"
                    " RDMA addresses", Fate.NEVER_RAN,
                )  # fmt: skip
            if self._reason:
                raise NodeLost(self._reason, Fate.NEVER_RAN)

    def _hold(self, line: Line) -> None:
        with self._lock:
            if not self._reason:
                self._line = line
        if self._line is None:
            line.close()
        else:
            line.watch(self._line_ended)

    def _line_ended(self, why: str, told: bool) -> None:
        if told:
            self._connection.fail(NodeLost(f"the node has ended the connection ({why}); its requests go another way"))
        else:
            self._connection.doubt()

    def _life(self, call: Call, deadline: Deadline, ring: Callable[[], None]) -> Generator[None, None, Answer]:
        mine, running, awaited = object(), self.awaits, self._engine.awaited
        try:
            running.add(mine)  # before it is looked whether the channel closes, which says so before it looks at this
            awaited.add(mine)
            if not self.alive:
                raise NodeLost(f"the channel is closed ({self._reason or 'closing'}); choose another", Fate.NEVER_RAN)
            return (yield from self._calls.life(call, deadline, ring))
        except ProtocolError as error:
            self._connection.fail(error)
            raise
        finally:
            awaited.discard(mine)
            running.discard(mine)
            if self._closing:
                with self._changed:
                    self._changed.notify_all()

    def __repr__(self) -> str:
        state = "open" if self.alive else f"closed: {self._reason}"
        return f"<RdmaChannel to {self.peer_facts.node_id} epoch {self.peer_facts.node_epoch}, {state}>"
