"""The place of one copier: its process, what it has mapped, and the one piece that it is at.

Whatever becomes of the process, the piece is told as done or as undone; as undone only when the process is dead, and
can write nothing any more. This module never decides who copies what. Read `frontdoor/copiers.py` next.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frontdoor.copier import DO_COPY, DO_FORGET, DO_MAP, DONE, FORGET_MAX, NO_SOURCE, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from frontdoor.mappable import Mappable
    from frontdoor.together import Together

PIECE_BYTES_A_SECOND: Final = 64 << 20
"""Of the slowest copy that is waited for: a hundredth of what memory does."""
END_TIMEOUT_S: Final = 5.0
"""How long a killed process is waited for when all ends."""
_PROGRAM: Final = str(Path(__file__).with_name("copier.py"))


@dataclass(frozen=True, slots=True)
class Piece:
    """What one copier copies at once, between a client's memory and ours. `at` is its place in the whole copy."""

    at: int
    nbytes: int
    client: Mappable
    client_at: int
    ours: Mappable
    ours_at: int
    outward: bool
    batch: Together[Piece | None]
    """It is told the piece if it is undone, None if it is done."""

    def message(self) -> bytes:
        """What a copier is told of it."""
        if self.outward:
            return words(
                DO_COPY, self.ours.number, self.ours_at, self.client.number, self.client_at, self.nbytes
            )  # fmt: skip
        return words(DO_COPY, self.client.number, self.client_at, self.ours.number, self.ours_at, self.nbytes)

    def missing(self, answer: bytes) -> Mappable:
        """What a copier that did not copy had not mapped."""
        return self.ours if (answer == NO_SOURCE) == self.outward else self.client


@dataclass(frozen=True, slots=True)
class Started:
    """A process, our end of its socket, and what tells of its end. Both are closed by whoever has it."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    pidfd: int

    def end(self) -> int:
        """Ends the process, if it has not ended, and lets go of it; gives its exit code."""
        self.sock.close()
        os.close(self.pidfd)
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(END_TIMEOUT_S)
        return 0


def start() -> Started:
    """Starts a copier. It dies with the thread that calls this (prctl(2), PR_SET_PDEATHSIG). Raises OSError when the
    system cannot give another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # ours is the node's to read
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a Ctrl-C at the node's terminal is the node's to handle
            )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
    except OSError:
        ours.close()
        raise
    ours.settimeout(0.0)
    return Started(process, ours, pidfd)


class Seat:  # mutable: empty, then a process that is idle, at a piece or dying, then empty again
    """The place of one copier. `on_idle` hears that it could do more, `on_death` how its process has ended. A piece may
    take `timeout_s`, and longer for its bytes. Used on one loop."""

    def __init__(
        self, on_idle: Callable[[Seat], None], on_death: Callable[[Seat, str], None], timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._on_idle = on_idle
        self._on_death = on_death
        self._started: Started | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dying = False
        self._late = False
        self.is_fit = False
        """Whether its process, or the last one, copied anything, or died of a client's memory or by others' will."""
        self._piece: Piece | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._mapped: set[int] = set()
        self._forgotten: list[int] = []

    @property
    def empty(self) -> bool:
        """Whether there is no process."""
        return self._started is None

    @property
    def alive(self) -> bool:
        """Whether its process copies, now or when it is asked."""
        return self._started is not None and not self._dying

    @property
    def idle(self) -> bool:
        """Whether it would copy at once."""
        return self.alive and self._piece is None

    def take(self, started: Started) -> None:
        """Its process from now on."""
        assert self._started is None, "one after the other"
        self._loop = asyncio.get_running_loop()
        self._started, self._dying, self._late, self.is_fit = started, False, False, False
        self._loop.add_reader(started.sock.fileno(), self._hear)
        self._loop.add_reader(started.pidfd, self._ended)

    def copy(self, piece: Piece) -> None:
        """Has it copy; whatever happens, the piece's batch hears of it."""
        assert self.idle, "one after the other"
        assert self._started is not None, "it is alive"
        assert self._loop is not None, "it is alive"
        self._piece = piece
        self._timer = self._loop.call_later(self._timeout_s + piece.nbytes / PIECE_BYTES_A_SECOND, self._too_late)
        self._tell_forgotten()
        try:
            for memory in (piece.client, piece.ours):
                if memory.number not in self._mapped:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [memory.fd]))
                    self._started.sock.sendmsg([words(DO_MAP, memory.number, memory.nbytes, memory.begin)], [rights])
                    self._mapped.add(memory.number)
            self._started.sock.send(piece.message())
        except OSError:  # it is gone, or reads nothing
            self._kill()

    def forget(self, number: int) -> None:
        """Has it unmap memory, soon."""
        if number in self._mapped:
            self._mapped.discard(number)
            self._forgotten.append(number)
            if self.idle and len(self._forgotten) == 1:
                assert self._loop is not None, "it is alive"
                self._loop.call_soon(self._tell_forgotten)  # together with all that go in this turn

    def end(self) -> None:
        """Ends its process; afterwards it writes nothing any more."""
        if self._started is not None:
            self._let_go(self._started)

    def _tell_forgotten(self) -> None:
        while self._forgotten and self._started is not None:
            told = self._forgotten[-FORGET_MAX:]
            try:
                self._started.sock.send(words(DO_FORGET, *told))
            except OSError:
                self._kill()
                return
            del self._forgotten[-FORGET_MAX:]

    def _hear(self) -> None:
        assert self._started is not None, "heard while there is a process"
        try:
            answer = self._started.sock.recv(1)
        except BlockingIOError:
            return
        except OSError:  # it died with our words unread
            answer = b""
        if not answer:
            assert self._loop is not None, "it is alive"
            self._loop.remove_reader(self._started.sock.fileno())
            self._kill()
            return
        if self._dying or self._piece is None:
            return  # killed for being late: what its piece came to is told when it is dead
        piece, self._piece = self._piece, None
        self.is_fit = True
        if self._timer is not None:
            self._timer.cancel()
        if answer != DONE:
            missing = piece.missing(answer)
            self._mapped.discard(missing.number)
            missing.spoiled = missing is piece.client  # what is ours is told again with the next piece
        self._tell_forgotten()
        if self.idle:
            self._on_idle(self)
        piece.batch.end(None if answer == DONE else piece)

    def _too_late(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        self._dying = True
        if self._started is not None:
            self._started.process.kill()

    def _ended(self) -> None:
        assert self._started is not None, "seen while there is a process"
        code = self._let_go(self._started)
        self.is_fit |= code == -signal.SIGBUS or (code == -signal.SIGKILL and not self._late)
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self._on_death(self, "did not answer and was killed" if self._late else ending)

    def _let_go(self, started: Started) -> int:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(started.pidfd)
            self._loop.remove_reader(started.sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
        code = started.end()
        self._started = None
        self._mapped.clear()
        self._forgotten.clear()
        piece, self._piece = self._piece, None
        if piece is not None:
            # One that never answered may be late for reasons of its own.
            piece.client.spoiled |= code == -signal.SIGBUS or (self._late and self.is_fit)
            piece.batch.end(piece)
        return code
