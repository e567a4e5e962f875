"""The last good list on disk, so that a caller can start while Consul is away.

It is written whole under another name and renamed, by one writer at a time, and at most once in a while; a disk that
is full or read-only costs the file and nothing else. What is read from it is as old as it says, and the links find
out who of it is still there: each checks id and epoch when it connects. This module never asks an agent. Read
`discovery/agent/watch.py` next.
"""

from __future__ import annotations

import json
import os
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
    what = f"{settings.place}|{settings.service}|{settings.dc}|{settings.ns}|{settings.partition}"
    try:
        folder = Path(base).expanduser()
    except RuntimeError:  # a user without a home
        return None
    return folder / "overspill" / f"consul-{sha256(what.encode()).hexdigest()[:16]}.json"


def save(path: Path, instances: tuple[Instance, ...]) -> bool:
    """Writes the list; False where it cannot be written."""
    whole = {"format": FORMAT, "at_unix_s": time.time(), "instances": [instance_facts(one) for one in instances]}
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


def load(path: Path) -> LastGood | None:
    """Reads the list; None where there is none, or none that this version understands. A half of one is none."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        whole = json.loads(path.read_bytes())
        if whole["format"] != FORMAT:
            return None
        instances = tuple(parse_instance(facts) for facts in whole["instances"])
        return LastGood(instances, max(0.0, time.time() - float(whole["at_unix_s"])))
    except (OSError, *UNREADABLE):
        return None
