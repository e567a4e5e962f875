"""What a health answer of Consul's says: who is there, and what of it cannot be read.

Checks have the last word on readiness: maintenance means draining, a warning degraded, critical not there. An entry
that does not read is counted and never poisons the list; what it said last counts as long as it is listed, since one
that was garbled on its way says nothing of its node. This module never talks to an agent. Read
`discovery/agent/follower.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from discovery.agent.meta import HEARTBEAT, MAINTENANCE, parse_meta
from discovery.facts import UNREADABLE
from discovery.instance import Instance, Readiness
from fabric.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Listing:
    """One health answer: who is there, on which Consul node each stands, and what was left out."""

    instances: tuple[Instance, ...]
    places: tuple[tuple[str, str], ...]
    """(node id, name of the Consul node whose agent holds it) of each instance."""
    critical: tuple[str, ...]
    """Entries that a critical check keeps out, each as a sentence."""
    unreadable: tuple[str, ...]
    """Ids of entries that are none of ours, or are garbled."""
    silent: tuple[tuple[str, int], ...] = ()
    """(node id, epoch) of those whose heartbeat alone keeps them out: an agent that stalls hears nobody."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An entry as it was read last: its Meta, what that says, and the word of its checks."""

    meta: dict[str, str]
    instance: Instance | None
    word: str
    sound: bool
    """Whether that Meta could be read."""


class ListingReader:  # mutable: remembers what it has read, so that a long list in motion is cheap
    """Reads health answers. An entry whose Meta did not change is not parsed again; of one that can be read no longer
    the last that could be counts, as long as it is listed."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self.skipped = 0

    def read(self, entries: Any) -> Listing:  # parsed JSON is anything until this has read it
        """Reads the parsed body of /v1/health/service. Raises ProtocolError where it is no list."""
        if not isinstance(entries, list):
            raise ProtocolError("Consul's health answer is no list; see whether a proxy stands between")
        seen: dict[tuple[str, str], _Seen] = {}
        instances: list[Instance] = []
        places: list[tuple[str, str]] = []
        critical: list[str] = []
        unreadable: list[str] = []
        silent: list[tuple[str, int]] = []
        for entry in entries:
            try:
                key = str(entry["Node"]["Node"]), str(entry["Service"]["ID"])
            except UNREADABLE:
                unreadable.append("an entry without node or service")
                continue
            now, whole = self._look(self._seen.get(key), entry)
            seen[key] = now
            place, instance, word = key[0], now.instance, now.word
            if not whole:
                unreadable.append(f"{key[1]} on {place}")
            if instance is None or not word:
                continue
            if word.startswith("critical"):
                critical.append(f"{instance.node_id} on {place} is {word}")
                if word.startswith(f"critical: {HEARTBEAT}:"):
                    silent.append(instance.key)
            else:
                instances.append(_as_told(instance, word))
                places.append((instance.node_id, place))
        self._seen = seen
        return Listing(tuple(instances), tuple(places), tuple(critical), tuple(unreadable), tuple(silent))

    def _look(self, before: _Seen | None, entry: Any) -> tuple[_Seen, bool]:
        """The entry as it is taken, and whether all of it could be read."""
        meta: dict[str, str] = {}
        instance, sound = (before.instance, before.sound) if before is not None else (None, False)
        try:
            meta = entry["Service"]["Meta"] or {}
            if before is None or before.meta != meta:
                instance, sound = parse_meta(meta), True
        except (ProtocolError, *UNREADABLE):
            sound = False
            self.skipped += 1
        try:
            word = _verdict(entry["Checks"])
        except UNREADABLE:
            word = before.word if before is not None else ""
            return _Seen(meta, instance, word, sound), False
        return _Seen(meta, instance, word, sound), sound


def _verdict(checks: Any) -> str:  # parsed JSON is anything until this has read it
    """The word of all checks together: critical and why, maintenance, warning or passing."""
    word = "passing"
    for check in checks:
        status = check["Status"]
        if status == "passing":
            continue
        if str(check["CheckID"]).startswith(MAINTENANCE):
            word = "maintenance"
        elif status == "critical":
            return f"critical: {check['Name']}: {str(check['Output'])[:80] or 'no reason given'}"
        elif word == "passing":
            word = "warning"
    return word


def _as_told(instance: Instance, word: str) -> Instance:
    if word == "maintenance" and instance.readiness is not Readiness.DRAINING:
        return replace(instance, readiness=Readiness.DRAINING)
    if word == "warning" and instance.readiness is Readiness.READY:
        return replace(instance, readiness=Readiness.DEGRADED)
    return instance
