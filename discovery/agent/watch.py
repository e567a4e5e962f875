"""A running watch of one service in Consul: the thread that reads, hands over to the follower, and tells what changed.

The present list is told before it exists; if Consul cannot be reached then, the last good list on disk is, and the
watch says that it is stale. After that no failure removes anybody. An empty answer is asked about: where ACLs hide
the entries it is a failure and no list. This module decides nothing: `discovery/agent/follower.py` and
`discovery/catalogue.py` do. Read `discovery/agent/registration.py` next.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.follower import Apply, Ask, Follower
from discovery.agent.last_good import fabric_of, load, save, usual_place
from discovery.agent.listing import ListingReader
from discovery.agent.nearness import Nearness
from discovery.catalogue import Answered, Catalogue, CatalogueStatistics, Failed
from discovery.consul import ConsulClient, parsed
from fabric.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.agent.follower import Command
    from discovery.agent.listing import Listing
    from discovery.agent.url import ConsulSettings
    from discovery.consul import Answer
    from discovery.instance import Change

_log = logging.getLogger(__name__)
CLOSE_WAIT_S = 0.8
SILENT_BEATS = 1.5
"""Beats that an agent may miss to say once it hears again. One of 1.8.7 holds up all beats, and then calls all nodes
critical, while it tells a hung leader of any change (28 s measured); each is heard again within one beat."""
SAVE_GAP_S = 10.0
"""The last good list is written at once, then at most this often."""


@dataclass(frozen=True, slots=True)
class ConsulWatchStatistics:
    """Counts of one watch since its start."""

    reads: int
    failures: int
    index_resets: int
    unreadable: int
    """Entries that were no node's, or garbled, each counted once."""
    critical: int
    """Entries that a critical check keeps out now."""
    hidden_refused: int
    """Answers that ACLs had emptied, and that were not believed."""
    from_file: bool
    """Whether the list began as the last good one on disk, and Consul has not answered yet."""
    saves_failed: int
    catalogue: CatalogueStatistics
    """With the empty and the shrunk answers that were not believed."""


