"""One worker as the router sees it: whether it has a link, whether it is trusted, and whether it should get work.

    state     | event       | new state | what follows
    PENDING   | LINK_UP     | READY     | takes work; what it costs is a pessimistic guess until it has answered
    PENDING   | UNLISTED    | GONE      | nobody vouches for it, so nobody opens a link to it any more
    READY     | LINK_LOST   | PENDING   | no new work from this instant; its link is opened again
    READY     | FAILED_OFTEN| EJECTED   | no work for a while, unless it is the last one usable
    READY     | UNLISTED    | UNLISTED  | its link is healthy: it finishes its work and gets new only if nobody else can
    EJECTED   | TIME_OVER   | PROBATION | one request at a time
    EJECTED   | LINK_LOST   | PENDING   |
    EJECTED   | UNLISTED    | UNLISTED  |
    PROBATION | ANSWERED    | READY     |
    PROBATION | FAILED      | EJECTED   | for twice as long
    PROBATION | LINK_LOST   | PENDING   |
    PROBATION | UNLISTED    | UNLISTED  |
    UNLISTED  | LISTED      | READY     |
    UNLISTED  | LINK_LOST   | GONE      |

A registry is a hint: its word adds workers and ends the search for lost ones, but it never cuts a healthy link. What a
node says of itself (`DRAINING`, `STARTING`) is no state here but a fact that is asked before each dispatch. This module
never opens a link and reads no clock. Read `router/table.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from discovery.instance import Readiness
from fabric.errors import IllegalTransition
from fabric.transport import WireName
from router.learned import Speed, TransportLine
from router.load import WorkAhead

if TYPE_CHECKING:
    from discovery.instance import Instance, ModelFacts
    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena
    from fabric.transport import Answer, Call, PeerFacts
    from router.config import RouterConfig


class WorkerLink(Protocol):
    """What the router needs of a link: all wires to one node."""

    @property
    def wire(self) -> WireName | None:
        """The wire that carries new calls now; None while it changes."""

    @property
    def peer(self) -> PeerFacts | None:
        """What the node said of itself."""

    @property
    def suspect(self) -> bool:
        """Whether the node is silent, though nothing says that it is gone."""

    @property
    def arena(self) -> Arena | None:
        """Memory that the node can reach; None if it can reach none of ours."""

    @property
    def alive(self) -> bool:
        """Whether any wire carries calls."""

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError."""

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same on the background loop."""

    def close(self, deadline: Deadline) -> None:
        """Lets running calls end until the deadline."""

    def abort(self, reason: str) -> None:
        """Ends at once."""


class State(Enum):
    """What a worker is to the router."""

    PENDING = "pending"
    READY = "ready"
    EJECTED = "ejected"
    PROBATION = "on probation"
    UNLISTED = "unlisted"
    GONE = "gone"


class Event(Enum):
    """What happens to it."""

    LINK_UP = "link up"
    LINK_LOST = "link lost"
    FAILED_OFTEN = "failed often"
    FAILED = "failed"
    ANSWERED = "answered"
    TIME_OVER = "time over"
    UNLISTED = "unlisted"
    LISTED = "listed"


_READY, _DRAINING, _STARTING = State.READY, Readiness.DRAINING, Readiness.STARTING
"""To look a member up in its enum costs 60 ns, and each pick would do it three times."""

EDGES: dict[State, dict[Event, State]] = {
    State.PENDING: {Event.LINK_UP: State.READY, Event.UNLISTED: State.GONE},
    State.READY: {
        Event.LINK_LOST: State.PENDING,
        Event.FAILED_OFTEN: State.EJECTED,
        Event.UNLISTED: State.UNLISTED,
    },
    State.EJECTED: {
        Event.TIME_OVER: State.PROBATION,
        Event.LINK_LOST: State.PENDING,
        Event.UNLISTED: State.UNLISTED,
    },
    State.PROBATION: {
        Event.ANSWERED: State.READY,
        Event.FAILED: State.EJECTED,
        Event.LINK_LOST: State.PENDING,
        Event.UNLISTED: State.UNLISTED,
    },
    State.UNLISTED: {Event.LISTED: State.READY, Event.LINK_LOST: State.GONE},
    State.GONE: {},
}


HOLDS_MAX = 1024
"""As many as a node keeps."""


class Worker:  # mutable: one life of one node, with all that was learned of it
    """One life of one node. `link` is None while PENDING. The table's lock guards all but reads of `state`."""

    __slots__ = (
        "_config",
        "_eject_s",
        "_lines",
        "_wire",
        "ahead",
        "ejected_until_s",
        "failures",
        "holds",
        "instance",
        "is_local",
        "line",
        "link",
        "name",
        "silent",
        "speed",
        "state",
        "story",
        "trouble",
    )

    def __init__(self, instance: Instance, config: RouterConfig) -> None:
        self.instance = instance
        self.name = instance.node_id
        self.state = State.PENDING
        self.link: WorkerLink | None = None
        self.is_local = False
        self.ahead = WorkAhead()
        self._wire = WireName.RPC
        self.line = TransportLine(WireName.RPC, instance.rtt_prior_ms)
        self._lines = {WireName.RPC: self.line}
        self.speed = Speed()
        self.story: list[str] = []
        self.trouble = ""
        self.silent = False
        self.ejected_until_s = 0.0
        self._config = config
        self._eject_s = config.eject_first_s
        self.failures = 0
        self.holds: set[bytes] = set()
        """Residents that it is thought to keep; what is wrong here costs one more message, never an answer."""

    def linked(self, link: WorkerLink) -> bool:
        """Its link is open. True if that made it local, or made it no longer so."""
        self._go(Event.LINK_UP)
        self.link = link
        self.trouble = ""
        return self.wire_changed()

    def carried_by(self, wire: WireName) -> TransportLine:
        """What is known of a wire to it; from now on it is taken to be the one that carries new calls."""
        if wire is not self._wire:  # asked first: a member of an enum is slow to find in a dict
            line = self._lines.get(wire)
            if line is None:
                line = self._lines[wire] = TransportLine(wire, self.instance.rtt_prior_ms)
            self._wire, self.line = wire, line
        return self.line

    def will_hold(self, digest: bytes) -> None:
        """It is sent a resident."""
        if len(self.holds) >= HOLDS_MAX:
            self.holds.clear()
        self.holds.add(digest)

    def wire_changed(self) -> bool:
        """Its link may use another wire now. True if that made it local, or made it no longer so."""
        wire = self.link.wire if self.link is not None else None
        if wire is None:
            return False
        self.carried_by(wire)
        was_local, self.is_local = self.is_local, wire is WireName.LOCAL
        return was_local is not self.is_local

    def link_lost(self) -> None:
        """Its link is dead: no new work from now on."""
        self._go(Event.LINK_LOST)
        self.link = None
        self.silent = False

    def answered(self) -> None:
        """It answered a request, with a reply or with an error of the request's own making."""
        self.failures = 0
        if self.state is not _READY and self.state is State.PROBATION:
            self._go(Event.ANSWERED)
            self._eject_s = self._config.eject_first_s

    def failed(self, *, last_usable: bool, now: float) -> None:
        """It failed a request for a reason of its own; `last_usable`: nobody else could take work."""
        self.failures += 1
        if self.state is State.PROBATION and not last_usable:
            self._go(Event.FAILED)
        elif self.state is State.READY and self.failures >= self._config.eject_after and not last_usable:
            self._go(Event.FAILED_OFTEN)
        else:
            return
        self.failures = 0
        self.ejected_until_s = now + self._eject_s
        self._eject_s = min(self._eject_s * 2, self._config.eject_max_s)

    def unlisted(self) -> None:
        """The registry no longer knows it."""
        self._go(Event.UNLISTED)

    def listed(self, instance: Instance) -> None:
        """The registry knows it, with these facts."""
        self.instance = instance
        if self.state is State.UNLISTED:
            self._go(Event.LISTED)

    def why_not(self, now: float) -> str:
        """Why it should get no new work now; empty if it should. An ejection that is over ends here."""
        if self.state is not _READY:
            if self.state is State.EJECTED and now >= self.ejected_until_s:
                self._go(Event.TIME_OVER)
            if self.state is not State.PROBATION:
                return f"{self.state.value} ({self.trouble})" if self.trouble else str(self.state.value)
            if self.ahead.out:
                return "on probation with a request out"
        readiness = self.instance.readiness
        if readiness is _DRAINING or readiness is _STARTING:
            return str(readiness.value)
        # Whether its link is alive need not be asked: whoever sees it die says so before it picks again.
        return "silent" if self.silent else ""

    @property
    def can_carry(self) -> bool:
        """Whether a request could reach it at all, trusted or not: the last resort where nobody else is usable."""
        linked = self.link is not None and self.link.alive
        return linked and self.instance.readiness is not Readiness.DRAINING

    def facts(self, model: str) -> ModelFacts | None:
        """What it says of a model it takes requests for; None if it does not offer it, or nothing is known of it."""
        for facts in self.instance.models:
            if facts.name == model and not facts.refused:
                return facts
        return None

    @property
    def offers_anything(self) -> bool:
        """Whether its models are unknown, so that any may be asked of it (an address that an operator wrote down)."""
        return not self.instance.models and self.instance.node_epoch == 0

    def _go(self, event: Event) -> None:
        found = EDGES[self.state].get(event)
        if found is None:
            told = ", ".join(self.story)
            raise IllegalTransition(
                f"worker {self.name} is {self.state.value} and met '{event.value}' after {told}; report it"
            )
        self.story = [*self.story[-31:], f"{event.value} -> {found.value}"]
        self.state = found

    def __repr__(self) -> str:
        return f"<Worker {self.name}: {self.state.value}, {self.ahead!r}>"
