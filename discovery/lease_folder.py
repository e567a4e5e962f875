"""A folder of leases: the file operations, each of which either succeeds whole or leaves everything as it was.

A lease is written under a temporary name and renamed, so no reader sees half of it. Its heartbeat is its time stamp,
set to the owner's *monotonic* clock in nanoseconds: that needs no space on a full disk, does not wake those who watch
the folder for new files, and survives a wall clock that jumps (`ls -l` shows it as some hours of January 1970).
Removing takes the folder's lock and looks again first, so that it never hits the lease of a new life. This module never
decides who is alive. Read `discovery/lease_reader.py` next.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discovery.lease_file import LEASE_BYTES_MAX, SUFFIX
from fabric.errors import ConfigError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPORARY = ".tmp"
_LOCK_WAIT_S = 1.0
"""Whoever holds the lock does two system calls under it. Going on without it after that risks one heartbeat's gap."""

_REASONS = {
    errno.ENOENT: "it is not there; start a node that registers there, or check the path",
    errno.ENOTDIR: "a part of its path is no folder; check the path",
    errno.EACCES: "this user may not use it; run as its owner or choose another folder",
    errno.EPERM: "this user may not use it; run as its owner or choose another folder",
    errno.EROFS: "it is on a read-only file system; choose another folder",
    errno.ENOSPC: "its disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EMFILE: "this process has too many open files; raise `ulimit -n`",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the folder: what a single `stat` tells."""

    name: str
    inode: int
    nbytes: int
    beat_ns: int


class LeaseFolder:
    """The files of one registry folder. Every method raises RegistryUnavailable where the folder cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Makes the folder for this user alone, if it is missing. Raises ConfigError if everybody may write to it."""
        with self._explained("made"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
        if mode & 0o002:
            raise ConfigError(
                f"everybody may write to the registry folder {self.path}, so anybody could take over requests;"
                f" run `chmod o-w {self.path}` or choose another folder"
            )

    def changed_ns(self) -> int:
        """The folder's own time stamp: another value means that files were added, replaced or removed."""
        with self._explained("read"):
            return os.stat(self.path).st_mtime_ns  # noqa: PTH116 - twenty times a second: half the cost of Path.stat

    def entries(self) -> list[Entry]:
        """All leases and temporary files."""
        found = []
        with self._explained("read"), os.scandir(self.path) as listing:
            for item in listing:
                if item.name.endswith((SUFFIX, TEMPORARY)):
                    with suppress(FileNotFoundError):  # removed since the listing
                        facts = item.stat(follow_symlinks=False)
                        found.append(Entry(item.name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return found

    def read(self, name: str) -> bytes | None:
        """The bytes of one lease, None if it is gone; of a file over the limit, just more than the limit."""
        try:
            fd = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:  # a link, a socket or somebody else's file: not readable as a lease, and no reason to stop
            return b""
        try:
            parts = []
            left = LEASE_BYTES_MAX + 1
            while left > 0 and (part := os.read(fd, left)):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        except OSError:  # a folder by that name, or a disk fault: the same
            return b""
        finally:
            os.close(fd)

    def write(self, name: str, raw: bytes, beat_ns: int) -> int:
        """Puts a lease in place, replacing an earlier one, and returns a descriptor of it for `beat`."""
        temporary = self.path / f"{name}.{os.getpid()}{TEMPORARY}"
        with self._explained("written"):
            fd = -1
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                written = 0
                while written < len(raw):
                    written += os.write(fd, raw[written:])
                os.utime(fd, ns=(beat_ns, beat_ns))
                with self._locked():
                    temporary.rename(self.path / name)
            except OSError:
                if fd >= 0:
                    os.close(fd)
                with suppress(OSError):
                    temporary.unlink()
                raise
        return fd

    def beat(self, fd: int, beat_ns: int) -> bool:
        """Sets the heartbeat of a lease written here; False if it is no longer in the folder."""
        with self._explained("written"):
            os.utime(fd, ns=(beat_ns, beat_ns))
            return os.fstat(fd).st_nlink > 0

    def remove(self, name: str, inode: int) -> bool:
        """Removes the file if it still is that one. Never raises: what cannot be removed expires."""
        path = self.path / name
        with suppress(OSError), self._locked():
            if path.lstat().st_ino == inode:
                path.unlink()
                return True
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            give_up_s = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up_s:
                        break
                    time.sleep(0.002)  # the holder needs some microseconds
            yield
        finally:
            os.close(fd)  # and the lock with it

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}; check the disk")
            raise RegistryUnavailable(f"the registry folder {self.path} cannot be {verb}: {reason}") from None