class ConsulWatch:  # mutable: owns a thread and a client
    """A running watch. Raises RegistryUnavailable if neither Consul nor the file gives a first list."""

    def __init__(self, settings: ConsulSettings, on_changes: Callable[[tuple[Change, ...]], None]) -> None:
        self._settings, self._on_changes = settings, on_changes
        self._client = ConsulClient(settings)
        self._reader = ListingReader()
        self._nearness = Nearness(settings, self._client)
        silent_grace_s = SILENT_BEATS * settings.times.heartbeat_s
        self._catalogue = Catalogue(replace(settings.times.guards, silent_grace_s=silent_grace_s))
        self._follower = Follower(settings.times, Random(secrets.randbits(64)), time.monotonic())  # noqa: S311
        self._stop = threading.Event()
        self._file = usual_place(settings)
        self._saved_at: float | None = None
        self._unsaved = True
        self._trouble = ""
        self._reads = self._hidden_refused = self._saves_failed = self._critical = 0
        self._unreadable: frozenset[str] = frozenset()
        self._from_file = False
        try:
            commands = self._start()
        except BaseException:  # whatever it was, the connections must not outlive it
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(commands,), name="overspill-consul-watch", daemon=True)
        self._thread.start()

    def age_s(self) -> float:
        """Seconds since Consul's servers were last heard of; up to a read's wait (60 s) where nothing changes."""
        return self._catalogue.age_s(time.monotonic())

    def trouble(self) -> str:
        """Why the list may be out of date, as a sentence; nothing where it is not."""
        return self._trouble

    def statistics(self) -> ConsulWatchStatistics:
        """What was counted."""
        told = self._catalogue.statistics()
        return ConsulWatchStatistics(
            reads=self._reads,
            failures=told.failures,
            index_resets=self._follower.resets,
            unreadable=self._reader.skipped,
            critical=self._critical,
            hidden_refused=self._hidden_refused,
            from_file=self._from_file,
            saves_failed=self._saves_failed,
            catalogue=told,
        )

    def close(self) -> None:
        """Ends the watch within a second; no callback begins after it returned. Safe twice and inside a callback."""
        self._stop.set()
        self._client.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)

    # The first list, in the caller's thread.

    def _start(self) -> tuple[Command, ...]:
        ask = self._follower.begin(time.monotonic())
        try:
            answered, commands = self._ask(ask)
        except ConsulError as error:
            stale = load(self._file, fabric_of(self._settings)) if self._file is not None else None
            if stale is None or not stale.instances:
                raise
            self._troubled(error)
            self._from_file = True
            changes = self._catalogue.handle(Answered(stale.instances, age_s=stale.age_s), time.monotonic())
            _log.warning("starting with %d workers as of %.0f s ago", len(stale.instances), stale.age_s)
            self._on_changes(changes)
            return self._follower.failed(time.monotonic())
        self._on_changes(self._catalogue.handle(answered, time.monotonic()))
        self._keep()
        return tuple(command for command in commands if isinstance(command, Ask))

    # The rest, in its own.

    def _run(self, commands: tuple[Command, ...]) -> None:
        try:
            while not self._stop.is_set():
                commands = self._step(commands)
        finally:
            self._client.close()

    def _step(self, commands: tuple[Command, ...]) -> tuple[Command, ...]:
        ask = commands[-1]
        assert isinstance(ask, Ask), "a follower always asks on"
        if self._stop.wait(ask.pause_s):
            return commands
        ask = self._follower.ask(ask, self._catalogue.look_again_s(time.monotonic()))
        try:
            answered, commands = self._ask(ask)
            if not self._stop.is_set() and any(isinstance(command, Apply) for command in commands):
                self._apply(answered)
        except ConsulError as error:
            if not self._stop.is_set():
                self._troubled(error)
                self._catalogue.handle(Failed(str(error)), time.monotonic())
            return self._follower.failed(time.monotonic())
        except Exception:  # noqa: BLE001 - see below
            # A fault of our own in reading one answer must not end the watch for good: it is told, with its traceback.
            _log.exception("an answer of %s could not be read", self._settings.place)
            self._catalogue.handle(Failed("an answer could not be read"), time.monotonic())
            return self._follower.failed(time.monotonic())
        return commands

    def _ask(self, ask: Ask) -> tuple[Answered, tuple[Command, ...]]:
        """One read, and what the follower makes of it. Raises ConsulError."""
        settings = self._settings
        params = [("cached", "")]
        if ask.index:
            params += [("index", str(ask.index)), ("wait", f"{max(1, round(ask.wait_s * 1e3))}ms")]
        if settings.dc:
            params.append(("dc", settings.dc))
        began_s = time.thread_time()
        path = f"/v1/health/service/{settings.service}"
        answer = self._client.get(path, tuple(params))
        index = answer.index
        self._reads += 1
        listing = read_listing(self._reader, answer, settings)
        if self._lacks_most(listing):
            # The agent's memory may hold what ACLs once left of the list, until the list changes: the leader is asked.
            answer = self._client.get(path, (("dc", settings.dc),) if settings.dc else ())
            listing = read_listing(self._reader, answer, settings)
        self._refuse_hidden(answer, listing)
        self._critical = len(listing.critical)
        instances = self._nearness.told(listing, time.monotonic())
        doubtful = not self._unreadable.issuperset(listing.unreadable)
        self._unreadable = frozenset(listing.unreadable)
        answered = Answered(instances, age_s=answer.age_s, silent=frozenset(listing.silent), doubtful=doubtful)
        commands = self._follower.answered(index, time.thread_time() - began_s, time.monotonic())
        self._healed(answer)
        return answered, commands

    def _lacks_most(self, listing: Listing) -> bool:
        known = self._catalogue.instances
        there = {one.node_id for one in listing.instances}
        return 2 * sum(one.node_id not in there for one in known) > len(known)

    def _refuse_hidden(self, answer: Answer, listing: Listing) -> None:
        """An answer from which ACLs took entries that we know of, or all of them, is a failure. Raises ConsulError."""
        there = {one.node_id for one in listing.instances}
        whole = not answer.filtered or all(one.node_id in there for one in self._catalogue.instances)
        if whole and (listing.instances or listing.critical):
            return
        if answer.filtered or hidden(self._client, self._settings):
            self._hidden_refused += 1
            self._client.renew_token()
            raise ConsulError(Fault.FILTERED, self._settings.place)

    def _apply(self, answered: Answered) -> None:
        changes = self._catalogue.handle(answered, time.monotonic())
        self._unsaved = self._unsaved or bool(changes)
        if changes:
            self._tell(changes)
        self._keep()

    def _tell(self, changes: tuple[Change, ...]) -> None:
        try:
            self._on_changes(changes)
        except Exception:  # noqa: BLE001 - see below
            # A fault of whoever watches must not end the watch for good: it is told, with its traceback.
            _log.exception("a watcher of %s failed on %d changes", self._settings.place, len(changes))

    def _keep(self) -> None:
        """Writes the last good list, if it is one and it is time."""
        now = time.monotonic()
        due_s = SAVE_GAP_S if self._unsaved else self._settings.times.wait_s
        if self._file is None or not self._catalogue.instances:
            return
        if self._saved_at is None or now - self._saved_at >= due_s:
            self._saved_at = now
            self._unsaved = False
            if not save(self._file, self._catalogue.instances, fabric_of(self._settings)):
                self._saves_failed += 1
                if self._saves_failed == 1:
                    _log.warning("the last good list cannot be written to %s; callers cannot start from it", self._file)

    def _troubled(self, error: ConsulError) -> None:
        if not self._trouble:  # the first failure in a row
            _log.warning("%s; going on with the last known list", error)
        self._trouble = f"discovery is stale: {error}"

    def _healed(self, answer: Answer) -> None:
        if answer.age_s > 0.0:
            self._trouble = (
                self._trouble or "discovery is stale: the agent has lost its servers and answers from memory"
            )
            return
        self._from_file = False
        if not self._follower.proven:
            return
        if self._trouble:
            _log.warning("Consul at %s answers again", self._settings.place)
        self._trouble = ""


def read_listing(reader: ListingReader, answer: Answer, settings: ConsulSettings) -> Listing:
    """The answer to a health read, read. Raises ConsulError."""
    try:
        return reader.read(parsed(answer, settings.place))
    except ProtocolError:
        raise ConsulError(Fault.GARBLED, settings.place) from None


def hidden(client: ConsulClient, settings: ConsulSettings) -> bool:
    """Whether ACLs hide the service or nodes from us: agents before 1.11 do not say so by themselves."""
    wanted = [
        {"Resource": "service", "Access": "read", "Segment": settings.service},
        {"Resource": "node", "Access": "read", "Segment": settings.service},
    ]
    try:
        allowed = parsed(client.post("/v1/internal/acl/authorize", json.dumps(wanted)), settings.place)
        return not all(one["Allow"] for one in allowed)
    except ConsulError as error:
        return error.fault in {Fault.DENIED, Fault.ACL_UNKNOWN}
    except (TypeError, KeyError):
        return False
