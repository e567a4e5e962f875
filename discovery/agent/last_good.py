"""The last good list on disk, so that a caller can start while Consul is away.

It is written whole under another name and renamed, by one writer at a time, and at most once in a while; a disk that
is full or read-only costs the file and nothing else. What is read from it is as old as it says, and the links find
out who of it is still there: each checks id and epoch when it connects. A list of another fabric, another user's
file and what is no file at all (a pipe would hold us up for ever) are no list. This module never asks an agent. Read
`discovery/agent/watch.py` next.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.facts import UNREADABLE, instance_facts, parse_instance

if TYPE_CHECKING:
    from discovery.agent.url import ConsulSettings
    from discovery.instance import Instance

FORMAT = 1
FILE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class LastGood:
    """What the file holds: the instances, and how many seconds ago they were true (0 where a clock was set back)."""

    instances: tuple[Instance, ...]
    age_s: float


def usual_place(settings: ConsulSettings) -> Path | None:
    """The file for these settings: what they name, or one in the user's cache; None where they say `off`."""
    if settings.last_good == "off":
        return None
    if settings.last_good:
        return Path(settings.last_good).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    what = f"{settings.place}|{fabric_of(settings)}"
    try:
        folder = Path(base).expanduser()
    except RuntimeError:  # a user without a home
        return None
    return folder / "overspill" / f"consul-{sha256(what.encode()).hexdigest()[:16]}.json"


def fabric_of(settings: ConsulSettings) -> str:
    """Whose list it is: one file that two fabrics share must not lead one's callers to the other's workers."""
    return f"{settings.service}|{settings.dc}|{settings.ns}|{settings.partition}"


def save(path: Path, instances: tuple[Instance, ...], fabric: str) -> bool:
    """Writes the list of `fabric`; False where it cannot be written."""
    facts = [instance_facts(one) for one in instances]
    whole = {"format": FORMAT, "fabric": fabric, "at_unix_s": time.time(), "instances": facts}
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(whole, file)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        return False
    return True


def load(path: Path, fabric: str) -> LastGood | None:
    """Reads the list of `fabric`; None where there is none, or none that this version understands. Half of one is
    none."""
    try:
        whole = json.loads(_own_bytes(path))
        if whole["format"] != FORMAT or whole["fabric"] != fabric:
            return None
        instances = tuple(parse_instance(facts) for facts in whole["instances"])
        return LastGood(instances, max(0.0, time.time() - float(whole["at_unix_s"])))
    except (OSError, *UNREADABLE):
        return None


def _own_bytes(path: Path) -> bytes:
    """What a regular file of ours (or of root's) holds. Raises OSError, and ValueError for anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer opens at once
    try:
        told = os.fstat(fd)
        if not stat.S_ISREG(told.st_mode) or told.st_uid not in {0, os.geteuid()} or told.st_size > FILE_BYTES_MAX:
            raise ValueError("it is no list of ours")
        with open(fd, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX)
    finally:
        os.close(fd)
