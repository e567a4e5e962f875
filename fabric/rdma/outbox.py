"""Large writes: cut into pieces, taken in turn, so that several are on their way and none waits for all of another.

A write takes its credit when it begins and ends with the one piece that tells the peer; what is posted is bounded. The
queue pair works in order, so a completion settles everything that was posted before it. This module never posts:
`fabric/rdma/connection.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fabric.rdma.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW: Final = 8
"""Pieces posted at a time."""
SIGNAL_EVERY: Final = 4
SIGNAL_UNTIL: Final = 6
"""Pieces after which one asks for a completion; the last of a body may leave that to the frame behind it, and a frame
to the body that is posted behind it at once, as long as the window never fills with pieces that do not. Half of the
bytes that may be posted ask for one too: the device still has as many to do when it is told of these."""
COUNT_MASK: Final = (1 << 28) - 1
"""What of a sequence number comes back with its completion."""
QUEUE_MAX: Final = 1024
"""Writes that may wait; callers are bounded by their arenas long before."""


class Write:  # mutable: cut piece by piece
    """A body in registered memory of ours, and the frame that follows it. `done` is called once: the memory is
    ours again. `begun` says that something of it was posted."""

    __slots__ = (
        "_at",
        "address",
        "begun",
        "done",
        "frame_address",
        "imm",
        "lkey",
        "message",
        "nbytes",
        "remote",
        "rkey",
    )

    def __init__(
        self, address: int, nbytes: int, lkey: int, remote: int, rkey: int,
        message: Callable[[], tuple[int, int, int, int, int]], done: Callable[[], None],
    ) -> None:  # fmt: skip
        self.address, self.nbytes, self.lkey = address, nbytes, lkey
        self.remote, self.rkey = remote, rkey
        self.imm = 0
        self.message = message
        """Puts head and frame into registered memory, as late as possible: (address, bytes, lkey, where they go, the
        immediate number)."""
        self.done = done
        self.begun = False
        self.frame_address = 0
        self._at = 0

    @property
    def whole(self) -> bool:
        """Whether only the frame is left."""
        return self._at >= self.nbytes

    def next(self, piece_bytes: int) -> tuple[int, int, int] | None:
        """(address, bytes, remote) of the next piece of the body; None when only the frame is left."""
        if self._at >= self.nbytes:
            return None
        size = min(piece_bytes, self.nbytes - self._at)
        cut = (self.address + self._at, size, self.remote + self._at)
        self._at += size
        return cut


@final
@dataclass(init=False, slots=True)
class Piece:  # mutable: made for each piece, see fabric/frame_values.py
    """One post: `nbytes` from `address` to `remote`. `last` is the piece that tells the peer, with the frame."""

    write: Write
    address: int
    nbytes: int
    lkey: int
    remote: int
    last: bool
    signaled: bool

    def __init__(
        self, write: Write, address: int, nbytes: int, lkey: int, remote: int, last: bool, signaled: bool
    ) -> None:  # fmt: skip
        self.write = write
        self.address = address
        self.nbytes = nbytes
        self.lkey = lkey
        self.remote = remote
        self.last = last
        self.signaled = signaled


class Outbox:  # mutable: a queue
    """The writes of one connection. `take` gives pieces to post; `settled(sequence)` says that those were done."""

    __slots__ = (
        "_active", "_first", "_pace", "_piece_bytes", "_posted", "_posted_bytes", "_queue", "_since_bytes",
        "_since_signal", "_window",
    )  # fmt: skip

    def __init__(self, piece_bytes: int, window: int = WINDOW) -> None:
        self._piece_bytes = piece_bytes
        self._window = window
        self._queue: deque[Write] = deque()
        self._active: deque[Write] = deque()
        self._posted: deque[tuple[Write, bool, int]] = deque()
        self._posted_bytes = 0
        self._first = 0
        self._since_signal = self._since_bytes = 0
        self._pace = Pace()

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be posted."""
        return not self._queue and not self._active

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._queue) >= QUEUE_MAX

    @property
    def posted(self) -> int:
        """Pieces that are out."""
        return len(self._posted)

    def put(self, write: Write) -> None:
        """Queues a write."""
        self._queue.append(write)

    def small_frame(self) -> None:
        """One goes on the other pair now: for a while less is posted, in smaller pieces."""
        self._pace.small_frame()

    def take(self, may_begin: Callable[[], bool]) -> tuple[Piece, int] | None:
        """The next piece to post, and its sequence number; None when nothing may be posted now. `may_begin` takes a
        credit for one more write, or says that there is none."""
        if len(self._posted) >= self._window:
            return None
        while self._queue and len(self._active) < self._window and may_begin():
            self._active.append(self._queue.popleft())
        if not self._active:
            return None
        write, window_bytes = self._active[0], self._pace.window_bytes
        if self._posted_bytes >= window_bytes and not write.whole and self._since_signal < len(self._posted):
            return None  # else none of them will be told of: one more is, which the window may be too small for by now
        self._active.popleft()
        write.begun = True
        cut = write.next(min(self._piece_bytes, window_bytes // 2))
        if cut is None:
            address, nbytes, lkey, remote, write.imm = write.message()
            write.frame_address = address
            piece = Piece(write, address, nbytes, lkey, remote, last=True, signaled=not self._follows())
            nbytes = 0
        else:
            address, nbytes, remote = cut
            self._posted_bytes += nbytes
            if write.whole:
                self._active.appendleft(write)  # its frame follows at once
                signaled = self._since_signal + 1 >= SIGNAL_UNTIL
            else:
                self._active.append(write)  # behind the others
                signaled = self._since_signal + 1 >= SIGNAL_EVERY or self._posted_bytes >= window_bytes
            piece = Piece(write, address, nbytes, write.lkey, remote, last=False, signaled=signaled)
        self._since_signal = 0 if piece.signaled else self._since_signal + 1
        self._since_bytes = 0 if piece.signaled else self._since_bytes + nbytes
        self._posted.append((write, piece.last, nbytes))
        return piece, self._first + len(self._posted) - 1

    def _follows(self) -> bool:
        """Whether a frame may leave its completion to what is taken next, which there is room for now."""
        window_bytes = self._pace.window_bytes
        return (
            bool(self._active)
            and len(self._posted) + 1 < self._window
            and self._posted_bytes < window_bytes
            and self._since_signal + 1 < SIGNAL_EVERY
            and self._since_bytes < window_bytes // 2
        )

    def settled(self, sequence: int, now_s: float) -> list[Write]:
        """Everything up to this one (known by its last bits) is done; gives the writes that are whole."""
        whole, done_bytes = [], 0
        sequence = self._first + ((sequence - self._first) & COUNT_MASK)
        while self._posted and self._first <= sequence:
            write, last, nbytes = self._posted.popleft()
            done_bytes += nbytes
            self._first += 1
            if last:
                whole.append(write)
        self._posted_bytes -= done_bytes
        self._pace.settled(done_bytes, now_s, is_idle=not self._posted and self.empty)
        return whole

    def withdraw(self, write: Write) -> bool:
        """Takes a write back of which nothing was posted; says whether that was so."""
        if write.begun or write not in self._queue:
            return False
        self._queue.remove(write)
        return True

    def drop(self) -> list[Write]:
        """The connection is over: gives all that was not settled, each once."""
        left = dict.fromkeys([*(each[0] for each in self._posted), *self._active, *self._queue])
        self._posted.clear()
        self._active.clear()
        self._queue.clear()
        return list(left)
