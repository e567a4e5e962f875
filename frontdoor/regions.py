"""The shared memory that clients registered: opened once, checked at each use, and never touched unless told so.

A client may truncate its own memory at any time, and whoever touches it then dies of SIGBUS. So the kernel moves the
bytes (`preadv`, `pwritev`), and only comes up short: that request fails, and nothing else; or, where they are many,
processes do that may die of it (`frontdoor/copiers.py`). With `trusted`, the operator's word, regions are mapped and
copied. A name belongs to one space of names (`Owner.space`), so users of a host never meet each other's regions. This
module never looks for dead clients: `frontdoor/leases.py` does. Read that next.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import InvalidArgument
from frontdoor.failures import Refusal, Status
from frontdoor.held import Held
from frontdoor.mappable import Mappable

if TYPE_CHECKING:
    from collections.abc import Callable

    from frontdoor.clients import Owner
    from frontdoor.held import Kind

FOLDER = Path("/dev/shm")  # noqa: S108 - where shm_open(3) keeps its files
RESERVED_KEY = "triton_python_backend_shm_region_"
REGIONS_MAX = 1024
"""Of one owner's space: each is a descriptor. More than any client was seen to use, and a bound for what is hostile."""
REGIONS_ALL_MAX = 8192
NAME_CHARS_MAX = 255
_MOVE_MAX = 1 << 30
"""Linux moves 2 GiB less a page at a time at most (read(2))."""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """What a client is told of a region."""

    name: str
    key: str
    offset: int
    nbytes: int


