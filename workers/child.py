"""One executor's process as its node holds it: the socket to it, the page it writes, and the handle it is killed by.

A pidfd names the process without doubt, also after its number was given to another. What the process cannot take now
waits in an outbox, so the node never blocks on it. This module decides nothing: `workers/shell.py` does. Read it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.local.sockets import close_all, receive_now, receive_with_descriptors, send_now, seqpacket_pair
from workers.device import FAKE_UUID
from workers.page import SharedPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fabric.local.reactor import Reactor

OUTBOX_MAX = 1 << 17
"""Messages that wait for one executor. Its tasks are some hundred at most; the rest are words about tenants: one for
each socket that it knows, which are 256 of each of 256 tenants, when all of them leave while it is at a long task."""
DESCRIPTORS_MAX = 4096
"""The kernel has a table of this size, 8 bytes each, for a process that uses the highest of them."""
PF_EXITING = 0x4
"""include/linux/sched.h: the process is past its last instruction."""
_READS_MAX = 4096
"""More than a socket holds."""
_ROOT = str(Path(__file__).resolve().parent.parent)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an executor is told on its command line."""

    node_fd: int
    page_fd: int
    parent_pid: int
    node_epoch: int
    generation: int
    threads: int
    models: str
    device: str = "cpu"
    """As `workers/device.py` words it."""
    pinned_bytes_max: int = 0
    """What it may pin for its device, of the tenants' arenas."""
    faults: str = ""
    """The file of fault classes; empty for the shipped one."""
    inject: str = ""
    """What to break on purpose, see `workers/inject.py`."""
    parcels_fd: int = -1
    """Where it sends the memory of what goes between two steps."""
    ahead: tuple[str, ...] = ()
    """Libraries that the models of earlier generations have imported: those to import while a device is opened."""

    @classmethod
    def of(cls, words: Sequence[str]) -> Settings:
        """Reads the command line."""
        numbers = map(int, words[:8])
        node_fd, page_fd, parent_pid, node_epoch, generation, threads, pinned_bytes_max, parcels_fd = numbers
        models, device, faults, inject, ahead = words[8:13]
        return cls(
            node_fd, page_fd, parent_pid, node_epoch, generation, threads, models, device, pinned_bytes_max, faults,
            inject, parcels_fd, tuple(filter(None, ahead.split(","))),
        )  # fmt: skip

    def words(self) -> list[str]:
        """The command line that `of` reads."""
        numbers = (
            self.node_fd, self.page_fd, self.parent_pid, self.node_epoch, self.generation, self.threads,
            self.pinned_bytes_max, self.parcels_fd,
        )  # fmt: skip
        return [*map(str, numbers), self.models, self.device, self.faults, self.inject, ",".join(self.ahead)]


def python_module(module: str) -> list[str]:
    """The command that runs one of our modules in a child, with our own interpreter and nothing from its folder."""
    # Not `-m`, which wants source: the module may be compiled.
    return [sys.executable, "-P", "-c", f"from {module} import main; raise SystemExit(main())"]


