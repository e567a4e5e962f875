"""The private folder of a node's local socket: made at its start, removed at its end.

It lies under $XDG_RUNTIME_DIR, or the folder for temporary files, and is its owner's alone. A folder is swept only when
both locks can be had: its own, which a node holds from before it looks inside, and its socket's, if there is one, which
proves that no process listens there. Read `fabric/local/address.py` for that one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from fabric.errors import ConfigError

PREFIX = "overspill-"
SOCKET = "node.sock"
_HASH_LETTERS = 12
_RACES_MAX, _RACE_S = 50, 0.02
"""A sweep takes milliseconds, and each node that starts sweeps once."""


class OwnFolder:  # mutable: held, then let go
    """A node's folder. While it is held nobody sweeps it, also before the node listens there."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def remove(self) -> None:
        """Lets go of the folder, and removes it if nothing is left in it and nobody else holds it: the next life of the
        node may be about to listen there."""
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _names(self.path, self._fd):
                self.path.rmdir()
        os.close(self._fd)


def make_folder(identity: str) -> OwnFolder:
    """Makes the folder of the node that `identity` names (its registry and id, so that two systems on one host do not
    meet), and sweeps those of dead nodes. Raises ConfigError when it cannot be had."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    # A hash, because the path of a Unix socket is short and an id may be long.
    folder = base / (PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LETTERS])
    sweep(base)
    for _ in range(_RACES_MAX):
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            found = folder.lstat()
        except FileNotFoundError:
            if base.is_dir():
                continue  # it was swept between the two
            raise ConfigError(f"{base} is not there; make it, or set runtime_dir to a folder of yours") from None
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be made ({error.strerror}); set runtime_dir to a folder of yours"
            ) from None
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{folder} is not this user's alone; remove it, or set runtime_dir to a folder of yours")
        fd = _held(folder)
        if fd >= 0:
            return OwnFolder(folder, fd)
        time.sleep(_RACE_S)  # another node that starts just now is sweeping what an earlier life of ours left
    raise ConfigError(f"other processes keep locking {folder}; stop them, or set runtime_dir to a folder of yours")


def _held(folder: Path) -> int:
    """A descriptor with a shared lock on the folder: several nodes that want it may hold it, and their sockets' lock
    chooses. -1 where a sweep was quicker."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _names(folder, fd):
            return fd
    os.close(fd)
    return -1


def _names(path: Path, fd: int) -> bool:
    """Whether the path still leads to what was opened: another process may have swept it, and made it anew."""
    named, ours = path.lstat(), os.fstat(fd)
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)


def sweep(base: Path) -> None:
    """Removes the folders of nodes that were killed."""
    for folder in base.glob(PREFIX + "[0-9a-f]" * _HASH_LETTERS):
        with suppress(OSError), ExitStack() as opened:
            if folder.lstat().st_uid != os.getuid():
                continue
            _lock_alone(folder, os.O_RDONLY | os.O_DIRECTORY, opened)
            with suppress(FileNotFoundError):  # it was killed before it listened, or as it left
                _lock_alone(folder / f"{SOCKET}.lock", os.O_RDWR, opened)
            shutil.rmtree(folder)


def _lock_alone(path: Path, kind: int, opened: ExitStack) -> None:
    """Locks it for as long as `opened`. Raises OSError when somebody else has a lock of it, or has made it anew."""
    fd = os.open(path, kind | os.O_CLOEXEC | os.O_NOFOLLOW)
    opened.callback(os.close, fd)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not _names(path, fd):
        raise BlockingIOError(f"{path} is another one now")
