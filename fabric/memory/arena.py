"""One sealed memfd that belongs to exactly one tenant, mapped by whoever was handed its descriptor.

A memfd leaves nothing behind when its processes die, and has no name that could be guessed. Its seals stop anybody
from truncating it, so no access can fault; they do not stop holes or scribbling, so whoever reads memory that another
process maps copies what it checks before it checks it. Huge pages are never used for memory that a client maps.
This module never sends a descriptor: the local wire does. Read `fabric/memory/lease.py` next.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from fabric.errors import ConfigError, ProtocolError, ResourceExhausted
from fabric.memory.slots import SLOT_BYTES_MIN, Slot, SlotTable
from fabric.quiet_lock import quiet_lock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

ARENA_BYTES_DEFAULT: Final = 1 << 30
"""Address space, not memory: pages come when they are first written. One request of 256 MiB each way, or thirty of
16 MiB, since slots are powers of two and no single one may take the whole."""
ARENA_BYTES_MAX: Final = 1 << 40
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Arena:  # mutable: owns a mapping and a table of loans
    """A mapping of sealed memory, and (for its tenant) the table of its slots.

    `create` makes the memory, `attach` maps what a peer sent. Both own the descriptor `fd` until `close_fd`. The
    mapping goes when the last view of it does.
    """

    __slots__ = ("_finished", "_retired", "_returned", "fd", "lock", "map", "nbytes", "table", "view")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.lock: AbstractContextManager[object] = quiet_lock()
        """Who does several things at once holds it meanwhile: to take it once may be a look at the clock."""
        self.fd = -1  # until the mapping stands: whoever gave us the descriptor closes it when this fails
        self.nbytes = nbytes
        self.map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED)
        self.view = memoryview(self.map)
        self.table = SlotTable(nbytes)
        self._retired = False
        # Replies may be dropped by the garbage collector in any thread, even inside `lease`: they queue here.
        self._returned: deque[Slot] = deque()
        self._finished: deque[Slot] = deque()
        self.fd = fd

    @classmethod
    def create(cls, nbytes: int) -> Arena:
        """Makes sealed memory of `nbytes` rounded up to a power of two. Raises ConfigError for a size out of range."""
        if not 0 < nbytes <= ARENA_BYTES_MAX:
            raise ConfigError(f"arena_bytes is {nbytes}; give between {SLOT_BYTES_MIN} and {ARENA_BYTES_MAX}")
        size = max(SLOT_BYTES_MIN, 1 << (nbytes - 1).bit_length())
        fd = os.memfd_create("overspill-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            raise ResourceExhausted(
                f"the system gave no memory for an arena of {size} bytes ({error}); free some"
            ) from None

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Maps memory that a peer sent, and owns `fd`. Raises ProtocolError (and closes `fd`) unless it is sealed."""
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ProtocolError("the peer's arena is not sealed against truncation; it must be made by a node")
            size = os.fstat(fd).st_size
            if size < SLOT_BYTES_MIN or size > ARENA_BYTES_MAX or size & (size - 1):
                raise ProtocolError(f"the peer's arena has {size} bytes, which is no power of two in range")
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            raise ProtocolError(f"the peer sent a descriptor that is no arena ({error})") from None
        except ProtocolError:
            os.close(fd)
            raise

    def lease(self, nbytes: int) -> Slot:
        """Lends a slot of at least `nbytes`. Raises ArenaFull when none is free, ResourceExhausted once retired."""
        if self._retired:
            raise ResourceExhausted("the arena's node is gone; use the arena of another channel")
        with self.lock:
            self._settle()
            return self.table.lease(nbytes)

    def retire(self) -> None:
        """Lends nothing any more: its other end is lost, and whoever wrote there may still be writing."""
        self._retired = True

    @property
    def retired(self) -> bool:
        """Whether it lends nothing any more."""
        return self._retired

    def give_back(self, slot: Slot) -> None:
        """Returns a slot, from any thread and from inside the garbage collector: it takes no lock and never blocks."""
        self._returned.append(slot)

    def finish(self, slot: Slot) -> None:
        """Its writer has answered, and its holder is done with it. As `give_back`, it takes no lock."""
        self._finished.append(slot)

    def writer_began(self, *slots: Slot) -> None:
        """Somebody outside may write to these slots from now on."""
        with self.lock:
            for slot in slots:
                self.table.writer_began(slot)

    def writer_ended(self, *slots: Slot) -> None:
        """That writer has answered or is fenced."""
        with self.lock:
            for slot in slots:
                self.table.writer_ended(slot)

    def lent_bytes(self) -> int:
        """Bytes on loan or in quarantine now."""
        with self.lock:
            self._settle()
            return self.table.lent_bytes

    def close_fd(self) -> None:
        """Closes the descriptor; the mapping stays until its last view is gone."""
        with self.lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close_fd()

    def __repr__(self) -> str:
        table = self.table
        return f"<Arena {self.nbytes} bytes, {table.lent_bytes} on loan, {table.quarantined_bytes} quarantined>"

    def _settle(self) -> None:
        while self._finished:
            slot = self._finished.popleft()
            self.table.writer_ended(slot)
            self.table.give_back(slot)
        while self._returned:
            self.table.give_back(self._returned.popleft())
