"""Takes the path of a Unix socket for one listener, and cleans up after one that died.

A lock file beside the socket tells a living owner from a dead one's leftovers: the kernel drops the lock with the
process, whatever way it ended. A socket file that somebody answers on is never removed. This module never accepts
connections. Read `fabric/local/listener.py` next.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import AddressInUse, ConfigError
from fabric.local.sockets import seqpacket

if TYPE_CHECKING:
    import socket

PATH_BYTES_MAX = 107
"""sun_path holds 108 bytes with its closing zero (unix(7))."""
_RACES_MAX = 10


class SocketAddress:  # mutable: taken, then released once
    """The path, locked and bound. `sock` is the listening socket, non-blocking."""

    def __init__(self, path: str, backlog: int) -> None:
        self.path = path
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise ConfigError(f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes; choose a shorter folder")
        self._lock_path = f"{path}.lock"
        self._lock_fd = _lock(self._lock_path, path)
        try:
            _remove_stale(path)
            self.sock = _bind(path, backlog)
        except BaseException:  # whatever it was, the path must not stay locked
            self._unlock()
            raise

    def release(self) -> None:
        """Stops listening and removes the files. The second call does nothing."""
        if self._lock_fd < 0:
            return
        self.sock.close()
        Path(self.path).unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        Path(self._lock_path).unlink(missing_ok=True)  # while still locked: whoever waits sees that it is another file
        os.close(self._lock_fd)
        self._lock_fd = -1


def _lock(lock_path: str, path: str) -> int:
    for _ in range(_RACES_MAX):
        try:
            fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the folder of {path} cannot be used ({error.strerror}); create it or name another"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named, ours = Path(lock_path).stat(), os.fstat(fd)
        except BlockingIOError:
            os.close(fd)
            raise AddressInUse(f"another process listens on {path}; stop it or choose another path") from None
        except FileNotFoundError:  # its last owner removed it between our open and our lock
            os.close(fd)
            continue
        if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino):
            return fd
        os.close(fd)
    raise AddressInUse(f"other processes keep taking {path}; choose another path")


def _remove_stale(path: str) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressInUse(f"{path} is a file of another kind; remove it or choose another path")
    with seqpacket() as probe:
        probe.settimeout(0.0)  # a full backlog answers EAGAIN at once, and means that somebody listens
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            raise AddressInUse(f"{path} cannot be taken ({error.strerror}); remove it or choose another path") from None
    raise AddressInUse(f"another process listens on {path}; stop it or choose another path")


def _bind(path: str, backlog: int) -> socket.socket:
    sock = seqpacket()
    try:
        sock.settimeout(0.0)
        sock.bind(path)
        Path(path).chmod(0o600)  # before listen, so that nobody else ever gets a connection
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(f"the node cannot listen on {path} ({error.strerror}); check the folder's rights") from None
    return sock
