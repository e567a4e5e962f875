"""Reads a folder of leases again and again, and judges which of them are alive.

Alive is: the owner is not provably dead, and its heartbeat moved within the lease's time to live. "Moved" is measured
on the reader's own monotonic clock, from when it saw the time stamp change; a stamp is compared with a clock only where
writer and reader share one (the same place, see `discovery/owner.py`). Leases of dead processes count as gone at once
and are cleaned away. This module never calls anybody back. Read `discovery/directory.py` next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discovery.catalogue import Answered
from discovery.lease_file import SUFFIX, LeaseFile, file_name, parse_lease
from discovery.owner import is_dead, this_process
from fabric.errors import OverspillError, ProtocolError

if TYPE_CHECKING:
    from discovery.instance import Instance
    from discovery.lease_folder import Entry, LeaseFolder

CLEAN_AFTER_S = 150.0
"""Ten times the usual time to live: silent that long, a lease of another place, or a temporary file, is litter."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One file as it was when it last changed."""

    entry: Entry
    changed_at: float
    raw: bytes
    lease: LeaseFile | None


class LeaseReader:  # mutable: it remembers when each file last changed
    """The reader of one folder. Not for two threads at once."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._folder = folder
        self._here = this_process().place
        self._seen: dict[str, _Seen] = {}
        self.unreadable = 0

    def read(self, now: float) -> Answered:
        """Reads all leases at `now` (monotonic seconds). Raises RegistryUnavailable."""
        entries = self._folder.entries()
        names = {entry.name for entry in entries}
        gone = {
            seen.lease.instance.key
            for name, seen in self._seen.items()
            if name not in names and seen.lease is not None and is_dead(seen.lease.owner, self._here)
        }
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
        alive: list[Instance] = []
        for entry in entries:
            seen = self._look(entry, now)
            if seen is None:
                continue
            lease = seen.lease
            if lease is not None and is_dead(lease.owner, self._here):
                gone.add(lease.instance.key)
                self._folder.remove(entry.name, entry.inode)
            elif lease is not None and self._silent_s(seen, lease, now) <= lease.ttl_s:
                alive.append(lease.instance)
            elif now - seen.changed_at > CLEAN_AFTER_S:
                self._folder.remove(entry.name, entry.inode)
        return Answered(tuple(alive), frozenset(gone))

    def _look(self, entry: Entry, now: float) -> _Seen | None:
        """What is known of a file, read again if any of its facts changed; None if it went away meanwhile."""
        seen = self._seen.get(entry.name)
        if seen is not None and seen.entry == entry:
            return seen
        raw, lease = b"", None
        if entry.name.endswith(SUFFIX):
            read = self._folder.read(entry.name)
            if read is None:
                return None
            raw = read
            lease = seen.lease if seen is not None and seen.raw == raw else self._parse(entry.name, raw, seen)
        seen = self._seen[entry.name] = _Seen(entry, now, raw, lease)
        return seen

    def _parse(self, name: str, raw: bytes, before: _Seen | None) -> LeaseFile | None:
        try:
            lease = parse_lease(raw)
            if file_name(lease.instance.node_id) != name:
                raise ProtocolError(f"the lease {name} was copied from another one; remove it")
        except OverspillError:
            self.unreadable += 1
            return before.lease if before is not None else None  # last known good, while its heartbeat lasts
        return lease

    def _silent_s(self, seen: _Seen, lease: LeaseFile, now: float) -> float:
        silent_s = now - seen.changed_at
        if lease.owner.place == self._here:
            # The owner's clock is ours, so a first look can tell too. A stamp from the future was set by hand.
            silent_s = max(silent_s, time.monotonic() - seen.entry.beat_ns / 1e9)
        return silent_s