def child_environment(threads: int | None = None, device: str = "cpu") -> dict[str, str]:
    """Our environment, with our packages on the path and, for an executor, its share of the processors and its card:
    whatever library a model uses, that card is the only one it sees, and on a fake one it sees no real one."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, environment.get("PYTHONPATH", "")]))
    for variable in _THREAD_VARIABLES if threads else ():
        environment.setdefault(variable, str(threads))
    kind, _, rest = device.partition(":")
    if kind == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = rest
    elif kind == "fake":
        environment["CUDA_VISIBLE_DEVICES"] = FAKE_UUID + rest.partition(":")[0]
    return environment


@contextmanager
def closing_last(sock: socket.socket) -> Iterator[int]:
    """The number that an executor gets its socket by: the highest that it may have. Linux closes the files of a process
    that ends from the highest number down (task_work runs what came last first), and a driver takes a tenth of a second
    to let a context go: so the socket's end tells of the process's before that."""
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], DESCRIPTORS_MAX)
    try:
        fd = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, most - 1)
    except OSError:  # that one is taken: then its end is seen a little later
        fd = os.dup(sock.fileno())
    try:
        yield fd
    finally:
        os.close(fd)


class Child:  # mutable: alive, then reaped and closed
    """A started executor. `settings` lacks descriptors and parent, which are made here. `on_message` takes what it
    says, and tells whether more is to be expected soon; `on_deaf` hears that it closed its end. Raises OSError when the
    system cannot give another process."""

    def __init__(
        self, reactor: Reactor, settings: Settings, on_message: Callable[[bytes], bool], on_deaf: Callable[[], None]
    ) -> None:
        self._reactor = reactor
        self._on_message = on_message
        self._on_deaf = on_deaf
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.deaf_since_s: float | None = None
        """When it closed its end, if it did. A process that ends closes it too, some moments before."""
        with ExitStack() as undo:  # for want of descriptors or memory, each of these may fail
            self.page = SharedPage.create()
            undo.callback(self.page.close)
            self.sock, theirs = seqpacket_pair()
            undo.callback(self.sock.close)
            self.parcels, giving = seqpacket_pair()
            undo.callback(self.parcels.close)
            with theirs, giving, closing_last(theirs) as node_fd:
                full = replace(
                    settings, node_fd=node_fd, page_fd=self.page.fd, parent_pid=os.getpid(), parcels_fd=giving.fileno()
                )
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [*python_module("workers.executor"), *full.words()],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(full.node_fd, full.page_fd, full.parcels_fd),
                    env=child_environment(settings.threads, settings.device),
                    start_new_session=True,  # a Ctrl-C at the node's terminal is the node's to handle
                )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        reactor.add(self.sock.fileno(), self._ready)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends in order, now or later. A process that is gone takes nothing; its end is seen by its pidfd."""
        if not self._outbox:
            try:
                if send_now(self.sock, message, descriptors):
                    return
            except OSError:
                return
            self._reactor.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        assert len(self._outbox) < OUTBOX_MAX, "tasks in hand are bounded, and so are words about tenants"
        try:
            self._outbox.append((message, tuple(os.dup(each) for each in descriptors)))
        except OSError:  # out of descriptors: it would miss a word, so that its tasks must go to another generation
            self.kill()

    def take_parcel(self, number: int, count: int) -> tuple[int, ...]:
        """The descriptors of one parcel, which it sent before it spoke of it. Raises ProtocolError where there are not
        so many."""
        word = number.to_bytes(8, "little")
        descriptors: tuple[int, ...] = ()
        with suppress(OSError):
            while count and word:
                sent, descriptors = receive_with_descriptors(self.parcels, count, int(socket.MSG_DONTWAIT))
                if sent == word:
                    break
                close_all(descriptors)  # of one that nobody waits for any more
                descriptors = ()
        return descriptors

    def kill(self) -> None:
        """Kills the process, if it still lives."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        try:
            return os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def ending(self) -> str:
        """How it ends, if the kernel is at it (proc(5), /proc/PID/stat: flags and exit code); else an empty text."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            flags, code = int(fields[6]), int(fields[49])
        except (OSError, ValueError, IndexError):
            return ""
        if not flags & PF_EXITING:
            return ""
        return f"was ended by signal {code & 0x7F}" if code & 0x7F else f"ended with code {code >> 8}"

    def reap(self) -> str:
        """Takes the dead process away and says how it ended. Reads first what it had still sent."""
        self._read(to_the_end=True)
        code = self._process.wait()  # returns at once: the pidfd has said that it ended
        if code < 0:
            return f"was ended by signal {-code}"
        return f"ended with code {code}"

    def close(self) -> None:
        """Frees what the node held of it."""
        for _, descriptors in self._outbox:
            close_all(descriptors)
        self._outbox.clear()
        self._reactor.remove(self.sock.fileno())
        self.sock.close()
        self.parcels.close()
        os.close(self.pidfd)
        self.page.close()

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT:
            self._read(to_the_end=False)

    def _read(self, *, to_the_end: bool) -> None:
        for _ in range(_READS_MAX):
            try:
                message = receive_now(self.sock)
            except OSError:
                continue  # it died with our words unread; what it had sent comes after this one report
            if message is None:
                return
            if not message:
                self._reactor.remove(self.sock.fileno())
                self.deaf_since_s = self._reactor.now()
                self._on_deaf()
                return
            # To look in vain costs as much as to read, so it is done only while more may be on its way.
            if not self._on_message(message) and not to_the_end:
                return

    def _flush(self) -> None:
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if not send_now(self.sock, message, descriptors):
                    return
            except OSError:
                return
            self._outbox.popleft()
            close_all(descriptors)
        self._reactor.modify(self.sock.fileno(), select.EPOLLIN)

    def __repr__(self) -> str:
        return f"<Child {self.pid}, {len(self._outbox)} in its outbox>"
