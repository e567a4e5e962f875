"""Where the lab keeps what it builds, under which key, and how two processes that want the same thing build it once.

A thing is keyed by everything that it is made from, so an old one is never taken for a new one; old ones are removed
when a new one is done. Read `tests/softroce/lab/image.py` next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_S = 900.0
"""A cold build takes about a minute on a quiet machine and took three beside a compiler: five times that."""


class LabError(Exception):
    """The lab cannot be had, or a guest did not do what it was told: one sentence that says what to do."""


class OutsideError(LabError):
    """What the lab is built from cannot be had on this machine: its tests are skipped, and say this."""


def cache_folder() -> Path:
    """The lab's folder; made when it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "overspill" / "softroce"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key_of(*parts: str | bytes) -> str:
    """A short name for what is made from `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock of that name over processes. Raises LabError when another one keeps it for too long."""
    path = cache_folder() / f"{name}.lock"
    with path.open("w") as lock:
        end_s = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise LabError(f"another process has held {path} for {LOCK_S:.0f} s; see what it does") from None
                time.sleep(0.2)
        yield


def forget_others(folder: Path, prefix: str, keep: set[str], keep_days: float = 3.0) -> None:
    """Removes what other checkouts' keys left behind and nobody has used for days."""
    for path in folder.glob(f"{prefix}*"):
        if path.name in keep or time.time() - path.stat().st_mtime < keep_days * 86_400:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
