"""One connection to one peer: two queue pairs in a domain of their own, from their making to their end.

The frame pair carries heads with frames, and bodies that fit behind them; the bulk pair writes large bodies into the
peer's region, piece by piece. Both ends use it alike. Posts come from callers' threads and from the loop, under one
lock; completions are handled in the loop's thread, and the owner is told without the lock. Where its life stands says
`fabric/rdma/lifecycle.py`. This module knows no request. Read `fabric/rdma/channel.py` or `serving.py` next.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from fabric.errors import Fate, NodeLost, OverspillError
from fabric.quiet_lock import quiet_lock
from fabric.rdma.asides import Asides
from fabric.rdma.config import CUT_S
from fabric.rdma.heads import HeadKind
from fabric.rdma.intake import Intake
from fabric.rdma.lifecycle import LinkDo, LinkEvent, LinkState, step
from fabric.rdma.pair import Route
from fabric.rdma.pairs import Pairs
from fabric.rdma.posts import Posts
from fabric.rdma.pulse import Pulse
from fabric.rdma.settling import Settled, Settling
from fabric.rdma.talk import Message, Nobody, Talk

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fabric.rdma.choice import Choice
    from fabric.rdma.device import Done
    from fabric.rdma.domain import Use
    from fabric.rdma.engine import Engine
    from fabric.rdma.heads import RegionNote
    from fabric.rdma.outbox import Write
    from fabric.rdma.registered import Registered
    from fabric.rdma.talk import Owner
    from fabric.rdma.terms import Agreed, PairNote, Terms

DRAIN_S: Final = 0.5  # what was posted comes back within milliseconds, and pairs that are destroyed reach nothing
_LIVE: Final = LinkState.LIVE  # to look a member up in its enum costs 50 ns and more, for each message
_CONNECTED: Final = LinkState.CONNECTED
_DRAINING: Final = LinkState.DRAINING


class Connection:  # mutable: its state is its life
    """Made in OFFERED: its pairs exist and its receives are posted. Raises what the engine and the device raise."""

    def __init__(self, engine: Engine, owner: Owner, choice: Choice, epoch: int, *, caller: bool) -> None:
        self.gid = choice.gid
        self._engine, self._owner, self._caller = engine, owner, caller
        self._talk = Talk(epoch)
        self.lock: AbstractContextManager[object] = quiet_lock() if caller else nullcontext()  # a node: one thread
        self._state, self._cut = LinkState.NEW, False
        self._error: OverspillError | None = None
        self._pairs = Pairs(engine, self, choice)
        self.rounds = self._pairs.rounds
        self._asides = Asides(self._pairs, Pulse(engine.config, time.monotonic()))
        self._posts = Posts(self._pairs, self._talk, engine.config.piece_bytes)
        self._intake = Intake(self._pairs, self._talk, self._posts, owner, answers=not caller)
        self._settling = Settling(self._pairs, self._posts, self._intake, self._asides)
        try:
            self._pairs.post_receives()
            with self.lock:
                if self._error is not None:  # the engine was closed meanwhile
                    raise self._error
                self._state, _ = step(self._state, LinkEvent.POSTED)
        except BaseException:  # whatever it was, nothing may stay behind it
            self._pairs.destroy()
            raise

    @property
    def live(self) -> bool:
        """Whether frames may be sent."""
        return self._state is _LIVE

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
        with self.lock:
            if self._state is not LinkState.OFFERED:
                raise self.error
            self._pairs.connect(ctl, bulk)
            self._talk.agree(agreed, theirs.nonce)
            self._posts.peer_region = self._asides.peer = theirs.region
            self._state, _ = step(self._state, LinkEvent.AGREED)
            self.rounds.open()
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
        """The same for a message that is made."""
        with self.lock:
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
        with self.lock:
            self._check_live()
            write = self._posts.put_write(source, note, offset, long_at, message, done)
            self._pump()
        return write

    def read(self, note: RegionNote, parts: tuple[tuple[int, int], ...], done: Callable[[bytes], None]) -> None:
        """Reads (offset, bytes) parts of a region that the peer lets us read, in this order; `done` gets all of them,
        in the loop's thread. One at a time. Raises NodeLost, ResourceExhausted."""
        with self.lock:
            self._check_live()
            self._asides.read(note, parts, done)

    def withdraw(self, message: Message, write: Write | None) -> bool:
        """Takes back what was not posted; says whether nothing of it was."""
        with self.lock:
            withdrawn = self._posts.withdraw(message, write)
        if withdrawn and write is not None:
            write.done()
        return withdrawn

    def fail(self, error: OverspillError, *, cut: bool = False) -> None:
        """The connection is broken, for this reason; `cut`: at our own port. Safe from any thread, and twice."""
        self._cut = self._cut or cut
        self._handle(LinkEvent.BROKEN, error)

    def close(self, error: OverspillError) -> None:
        """We end it. Safe from any thread, and twice."""
        self._handle(LinkEvent.CLOSED, error)

    def tend(self, now: float) -> None:
        """Sees to it that a peer that died does not stay unnoticed; the engine calls it every now and then."""
        broken: OverspillError | None = None
        with self.lock:
            if self._state is not _LIVE:
                return
            pulse = self._asides.pulse
            if pulse.overdue(now):
                broken = NodeLost("the peer's NIC acknowledges nothing any more; its requests go another way")
            elif pulse.due(now, awaited=bool(self._owner.awaits)):
                broken = self._asked(now)
        if broken is not None:
            self.fail(broken)

    def doubt(self) -> None:
        """There is reason to doubt the peer: its NIC has the time of one acknowledgement. Safe from any thread."""
        pulse, now = self._asides.pulse, time.monotonic()
        with self.lock:
            if self._state is not _LIVE:
                return
            self.rounds.open()
            if (broken := self._asked(now)) is None:
                pulse.hurry(now)
        if broken is not None:
            self.fail(broken)
        else:
            self._engine.call_later(pulse.quick_s, lambda: self.tend(time.monotonic()))

    def end_now(self) -> None:
        """What was posted is not waited for any longer."""
        self._handle(LinkEvent.OVERDUE)

    def register(self, address: int, nbytes: int, use: Use) -> Registered:
        """Registers memory in this connection's domain, until its end or before. Raises ResourceExhausted."""
        with self.lock:
            if self._state in {_DRAINING, LinkState.GONE}:
                raise NodeLost(str(self.error), Fate.NEVER_RAN)
            return self._pairs.register(address, nbytes, use)

    def completed(self, done: list[Done]) -> None:
        """What the pairs have done; in the loop's thread."""
        with self.lock:
            state = self._state
            settled = self._settling.settle(done, draining=state is _DRAINING)
            if settled.broken is None and (state is _LIVE or state is _CONNECTED):
                try:
                    self._posts.pump_with_credit()
                except OverspillError as error:
                    settled.broken = error
            proved = state is _CONNECTED and self._talk.proved
            drained = state is _DRAINING and self._pairs.drained and not self._cut
            if at_once := self._caller and state is _LIVE:
                self._deliver(settled)
        for write in settled.whole:
            write.done()
        if proved:
            self._handle(LinkEvent.PROVED)
        if not at_once:
            self._deliver(settled)
        if settled.broken is not None:
            self.fail(settled.broken, cut=settled.cut)
        if drained:
            self._handle(LinkEvent.DRAINED)

    def _deliver(self, settled: Settled) -> None:
        """Gives the owner what came: a caller under this lock, which it needs."""
        try:
            for head, payload, place in settled.arrived:
                self._owner.arrived(head, payload, place)
        except OverspillError as error:
            settled.broken = settled.broken or error

    # Under the lock.

    def _check_live(self) -> None:
        if self._state is not _LIVE:
            raise NodeLost(str(self.error), Fate.NEVER_RAN)

    def _asked(self, now: float) -> OverspillError | None:
        try:
            self._asides.ask(now)
        except OverspillError as error:
            return error.with_traceback(None)
        return None

    def _pump(self) -> None:
        """Posts what may be posted; where the device refuses, the connection ends, which tells whoever waits."""
        try:
            self._posts.pump()
        except OverspillError as error:
            broken = error.with_traceback(None)
            self._engine.call_soon(lambda: self.fail(broken))

    # The end.

    def _handle(self, event: LinkEvent, error: OverspillError | None = None) -> None:
        tell: list[Callable[[], None]] = []
        with self.lock:
            if self._state is LinkState.NEW:  # it is still being made, and whoever makes it looks
                self._error = self._error or error
                return
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
            tell.append(self.rounds.open)
            try:
                self._pairs.stop()
            except OverspillError:  # the device takes no marker: the overdue timer ends the wait
                return
        elif do is LinkDo.AWAIT_DRAIN:
            self._pairs.end_later(CUT_S if self._cut else DRAIN_S)
        elif do is LinkDo.TELL_LOST:
            self._posts.drop_frames()
            error, owner = self.error, self._owner
            tell.append(lambda: owner.lost(error))
        elif do is LinkDo.DESTROY:
            tell += [write.done for write in self._posts.drop()]
            self._pairs.destroy()
        elif do is LinkDo.TELL_FENCED:
            tell.append(self._owner.fenced)
            self._owner = self._intake.owner = Nobody()
