"""Where the lab keeps what it builds, under which key, and how two processes that want the same thing build it once.

A thing is keyed by everything that it is made from, so an old one is never taken for a new one; old ones are removed
when a new one is done. Read `tests/softroce/lab/image.py` next.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests import debian

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_S = 900.0
"""A cold build takes about a minute on a quiet machine and took three beside a compiler: five times that."""


class LabError(Exception):
    """The lab cannot be had, or a guest did not do what it was told: one sentence that says what to do."""


class OutsideError(LabError):
    """What the lab is built from cannot be had on this machine: its tests are skipped, and say this."""


def cache_folder() -> Path:
    """The lab's folder; made when it is missing."""
    return debian.cache_folder("softroce")


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
    with ExitStack() as held:
        try:
            held.enter_context(debian.locked(cache_folder() / f"{name}.lock", LOCK_S))
        except debian.DebianError as error:
            raise LabError(str(error)) from None
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
