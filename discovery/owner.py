"""Who wrote a lease: a process, named so that its death can be proved and never merely guessed.

A pid alone is reused; pid and start time are not. Both mean something only to readers of the same *place*: the same
boot of the same kernel, the same pid and time namespaces. From elsewhere (another container, another machine behind a
shared folder) nothing is provable and only the heartbeat counts. This module never signals a process and never touches
a lease. Read `discovery/lease_file.py` next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fabric.host import host_id


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: the place it lives in, its pid there, and its start time in clock ticks since boot."""

    place: str
    pid: int
    started_ticks: int


def this_process() -> Owner:
    """The calling process."""
    spaces = [_namespace(kind) for kind in ("pid", "time")]
    pid = os.getpid()
    return Owner(" ".join([host_id(), *spaces]), pid, _started_ticks(pid) or 0)


def is_dead(owner: Owner, here: str) -> bool:
    """Whether `owner` is provably dead, seen from the place `here`. A zombie counts as dead: it runs no code."""
    if owner.place != here:
        return False
    return _started_ticks(owner.pid) != owner.started_ticks


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115 - Path would parse what is no path
    except OSError:  # a kernel without this namespace has one only, so it need not be told apart
        return f"{kind}:[]"


def _started_ticks(pid: int) -> int | None:
    """Start time of a running process (field 22 of /proc/PID/stat, see proc(5)); None if there is none."""
    try:
        # Plain calls: this runs once a second for each lease, and Path.read_text takes three times as long.
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        raw = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    fields = raw[raw.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])
