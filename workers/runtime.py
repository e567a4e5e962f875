"""The private folder of a node's local socket: made at its start, removed at its end.

It lies under $XDG_RUNTIME_DIR, or the folder for temporary files, and is its owner's alone. A folder is swept only when
its lock can be had, which proves that no process listens there. Read `fabric/local/address.py` for that lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from fabric.errors import ConfigError

PREFIX = "overspill-"
SOCKET = "node.sock"


def make_folder(identity: str) -> Path:
    """Makes the folder of the node that `identity` names (its registry and id, so that two systems on one host do not
    meet), and sweeps those of dead nodes. Raises ConfigError when it cannot be had."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    # A hash, because the path of a Unix socket is short and an id may be long.
    folder = base / (PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:12])
    sweep(base)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); set runtime_dir to a folder of yours") from None
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir() or folder.is_symlink():
        raise ConfigError(f"{folder} is not this user's alone; remove it, or set runtime_dir to a folder of yours")
    return folder


def remove_folder(folder: Path) -> None:
    """Removes the folder if nothing is left in it."""
    with suppress(OSError):
        folder.rmdir()


def sweep(base: Path) -> None:
    """Removes the folders of nodes that were killed."""
    for lock in base.glob(f"{PREFIX}*/{SOCKET}.lock"):
        with suppress(OSError):
            if lock.parent.lstat().st_uid != os.getuid():
                continue
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(fd)