class Region(Held):
    """One registered region of system shared memory, and its descriptor."""

    __slots__ = ("_fd", "_map", "key", "offset")

    def __init__(
        self, name: str, key: str, offset: int, nbytes: int, owner: Owner, fd: int, mapped: mmap.mmap | None
    ) -> None:
        super().__init__(name, owner, nbytes)
        self.key = key
        self.offset = offset
        self._fd = fd
        self._map = mapped
        self.begin = offset % mmap.ALLOCATIONGRANULARITY
        if mapped is None:
            self.mappable = Mappable(fd, self.begin + nbytes, offset - self.begin)

    @property
    def status(self) -> RegionStatus:
        """What a client is told of it."""
        return RegionStatus(self.name, self.key, self.offset, self.nbytes)

    def close(self) -> None:
        """Closes the descriptor, and what was mapped, here and by copiers."""
        os.close(self._fd)
        if self.mappable is not None:
            self.mappable.close()
        self._fd, self._map, self.mappable = -1, None, None

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fills `view` from the region. Blocks for as long as the copy takes. Raises InvalidArgument when the memory
        is shorter than it was."""
        at = self.offset + offset
        if self._map is not None:
            source = np.frombuffer(self._map, np.uint8, len(view), at)
            np.copyto(np.frombuffer(view, np.uint8), source)
            return
        self._move(os.preadv, at, view)

    def write_from(self, offset: int, view: memoryview) -> None:
        """Writes `view` to the region, which never makes it longer. Raises InvalidArgument when the memory is shorter
        than it was, RESOURCE_EXHAUSTED when the system has no memory for it."""
        at = self.offset + offset
        if self._map is not None:
            np.copyto(np.frombuffer(self._map, np.uint8, len(view), at), np.frombuffer(view, np.uint8))
            return
        # A write past the end would make the file longer again, which its owner did not ask for.
        self._check_file(at + len(view))
        self._move(os.pwritev, at, view)

    def check_end(self, end: int) -> None:
        """Raises InvalidArgument where the memory is shorter by now. What a copier writes behind its end in the last
        page is nobody's."""
        self._check_file(self.offset + end)

    def _check_file(self, end: int) -> None:
        if os.fstat(self._fd).st_size < end:
            raise self._shorter()

    def _move(self, move: Callable[[int, list[memoryview], int], int], at: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                moved = move(self._fd, [view[done : done + _MOVE_MAX]], at + done)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    told = f"the system has no memory left for region {self.name!r}; allocate it with posix_fallocate"
                    raise Refusal(Status.RESOURCE_EXHAUSTED, told) from None
                raise Refusal(
                    Status.INTERNAL, f"region {self.name!r} cannot be used ({error.strerror}); register it again"
                ) from None
            if not moved:
                raise self._shorter()
            done += moved

    def _shorter(self) -> InvalidArgument:
        return InvalidArgument(f"region {self.name!r} is shorter than it was registered; do not truncate its memory")


class Regions:  # mutable: the table
    """All registered regions. `trusted` has them touched."""

    def __init__(self, *, trusted: bool = False, folder: Path = FOLDER) -> None:
        self._trusted = trusted
        self._folder = folder
        self._table: dict[tuple[str, str], Held] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.nbytes for region in self._table.values())

    def owners(self) -> frozenset[Owner]:
        """Everybody who has a region."""
        return frozenset(region.owner for region in self._table.values())

    def register(self, owner: Owner, name: str, key: str, offset: int, nbytes: int) -> None:
        """Opens the POSIX shared memory `key` and takes `nbytes` at `offset` of it as region `name`.

        Raises Refusal and InvalidArgument with the protocol's statuses, and leaves nothing open then.
        """
        self.check_new(owner, name, nbytes)
        fd = self._open(owner, key)
        try:
            size = os.fstat(fd).st_size
            if offset + nbytes > size:
                raise InvalidArgument(
                    f"region {name!r} of {nbytes} bytes at {offset} does not fit {key!r}, which has {size} bytes"
                )
            mapped = mmap.mmap(fd, offset + nbytes) if self._trusted else None
        except (OSError, ValueError) as error:
            os.close(fd)
            raise Refusal(Status.INTERNAL, f"{key!r} cannot be mapped ({error}); register it anew") from None
        except InvalidArgument:
            os.close(fd)
            raise
        self._table[owner.space, name] = Region(name, key, offset, nbytes, owner, fd, mapped)

    def check_new(self, owner: Owner, name: str, nbytes: int) -> None:
        """Raises what is wrong with a new region, whatever its kind: all kinds have one space of names."""
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise InvalidArgument(f"a region's name has {len(name)} characters; give 1 to {NAME_CHARS_MAX}")
        if (owner.space, name) in self._table:
            raise Refusal(Status.ALREADY_EXISTS, f"region {name!r} is registered already; unregister it first")
        if not nbytes:
            raise InvalidArgument(f"region {name!r} has no bytes; give its byte_size")
        of_space = sum(space == owner.space for space, _ in self._table)
        if of_space >= REGIONS_MAX or len(self._table) >= REGIONS_ALL_MAX:
            raise Refusal(
                Status.RESOURCE_EXHAUSTED, f"{of_space} regions of yours are registered already; unregister some"
            )

    def add(self, region: Held) -> None:
        """Takes a region of another kind, which was opened elsewhere. Raises as `check_new` does."""
        self.check_new(region.owner, region.name, region.nbytes)
        self._table[region.owner.space, region.name] = region

    def _open(self, owner: Owner, key: str) -> int:
        file = key.removeprefix("/")
        nbytes = len(file.encode(errors="replace"))
        if not file or "/" in file or "\0" in file or file in {".", ".."} or nbytes > NAME_CHARS_MAX:
            raise InvalidArgument(f"{key[:80]!r} is no key of shared memory; give a name such as /inputs")
        if file.startswith(RESERVED_KEY):
            raise InvalidArgument(f"keys that begin with {RESERVED_KEY!r} are reserved; choose another")
        missing = Refusal(Status.INTERNAL, f"there is no shared memory {key[:80]!r} that you may use; create it first")
        try:
            fd = os.open(self._folder / file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, UnicodeEncodeError):  # of the last: half a surrogate pair, which is no file's name
            raise missing from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not owner.may_use(found.st_uid, found.st_mode):
            os.close(fd)
            raise missing
        return fd

    def find(self, owner: Owner, name: str) -> Held:
        """The region of that name, of any kind. Raises NOT_FOUND."""
        region = self._table.get((owner.space, name))
        if region is None:
            raise Refusal(Status.NOT_FOUND, f"there is no region {name[:80]!r}; register it first")
        return region

    def of_kind(self, owner: Owner, name: str, kind: type[Kind]) -> tuple[Kind, ...]:
        """The region of that name, or all that the owner can use, of one kind. Raises NOT_FOUND."""
        if name:
            region = self.find(owner, name)
            if not isinstance(region, kind):
                raise Refusal(Status.NOT_FOUND, f"region {name[:80]!r} is of another kind; ask for its own status")
            return (region,)
        found = [region for (space, _), region in self._table.items() if space == owner.space]
        return tuple(region for region in found if isinstance(region, kind))

    def unregister(self, owner: Owner, name: str, kind: type[Held] = Region) -> None:
        """Forgets the region of that name; without a name all of a kind that this very client registered. One that is
        not there is no error, as the protocol has it."""
        for key, region in tuple(self._table.items()):
            mine = key[1] == name if name else region.owner.same_client(owner)
            if mine and key[0] == owner.space and isinstance(region, kind):
                self._forget(key)

    def reap(self, owner: Owner) -> int:
        """Forgets what a client that is gone has registered; returns how many regions."""
        found = [key for key, region in self._table.items() if region.owner == owner]
        for key in found:
            self._forget(key)
        return len(found)

    def close(self) -> None:
        """Forgets all."""
        for key in tuple(self._table):
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        region = self._table.pop(key, None)
        if region is not None:
            region.end()
