"""The last known good list: what a registry's answers change about it, and which answers are not believed yet.

An answer that lacks somebody is weak news: a wiped folder, an agent that lost its data or a filter give empty lists
too. So an empty answer changes nothing until it has been repeated for `empty_grace_s`, and one that drops more than
half of the list, or of which a part cannot be read, drops nobody until a second read at least `confirm_s` later agrees.
A life that is listed as `silent` may be the registry's own stall, which heard nobody: it stays for `silent_grace_s`, so
that it can be heard again. A failed read changes nothing, ever. Where a registry *knows* that a life of a node ended
(its process is dead) it says so in `gone`, and no guard delays that. Every registry's watch uses this; it never reads a
registry itself. Read `discovery/directory.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discovery.instance import Insert, Remove

if TYPE_CHECKING:
    from discovery.instance import Change, Instance

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Guards:
    """How long weak news must last. 5 s: live nodes re-enter a wiped registry within one heartbeat of 3 s."""

    empty_grace_s: float = 5.0
    confirm_s: float = 1.0
    silent_grace_s: float = 4.5
    """One heartbeat and a half: who is alive was heard again by then. Links notice a death in milliseconds."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The registry answered with the whole list; `gone` are lives of nodes that are known to be over.

    `age_s` is how old the answer was when it came: a copy of an old answer confirms nothing.
    """

    instances: tuple[Instance, ...]
    gone: frozenset[Key] = frozenset()
    age_s: float = 0.0
    silent: frozenset[Key] = frozenset()
    """Lives that are listed, but were not heard for their time to live."""
    doubtful: bool = False
    """A part of it could not be read that could be before, or is new: whoever is missing may be in there."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The registry could not be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class CatalogueStatistics:
    """Counts since the start: answers, failed reads, and answers of which a guard held something back."""

    answers: int
    failures: int
    empty_refused: int
    shrinks_refused: int


class Catalogue:  # mutable: it is the state that answers change
    """The list. `handle(event, now)` takes what a registry said and returns what changed, removals first."""

    def __init__(self, guards: Guards | None = None) -> None:
        self._guards = guards or Guards()
        self._known: dict[str, Instance] = {}
        self._answered_at: float | None = None
        self._empty_since: float | None = None
        self._doubted: frozenset[Key] = frozenset()
        self._doubted_since = 0.0
        self._doubtful_since: float | None = None
        self._silent_since: dict[Key, float] = {}
        self._answers = self._failures = self._empty_refused = self._shrinks_refused = 0

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All that are believed to be there."""
        return tuple(self._known.values())

    def age_s(self, now: float) -> float:
        """Seconds since the last answer; infinite before the first."""
        return float("inf") if self._answered_at is None else max(0.0, now - self._answered_at)

    def look_again_s(self, now: float) -> float | None:
        """How soon a read could settle what is held back; None where nothing is. A registry that answers only when
        something changes must be asked by then."""
        due_at = [since + self._guards.silent_grace_s for since in self._silent_since.values()]
        if self._empty_since is not None and self._known:
            due_at.append(self._empty_since + self._guards.empty_grace_s)
        elif self._doubted:
            due_at.append(self._doubted_since + self._guards.confirm_s)
        if self._doubtful_since is not None:
            due_at.append(self._doubtful_since + self._guards.confirm_s)
        return max(0.0, min(due_at) - now) if due_at else None

    def statistics(self) -> CatalogueStatistics:
        """What was counted."""
        return CatalogueStatistics(self._answers, self._failures, self._empty_refused, self._shrinks_refused)

    def handle(self, event: Answered | Failed, now: float) -> tuple[Change, ...]:
        """Takes one reading of the registry at `now` (monotonic seconds) and returns what changed by it."""
        if isinstance(event, Failed):
            self._failures += 1
            return ()
        self._answers += 1
        now -= event.age_s
        self._answered_at = now if self._answered_at is None else max(now, self._answered_at)
        self._doubtful_since = now if event.doubtful else None
        listed = _newest_lives(event.instances)
        if listed:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        held = self._held(event.silent, now)
        missing = [known for node_id, known in self._known.items() if node_id not in listed and known.key not in held]
        over = {known.key for known in missing if known.key in event.gone}
        over |= self._believed({known.key for known in missing} - over, len(self._known) - len(over), now)
        changes: list[Change] = []
        for node_id, epoch in sorted(over):
            del self._known[node_id]
            changes.append(Remove(node_id, epoch))
        changes += self._enter(listed)
        return tuple(changes)

    def _held(self, silent: frozenset[Key], now: float) -> set[Key]:
        """Those of the known who are silent, and not for long enough to be believed gone."""
        known = {one.key for one in self._known.values()} & silent if silent else set()
        first = {key: self._silent_since.get(key, now) for key in known}
        self._silent_since = {key: at for key, at in first.items() if now - at < self._guards.silent_grace_s}
        return set(self._silent_since)

    def _enter(self, listed: dict[str, Instance]) -> list[Change]:
        removed: list[Change] = []
        inserted: list[Change] = []
        for node_id, instance in listed.items():
            known = self._known.get(node_id)
            if known == instance:
                continue
            if known is not None and known.node_epoch != instance.node_epoch:
                removed.append(Remove(node_id, known.node_epoch))
            self._known[node_id] = instance
            inserted.append(Insert(instance))
        return removed + inserted

    def _believed(self, absent: set[Key], known_count: int, now: float) -> set[Key]:
        """Which of the unexplained absences, out of `known_count` believed so far, are believed now."""
        if not absent:
            self._doubted = frozenset()
            return set()
        if self._empty_since is not None:
            self._doubted = frozenset()
            if now - self._empty_since >= self._guards.empty_grace_s:
                return absent
            self._empty_refused += 1
            return set()
        if 2 * len(absent) <= known_count and self._doubtful_since is None:
            self._doubted = frozenset()
            return absent
        confirmed: set[Key] = set()
        if self._doubted:
            if now - self._doubted_since < self._guards.confirm_s:
                self._shrinks_refused += 1
                return set()
            confirmed = absent & self._doubted
        self._doubted, self._doubted_since = frozenset(absent - confirmed), now
        self._shrinks_refused += bool(self._doubted)
        return confirmed


def _newest_lives(instances: tuple[Instance, ...]) -> dict[str, Instance]:
    """One life for each node id: where a registry lists two, the one with the higher epoch began later."""
    listed: dict[str, Instance] = {}
    for instance in instances:
        other = listed.get(instance.node_id)
        if other is None or other.node_epoch <= instance.node_epoch:
            listed[instance.node_id] = instance
    return listed
