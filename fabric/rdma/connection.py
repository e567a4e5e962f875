"""One connection to one peer: two queue pairs in a domain of their own, from their making to their end.

The frame pair carries heads with frames, and bodies that fit behind them; the bulk pair writes large bodies into the
peer's region, piece by piece. Both ends use it alike. Posts come from callers' threads and from the loop, under one
lock; completions are handled in the loop's thread, and the owner is told without the lock. Where its life stands says
`fabric/rdma/lifecycle.py`. This module knows no request. Read `fabric/rdma/channel.py` or `serving.py` next.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fabric.errors import Fate, NodeLost, OverspillError, ResourceExhausted
from fabric.rdma.heads import HeadKind
from fabric.rdma.intake import Intake
from fabric.rdma.lifecycle import LinkDo, LinkEvent, LinkState, step
from fabric.rdma.pair import Route
from fabric.rdma.pairs import (
    BULK_RECEIVED,
    CTL_RECEIVED,
    CTL_SENT,
    MARKER,
    PIECE_SENT,
    READ_DONE,
    SCRATCH_BYTES,
    Pairs,
    kind_of,
)
from fabric.rdma.posts import Posts
from fabric.rdma.talk import Message, Talk
from fabric.rdma.verbs import ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rdma.choice import Choice
    from fabric.rdma.device import Done
    from fabric.rdma.domain import Use
    from fabric.rdma.engine import Engine
    from fabric.rdma.heads import Head, RegionNote
    from fabric.rdma.outbox import Write
    from fabric.rdma.pairs import Registered
    from fabric.rdma.talk import Owner
    from fabric.rdma.terms import Agreed, PairNote, Terms

DRAIN_S = 1.0
"""What was posted comes back within milliseconds; a device that does not give it back is not waited for longer."""
_SPEAKS = frozenset({LinkState.CONNECTED, LinkState.LIVE})
_RECEIVES = frozenset({CTL_RECEIVED, BULK_RECEIVED})
_ENDS = frozenset({LinkState.DRAINING, LinkState.GONE})


class Connection:  # mutable: its state is its life
    """Made in OFFERED: its pairs exist and its receives are posted. Raises what the engine and the device raise."""

    def __init__(self, engine: Engine, owner: Owner, choice: Choice, epoch: int, *, caller: bool) -> None:
        self.gid = choice.gid
        self._engine, self._owner, self._caller = engine, owner, caller
        self._talk = Talk(epoch)
        self._lock = threading.RLock()
        self._state = LinkState.NEW
        self._error: OverspillError | None = None
        self._read: tuple[int, int, Callable[[bytes], None]] | None = None
        self._pairs = Pairs(engine, self, choice)
        self._posts = Posts(self._pairs, self._talk, engine.config.piece_bytes)
        self._intake = Intake(self._pairs, self._talk, self._posts, owner.view_of, answers=not caller)
        try:
            self._pairs.post_receives()
            self._state, _ = step(self._state, LinkEvent.POSTED)
        except BaseException:  # whatever it was, nothing may stay behind it
            self._pairs.destroy()
            raise

    @property
    def live(self) -> bool:
        """Whether frames may be sent."""
        return self._state is LinkState.LIVE

    @property
    def error(self) -> OverspillError:
        """Why it is over."""
        return self._error or NodeLost("the rdma connection is not open; use another wire", Fate.NEVER_RAN)

    @property
    def epoch(self) -> int:
        """The link epoch: what carries another one is of another connection."""
        return self._talk.epoch

    @property
    def frame_room(self) -> int:
        """What one message of the frame pair may take, with its head."""
        return self._talk.frame_room

    @property
    def notes(self) -> tuple[PairNote, PairNote]:
        """Our pairs, as the peer must know them."""
        return self._pairs.notes

    def connect(self, agreed: Agreed, theirs: Terms) -> None:
        """Connects the pairs to the peer's, whose address is resolved; a caller says HELLO. Raises Unavailable."""
        ctl, bulk = (
            Route(note.qp_num, note.psn, theirs.gid, theirs.lid, agreed.mtu, agreed.read_depth)
            for note in (theirs.ctl, theirs.bulk)
        )
        with self._lock:
            if self._state is not LinkState.OFFERED:
                raise self.error
            self._pairs.connect(ctl, bulk)
            self._talk.agree(agreed, theirs.nonce)
            self._posts.peer_region = theirs.region
            self._state, _ = step(self._state, LinkEvent.AGREED)
            if self._caller:
                self._posts.greet(HeadKind.HELLO)
                self._posts.greet_on_bulk()

    def send(
        self, kind: HeadKind, payload: bytes = b"", *, flags: int = 0, region: int = 0, note: int = 0,
        control: bool = False,
    ) -> Message:  # fmt: skip
        """Sends a message on the frame pair, now or when there is credit. Raises NodeLost, ResourceExhausted."""
        message = Message(kind, payload, flags, region, note)
        self.post(message, control=control)
        return message

    def post(self, message: Message, *, control: bool = False) -> None:
        """The same for a message that is made already."""
        with self._lock:
            self._check_live()
            self._posts.put(message, control=control)
            self._pump()

    def write(
        self, source: tuple[int, int, int], note: RegionNote, offset: int, long_at: int, message: Message,
        done: Callable[[], None],
    ) -> Write:  # fmt: skip
        """Writes a body to `offset` of the peer's region `note`, and then the message that tells of it: to the frames'
        place that is next, or to `long_at` if it is too long for one. `source` is (address, bytes, lkey). `done` is
        called when our memory is ours again. Raises NodeLost, ResourceExhausted."""
        with self._lock:
            self._check_live()
            write = self._posts.put_write(source, note, offset, long_at, message, done)
            self._pump()
        return write

    def read(self, note: RegionNote, parts: tuple[tuple[int, int], ...], done: Callable[[bytes], None]) -> None:
        """Reads (offset, bytes) parts of a region that the peer lets us read, in this order; `done` gets all of them,
        in the loop's thread. One at a time. Raises NodeLost, ResourceExhausted."""
        size = sum(nbytes for _, nbytes in parts)
        assert size <= SCRATCH_BYTES, "read into scratch memory"
        with self._lock:
            self._check_live()
            if self._read is not None:
                raise ResourceExhausted("a read of the same peer is on its way; wait for that")
            self._read = (len(parts) - 1, size, done)
            self._pairs.post_reads(note.rkey, tuple((note.base + offset, nbytes) for offset, nbytes in parts))

    def withdraw(self, message: Message, write: Write | None) -> bool:
        """Takes back what was not posted; says whether nothing of it was."""
        with self._lock:
            withdrawn = self._posts.withdraw(message, write)
        if withdrawn and write is not None:
            write.done()
        return withdrawn

    def fail(self, error: OverspillError) -> None:
        """The connection is broken, for this reason. Safe from any thread, and twice."""
        self._handle(LinkEvent.BROKEN, error)

    def close(self, error: OverspillError) -> None:
        """We end it. Safe from any thread, and twice."""
        self._handle(LinkEvent.CLOSED, error)

    def register(self, address: int, nbytes: int, use: Use) -> Registered:
        """Registers memory in this connection's domain, within the budget. It is closed with the connection, or before.
        Raises ResourceExhausted."""
        with self._lock:
            if self._state in _ENDS:
                raise NodeLost(str(self.error), Fate.NEVER_RAN)
            return self._pairs.register(address, nbytes, use)

    def completed(self, done: list[Done]) -> None:
        """What the pairs have done; in the loop's thread."""
        arrived: list[tuple[Head, bytes, int | None]] = []
        whole: list[Write] = []
        broken: OverspillError | None = None
        with self._lock:
            for each in done:
                try:
                    self._settle(each, arrived, whole)
                except OverspillError as error:  # what came before it is good, and what comes behind it is flushed
                    broken = broken or error
            if broken is None and self._state in _SPEAKS:
                try:
                    self._posts.pump_with_credit()
                except OverspillError as error:
                    broken = error
            proved = self._state is LinkState.CONNECTED and self._talk.proved
            drained = self._state is LinkState.DRAINING and self._pairs.drained
        for write in whole:
            write.done()
        if proved:
            self._handle(LinkEvent.PROVED)
        try:
            for head, payload, place in arrived:
                self._owner.arrived(head, payload, place)
        except OverspillError as error:
            broken = broken or error
        if broken is not None:
            self.fail(broken)
        if drained:
            self._handle(LinkEvent.DRAINED)

    # Under the lock.

    def _check_live(self) -> None:
        if self._state is not LinkState.LIVE:
            raise NodeLost(str(self.error), Fate.NEVER_RAN)

    def _pump(self) -> None:
        """Posts what may be posted; where the device refuses, the connection ends, which tells whoever waits."""
        try:
            self._posts.pump()
        except OverspillError as error:
            broken = error.with_traceback(None)
            self._engine.call_soon(lambda: self.fail(broken))

    def _settle(self, done: Done, arrived: list[tuple[Head, bytes, int | None]], whole: list[Write]) -> None:
        kind, number = kind_of(done.wr_id)
        if kind in _RECEIVES and (done.status or self._state is LinkState.DRAINING):
            self._pairs.receive_came_back()
        if kind == MARKER:
            self._pairs.came_back(number)
        elif done.status:
            if self._state is not LinkState.DRAINING:
                name = ERRORS.get(done.status, str(done.status))
                raise NodeLost(f"the rdma connection broke ({name}); its requests go another way")
        elif kind == PIECE_SENT:
            whole += self._posts.settled(number)
        elif kind == CTL_SENT:
            self._pairs.sent(number)
        elif kind == READ_DONE:
            reading = self._read
            if reading is not None and number == reading[0]:
                self._read = None
                reading[2](self._pairs.scratch(reading[1]))
        elif self._state is not LinkState.DRAINING:
            intake = self._intake
            message = intake.frame(number, done) if kind == CTL_RECEIVED else intake.written(done)
            if message is not None:
                arrived.append(message)

    # The end.

    def _handle(self, event: LinkEvent, error: OverspillError | None = None) -> None:
        tell: list[Callable[[], None]] = []
        with self._lock:
            self._state, dos = step(self._state, event)
            if error is not None and self._error is None and dos:
                self._error = error.with_traceback(None)
            for do in dos:
                self._carry_out(do, tell)
        for action in tell:
            action()

    def _carry_out(self, do: LinkDo, tell: list[Callable[[], None]]) -> None:
        if do is LinkDo.TELL_LIVE:
            tell.append(self._owner.lived)
        elif do is LinkDo.STOP:
            try:
                self._pairs.stop()
            except OverspillError:  # the device takes no marker: the overdue timer ends the wait
                return
        elif do is LinkDo.AWAIT_DRAIN:
            # The engine holds it while it drains; after that the timer must not hold it, and its memory, any longer.
            drained = weakref.ref(self)
            self._engine.call_later(DRAIN_S, lambda: _overdue(drained()))
        elif do is LinkDo.TELL_LOST:
            self._posts.drop_frames()
            error = self.error
            tell.append(lambda: self._owner.lost(error))
        elif do is LinkDo.DESTROY:
            left = self._posts.drop()
            self._pairs.destroy()
            tell += [write.done for write in left]
        elif do is LinkDo.TELL_FENCED:
            tell.append(self._owner.fenced)


def _overdue(connection: Connection | None) -> None:
    if connection is not None:
        connection._handle(LinkEvent.OVERDUE)
