"""What carries out a link's machine: its channels, its timers, and who waits for a change.

Events come from callers' threads, from helpers that open wires and from the background loop: one lock orders them, and
no channel is opened, closed or called under it. This module decides nothing that the table says, and calls no request.
Read `fabric/link/pings.py` next.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent import futures
from random import Random
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import Fate, NodeLost, OverspillError, StaleEpoch
from fabric.link.machine import LinkMachine
from fabric.link.pings import probe_channel, watch_channel
from fabric.link.table import Do, Event, Role, State
from fabric.link.wires import ANY_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.link.loop import LoopThread, LoopTimer
    from fabric.link.machine import Command
    from fabric.link.wires import LinkConfig, Opener, Peer, Wires
    from fabric.transport import Channel, PeerFacts

_log = logging.getLogger(__name__)
_WAITING = frozenset({State.CONNECTING, State.FALLING_BACK})
_OPENED = {Role.PREFERRED: Event.PREFERRED_OPENED, Role.FALLBACK: Event.FALLBACK_OPENED}
_FAILED = {Role.PREFERRED: Event.PREFERRED_FAILED, Role.FALLBACK: Event.FALLBACK_FAILED}
_LOST = {Role.PREFERRED: Event.PREFERRED_LOST, Role.FALLBACK: Event.FALLBACK_LOST}
_DUE = {
    Do.SCHEDULE_PROBE: Event.PROBE_DUE,
    Do.SCHEDULE_RETRY: Event.RETRY_DUE,
    Do.SCHEDULE_HOLD: Event.HOLD_OVER,
}
_USE = {Do.USE_NONE: None, Do.USE_PREFERRED: Role.PREFERRED, Do.USE_FALLBACK: Role.FALLBACK}
_OPEN = {Do.OPEN_PREFERRED: Role.PREFERRED, Do.PROBE_PREFERRED: Role.PREFERRED, Do.OPEN_FALLBACK: Role.FALLBACK}
_DROP = {Do.FENCE_PREFERRED: (Role.PREFERRED,), Do.DROP_FALLBACK: (Role.FALLBACK,), Do.CLOSE_WIRES: tuple(Role)}


class Wiring:  # mutable: wires come and go
    """The wires to `peer`. `current` is the channel that new requests take, None while there is none; `out` the
    requests that are out, by identity, with their channel. `on_change` is called without locks after a change of state.
    """

    def __init__(
        self, peer: Peer, wires: Wires, config: LinkConfig, loop: LoopThread, on_change: Callable[[], None] | None
    ) -> None:
        self.peer, self.times, self._loop, self._on_change = peer, config.times, loop, on_change
        self._openers = {Role.PREFERRED: wires.preferred, Role.FALLBACK: wires.fallback}
        self._dialling = wires.dialling
        random = Random(config.seed ^ peer.node_epoch)  # noqa: S311 - spreads retries, hides nothing
        preferred, fallback = wires.preferred is not None, wires.fallback is not None
        self.machine = LinkMachine(config.times, random, preferred=preferred, fallback=fallback)
        self._expect = None if peer.node_epoch == ANY_EPOCH else (peer.node_id, peer.node_epoch)
        self.current: Channel | None = None
        self.channels: dict[Role, Channel] = {}
        self.facts: PeerFacts | None = None
        self.out: dict[int, Channel | None] = {}
        self.bound: dict[int, None] = {}
        """Those of `out` that may not run on another node."""
        self._silenced: Channel | None = None
        self._opening: set[Role] = set()
        self._timers: dict[Do, LoopTimer] = {}
        self._waiters: list[Callable[[], None]] = []
        self.changed = threading.Condition()
        self._closing = False
        self._reason = "the link was not connected yet"
        self.error: OverspillError | None = None
        self.preferred_trouble = ""
        """What kept the preferred wire from opening, or ended it, last."""
        self.moved = 0

    def handle(self, event: Event, reason: str = "", channel: Channel | None = None) -> None:
        """Gives the machine an event, of `channel` if that is named (and then only while it is one of ours)."""
        with self.changed:
            if channel is not None and self.role_of(channel) is None:
                return
            if self._closing and event is not Event.CLOSE and self.machine.state is not State.CLOSED:
                return
            before = self.machine.state
            commands = self.machine.handle(event, time.monotonic())
            if reason and before is not State.CLOSED:
                self._reason = reason
                if event is Event.PREFERRED_LOST:
                    self.preferred_trouble = reason
            actions = self._applied(commands, before)
        for action in actions:
            action()

    def pinged(self, role: Role, channel: Channel, *, answered: bool) -> None:
        """A ping of `channel` was answered, or not in time."""
        with self.changed:
            if self.channels.get(role) is not channel or self._closing:
                return
            before, now = self.machine.state, time.monotonic()
            if answered:
                commands = self.machine.ping_answered(role, now)
            else:
                self._reason = f"the {channel.wire.value} wire does not answer pings"
                patient = bool(self.bound) or not self.out
                commands = self.machine.ping_missed(role, now, patient=patient)
                if commands:
                    self._silenced = channel
            actions = self._applied(commands, before)
        for action in actions:
            action()

    def is_silent(self, channel: Channel) -> bool:
        """Whether it was given up for its silence and the other wire, if it is open, is silent too: a stopped node."""
        missed, doubted = self.machine.missed, self.times.suspect_missed
        others = [role for role, one in list(self.channels.items()) if one is not channel]
        return channel is self._silenced and all(missed[role] >= doubted for role in others)

    def begin_close(self, reason: str) -> list[Channel]:
        """From now on no request finds a wire, and nothing but the end changes the state. Returns the open channels."""
        with self.changed:
            self._closing, self._reason, self.current = True, reason, None
            return list(self.channels.values())

    def wait_live(self, deadline: Deadline) -> OverspillError | None:
        """Waits until a wire is live: then None, else what kept the last one from opening."""
        with self.changed:
            while self.current is None and self.machine.state in _WAITING:
                left_s = deadline.remaining_s(time.monotonic())
                if not left_s:
                    break
                self.changed.wait(left_s)
            if self.current is not None:
                return None
            return self.error or NodeLost(
                f"node {self.peer.node_id} did not answer in time; see that it is up and reachable", Fate.NEVER_RAN
            )

    def next_channel(self, on_change: Callable[[], None] | None = None) -> tuple[Channel | None, bool]:
        """The channel for a request that moves, and whether it pays to wait for one; `on_change` then tells, once."""
        with self.changed:
            state = self.machine.state
            if self._closing:
                return None, False
            if state is State.FENCING:  # the wire it comes from may still deliver it
                channel, waiting = None, True
            else:
                channel, waiting = self.current, self.current is None and state in _WAITING
            if waiting and on_change is not None:
                self._waiters.append(on_change)
            return channel, waiting

    def wait_change(self, timeout_s: float) -> None:
        """Waits until the state may have changed."""
        with self.changed:
            if self.machine.state in _WAITING or self.machine.state is State.FENCING:
                self.changed.wait(timeout_s)

    def gone(self, fate: Fate) -> NodeLost:
        """The error of a request that finds no wire."""
        again = "send it again" if fate is Fate.NEVER_RAN else "send it again if it may run twice"
        return NodeLost(f"no wire to node {self.peer.node_id} is left ({self._reason}); {again}", fate)

    def lost(self, channel: Channel, reason: str) -> None:
        """A caller or a ping found `channel` dead."""
        role = self.role_of(channel)
        if role is not None:
            self.handle(_LOST[role], reason, channel)

    def peer_changed(self, reason: str) -> None:
        """The node answered that it lives another life."""
        self.handle(Event.PEER_EPOCH_CHANGED, reason)
        if self.peer.node_epoch != ANY_EPOCH:
            self.handle(Event.CLOSE, reason)

    def beside(self, channel: Channel) -> Channel | None:
        """The other open wire, for a call that this one cannot carry."""
        return next((one for one in list(self.channels.values()) if one is not channel and one.alive), None)

    def role_of(self, channel: Channel) -> Role | None:
        """Which of our wires it is."""
        return next((role for role, one in list(self.channels.items()) if one is channel), None)

    def _applied(self, commands: tuple[Command, ...], before: State) -> list[Callable[[], None]]:
        """Does under the lock what must be seen at once; returns what may block or call back, for after it."""
        actions: list[Callable[[], None]] = []
        for command in commands:
            do = command.do
            if do in _USE:
                role_used = _USE[do]
                self.current = None if role_used is None else self.channels[role_used]
            elif do in _DROP:
                for role in _DROP[do]:
                    actions += self._dropped(role, do)
            elif do in _OPEN:
                actions += self._open_soon(_OPEN[do], probe=do is Do.PROBE_PREFERRED)
            elif do in _DUE:
                self._arm(do, command.delay_s)
            else:
                # MOVE_IN_FLIGHT, FAIL_IN_FLIGHT: each request's own thread wakes below and goes where the state says.
                assert do in {Do.MOVE_IN_FLIGHT, Do.FAIL_IN_FLIGHT}, f"{do} is carried out"
        state = self.machine.state
        if state is State.DOWN and self.peer.node_epoch == ANY_EPOCH:
            self._expect = None  # whoever answers at that address next is the peer
        if state is State.CLOSED:
            for timer in self._timers.values():
                timer.cancel()
            actions.append(self._dialling.give_up)
        self.changed.notify_all()
        actions += self._waiters
        self._waiters = []
        if state is not before and self._on_change is not None:
            tell = self._on_change
            actions.append(tell)
        return actions

    def _dropped(self, role: Role, do: Do) -> list[Callable[[], None]]:
        channel = self.channels.pop(role, None)
        reason = self._reason
        actions: list[Callable[[], None]] = []
        if channel is not None:
            if self.current is channel:
                self.current = None
            aborted = channel
            actions.append(lambda: aborted.abort(reason))
        if do is Do.FENCE_PREFERRED:
            # Aborting a local session fences it: its arena is never lent again.
            actions.append(lambda: self.handle(Event.FENCED))
        return actions

    def _arm(self, do: Do, delay_s: float) -> None:
        earlier = self._timers.pop(do, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[do] = self._loop.call_later(delay_s, lambda: self.handle(_DUE[do]))

    def _open_soon(self, role: Role, *, probe: bool) -> list[Callable[[], None]]:
        if role in self._opening:  # the try under way serves this state too
            return []
        opener = self._openers[role]
        assert opener is not None, "the machine opens wires that there are"
        self._opening.add(role)
        return [lambda: self._loop.run_blocking(lambda: self._open(role, opener, probe=probe))]

    def _open(self, role: Role, opener: Opener, *, probe: bool) -> None:
        """Opens a wire, in a helper thread."""
        channel: Channel | None = None
        try:
            allowed_s = max(self.times.probe_s, self.times.connect_s) if probe else self.times.connect_s
            channel = opener(Deadline.after(allowed_s, time.monotonic()), self._expect)
            if probe:
                self._loop.submit(probe_channel(channel, self.times)).result(2 * self.times.connect_s)
        except OverspillError as error:
            self._failed(role, error, channel)
        except (TimeoutError, futures.CancelledError):  # the loop is closing, or did not come to it in time
            self._failed(role, NodeLost("the wire's probe was not answered in time", Fate.NEVER_RAN), channel)
        except Exception as error:  # noqa: BLE001 - whatever it is, the link must not wait for ever
            _log.exception("a %s wire to node %s could not be opened", role.value, self.peer.node_id)
            self._failed(role, NodeLost(f"a wire could not be opened ({error}); see the log", Fate.NEVER_RAN), channel)
        else:
            self._opened(role, channel)

    def _opened(self, role: Role, channel: Channel) -> None:
        facts = channel.peer
        known = (facts.node_id, facts.node_epoch)
        if self._expect is not None and known != self._expect:
            self._failed(role, StaleEpoch(f"{known} answered instead of {self._expect}"), channel)
            return
        with self.changed:
            self._opening.discard(role)
            self._expect, self.facts = known, facts
            self.channels[role] = channel
        self.handle(_OPENED[role], channel=channel)
        if self.channels.get(role) is channel:
            try:
                self._loop.submit(watch_channel(self, role, channel))
            except OverspillError as error:  # the loop is closed, and so is whoever owns this link
                self.handle(Event.CLOSE, str(error))

    def _failed(self, role: Role, error: OverspillError, channel: Channel | None) -> None:
        if channel is not None:
            channel.abort(str(error))
        with self.changed:
            self._opening.discard(role)
            self.error = error.with_traceback(None)
            self.error.__context__ = None  # its traceback leads to frames that hold this object
            if role is Role.PREFERRED:
                self.preferred_trouble = str(error)
        # Another node at the local path is no news of this one while rpc can ask it.
        if isinstance(error, StaleEpoch) and (role is Role.FALLBACK or self._openers[Role.FALLBACK] is None):
            self.peer_changed(str(error))
        else:
            self.handle(_FAILED[role], str(error))
