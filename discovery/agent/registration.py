"""A node's own entry in Consul, kept alive by a thread with a client of its own.

A watch may hold its connection for a minute, and a full pool once held up a heartbeat for 2.8 s: so this client is
used for the entry alone. Leaving takes three steps: maintenance on, one propagation, then the entry goes; whatever of
it fails is left to the time to live. This module decides nothing about the entry: `discovery/agent/tenure.py` does.
Read `discovery/agent/registry.py` next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.meta import check_id, registration, service_id, status_note, status_word
from discovery.agent.tenure import Do, Event, State, Tenure
from discovery.consul import ConsulClient, parsed
from discovery.instance import Readiness
from fabric.errors import OverspillError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discovery.agent.url import ConsulSettings
    from discovery.instance import Instance

_log = logging.getLogger(__name__)
CLOSE_WAIT_S = 1.0
LEAVE_ANSWER_S = 1.0
"""What each call may take when a node leaves: an agent that hangs must not hold up its end."""


@dataclass(frozen=True, slots=True)
class RegistrationStatistics:
    """Counts of one entry since its start; `longest_gap_s` is the longest time between two heartbeats that arrived."""

    beats: int
    failures: int
    longest_gap_s: float
    re_registrations: int
    superseded: bool


class ConsulRegistration:  # mutable: owns a thread and a client
    """The entry of one life of a node. Raises RegistryUnavailable, and InvalidArgument for facts that do not fit."""

    def __init__(self, settings: ConsulSettings, instance: Instance) -> None:
        self._settings, self._instance = settings, instance
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._drained_at: float | None = None
        self._failing = False
        self._beats = self._failures = 0
        self._longest_gap_s = 0.0
        self._passed_at = time.monotonic()
        self._client = ConsulClient(settings)
        try:
            self._enter(first=True)
        except BaseException:  # whatever it was, the connections must not outlive it
            self._client.close()
            raise
        # Nodes started together must not beat together; the seed makes each node's rhythm its own.
        self._tenure = Tenure(settings.times, Random(instance.node_epoch), time.monotonic())  # noqa: S311
        self._carry_out((Do.PASS,))
        self._thread = threading.Thread(target=self._run, name="overspill-consul-heartbeat", daemon=False)
        self._thread.start()

    def statistics(self) -> RegistrationStatistics:
        """What was counted."""
        return RegistrationStatistics(
            self._beats,
            self._failures,
            self._longest_gap_s,
            self._tenure.reentries,
            self._tenure.state is State.SUPERSEDED,
        )

    def update(self, instance: Instance) -> None:
        """Replaces the facts under the same id and epoch. Raises RegistryUnavailable; the old facts then stay."""
        assert instance.key == self._instance.key, "another life of a node needs a registration of its own"
        if os.getpid() != self._pid:  # asked before the lock, which the parent's thread may have held
            raise ConsulError(Fault.FORKED, self._settings.place)
        with self._lock:
            if self._stop.is_set():
                raise RegistryUnavailable("the registration was closed before this update; register again")
            if self._tenure.state is State.SUPERSEDED or self._gave_way():
                return  # the entry is another life's
            before, self._instance = self._instance, instance
            try:
                self._enter(first=False)
            except OverspillError:
                self._instance = before
                raise
            self._carry_out((Do.PASS,))

    def close(self) -> None:
        """Takes the entry away. Safe to call twice; never raises: what cannot be removed expires."""
        left = self._stop.is_set()
        self._stop.set()
        self._client.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)
        if not left:
            self._leave()

    # The heartbeat's thread.

    def _run(self) -> None:
        main = threading.main_thread()
        while main.is_alive():
            wait_s = self._tenure.due_s - time.monotonic()
            # In steps, so that it notices soon when the program has ended.
            if self._stop.wait(min(0.5, max(0.0, wait_s))):
                break
            if wait_s <= 0.5 and time.monotonic() >= self._tenure.due_s:
                with self._lock:
                    if self._stop.is_set():
                        break
                    asked = self._tenure.beat(time.monotonic())
                    if not asked:
                        break
                    self._carry_out(asked)
        else:
            self._stop.set()
            self._leave()
        self._client.close()

    def _carry_out(self, asked: Sequence[Do]) -> None:
        """Does what the tenure asks until it asks no more."""
        while asked:
            event = Event.FAILED
            for do in asked:
                event = self._do(do)
                if do is Do.GIVE_WAY:
                    return
            asked = self._tenure.handle(event, time.monotonic())

    def _do(self, do: Do) -> Event:
        try:
            if do is Do.PASS:
                return self._pass()
            if do is Do.LOOK:
                return self._look(self._client)
            if do is Do.ENTER:
                self._enter(first=False)
                return Event.ENTERED
        except Exception as error:  # noqa: BLE001 - see below
            # A fault of our own must not end the heartbeat, and so take a live node off the list.
            self._failures += 1
            if not isinstance(error, OverspillError):
                _log.exception("a beat of node %r failed", self._instance.node_id)
            if not self._failing and not self._stop.is_set():
                _log.warning("%s; trying again within %g s", error, self._settings.times.heartbeat_s)
            self._failing = True
            return Event.FAILED
        _log.error("another process entered itself as node %r; this one no longer does", self._instance.node_id)
        return Event.OTHERS

    def _pass(self) -> Event:
        note = status_note(self._instance)
        path = f"/v1/agent/check/{status_word(self._instance)}/{check_id(self._instance)}"
        try:
            self._client.put(path, (("note", note),) if note else ())
        except ConsulError as error:
            if error.fault is Fault.UNKNOWN_CHECK:
                return Event.UNKNOWN
            raise
        now = time.monotonic()
        self._longest_gap_s = max(self._longest_gap_s, now - self._passed_at)
        self._passed_at = now
        self._beats += 1
        if self._failing:
            _log.warning("Consul at %s takes heartbeats again", self._settings.place)
        self._failing = False
        return Event.PASSED

    def _gave_way(self) -> bool:
        """Looks who holds the id before facts are written over it: a later life's beat would not notice. Raises
        RegistryUnavailable."""
        if self._look(self._client) is not Event.OTHERS:
            return False
        for event in (Event.REFRESH_DUE, Event.OTHERS):
            asked = self._tenure.handle(event, time.monotonic())
        assert asked == (Do.GIVE_WAY,), "the table says so"
        self._do(Do.GIVE_WAY)
        return True

    def _look(self, client: ConsulClient) -> Event:
        """Who holds the id at this agent now."""
        try:
            entry = parsed(client.get(f"/v1/agent/service/{service_id(self._instance.node_id)}"), self._settings.place)
            epoch = str(entry["Meta"]["epoch"])
        except ConsulError as error:
            if error.fault is Fault.UNKNOWN_CHECK:
                return Event.NOBODYS
            raise
        except (KeyError, TypeError):
            return Event.NOBODYS  # an entry that says of itself nothing at all
        return Event.MINE if epoch == str(self._instance.node_epoch) else Event.OTHERS

    def _enter(self, *, first: bool) -> None:
        # Only a new life sweeps the checks of the old one away: later, a maintenance check may be an operator's.
        params = (("replace-existing-checks", "true"),) if first else ()
        self._client.put("/v1/agent/service/register", params, registration(self._instance, self._settings))
        draining = self._instance.readiness is Readiness.DRAINING
        if draining != (self._drained_at is not None):
            self._maintain(self._client, enable=draining)

    def _maintain(self, client: ConsulClient, *, enable: bool) -> None:
        params = (("enable", "true" if enable else "false"), ("reason", "it drains"))
        client.put(f"/v1/agent/service/maintenance/{service_id(self._instance.node_id)}", params)
        self._drained_at = time.monotonic() if enable else None

    # Leaving.

    def _leave(self) -> None:
        if os.getpid() != self._pid or self._tenure.state is State.SUPERSEDED:
            return  # a forked child must not take its parent's entry away
        with suppress(OverspillError), self._lock:
            client = ConsulClient(self._settings, LEAVE_ANSWER_S)
            try:
                if self._look(client) is not Event.MINE:
                    return
                if self._drained_at is None:
                    self._maintain(client, enable=True)
                assert self._drained_at is not None, "it drains"
                time.sleep(max(0.0, self._drained_at + self._settings.times.propagation_s - time.monotonic()))
                client.put(f"/v1/agent/service/deregister/{service_id(self._instance.node_id)}")
            finally:
                client.close()
