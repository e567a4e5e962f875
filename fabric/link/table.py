"""The failover table: which of a link's two wires is used, and what is done when one opens, stalls, dies or heals.

A link has a preferred wire (local or rdma) and a fallback (rpc). For each state and event the table says the next state
and what to do; an event without an edge is a bug of ours. `docs/state-machines.md` is drawn from it. This module has no
code that could decide anything; read `fabric/link/machine.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """The two wires of a link."""

    PREFERRED = "preferred"
    FALLBACK = "fallback"


class State(Enum):
    """What a link is doing. The name tells the wire that new requests take."""

    CONNECTING = "connecting"  # none; the preferred wire is being opened, requests wait
    FALLING_BACK = "falling back"  # none; the fallback is being opened, requests wait
    PREFERRED_ONLY = "preferred only"  # preferred; there is no fallback, or not yet
    PREFERRED_LIVE = "preferred live"  # preferred; the fallback stands by
    SUSPECT = "suspect"  # fallback; the preferred wire missed pings, its old requests wait
    FENCING = "fencing"  # fallback; the preferred wire is being fenced, its old requests wait
    FALLBACK_LIVE = "fallback live"  # fallback; the preferred wire will be probed
    PROBING = "probing"  # fallback; the preferred wire is being probed
    STANDBY = "standby"  # fallback; the preferred wire is good again and waits out its hold-down
    DOWN = "down"  # none; requests fail at once, the next try is scheduled
    CLOSED = "closed"


class Event(Enum):
    """What happened."""

    PREFERRED_OPENED = "preferred opened"
    PREFERRED_FAILED = "preferred failed"  # it could not be opened, or its probe failed
    PREFERRED_LOST = "preferred lost"  # signalled: an end of stream, an error of its device
    PREFERRED_DOUBTED = "preferred doubted"  # a few pings missed
    PREFERRED_SILENT = "preferred silent"  # more pings missed
    PREFERRED_ANSWERED = "preferred answered"  # good pings in a row after a doubt
    FENCED = "fenced"  # nobody writes for the preferred wire any more
    FALLBACK_OPENED = "fallback opened"
    FALLBACK_FAILED = "fallback failed"
    FALLBACK_LOST = "fallback lost"
    FALLBACK_SILENT = "fallback silent"
    PROBE_DUE = "probe due"
    RETRY_DUE = "retry due"  # of the fallback
    HOLD_OVER = "hold-down over"
    PEER_EPOCH_CHANGED = "peer epoch changed"
    BYE = "bye"  # the peer ends the link
    CLOSE = "close"


class Do(Enum):
    """What to do about it."""

    USE_PREFERRED = "use preferred"
    USE_FALLBACK = "use fallback"
    USE_NONE = "use none"
    OPEN_PREFERRED = "open preferred"
    PROBE_PREFERRED = "probe preferred"
    OPEN_FALLBACK = "open fallback"
    FENCE_PREFERRED = "fence preferred"
    DROP_FALLBACK = "drop fallback"
    MOVE_IN_FLIGHT = "move in-flight"
    FAIL_IN_FLIGHT = "fail in-flight"
    CLOSE_WIRES = "close wires"
    SCHEDULE_PROBE = "schedule probe"
    SCHEDULE_RETRY = "schedule retry"
    SCHEDULE_HOLD = "schedule hold-down"


Edges = dict[Event, tuple[State, tuple[Do, ...]]]
S, E, D = State, Event, Do

_LEAVE_PREFERRED = (S.FALLING_BACK, (D.USE_NONE, D.FENCE_PREFERRED, D.OPEN_FALLBACK))
_RETURN_TO_PREFERRED = (S.PREFERRED_ONLY, (D.USE_PREFERRED, D.DROP_FALLBACK, D.MOVE_IN_FLIGHT, D.SCHEDULE_RETRY))
_REOPEN_FALLBACK = (S.FALLING_BACK, (D.USE_NONE, D.DROP_FALLBACK, D.OPEN_FALLBACK))
_LAST_WIRE_SILENT = (S.DOWN, (D.USE_NONE, D.DROP_FALLBACK, D.FAIL_IN_FLIGHT, D.SCHEDULE_PROBE))

_EDGES: dict[State, Edges] = {
    S.CONNECTING: {
        E.PREFERRED_OPENED: (S.PREFERRED_ONLY, (D.USE_PREFERRED, D.MOVE_IN_FLIGHT, D.OPEN_FALLBACK)),
        E.PREFERRED_FAILED: (S.FALLING_BACK, (D.OPEN_FALLBACK,)),
        E.FALLBACK_OPENED: (S.PROBING, (D.USE_FALLBACK, D.MOVE_IN_FLIGHT)),
        E.FALLBACK_FAILED: (S.CONNECTING, ()),
    },
    S.FALLING_BACK: {
        E.FALLBACK_OPENED: (S.FALLBACK_LIVE, (D.USE_FALLBACK, D.MOVE_IN_FLIGHT, D.SCHEDULE_PROBE)),
        E.FALLBACK_FAILED: (S.DOWN, (D.FAIL_IN_FLIGHT, D.SCHEDULE_PROBE)),
    },
    S.PREFERRED_ONLY: {
        E.FALLBACK_OPENED: (S.PREFERRED_LIVE, ()),
        E.FALLBACK_FAILED: (S.PREFERRED_ONLY, (D.SCHEDULE_RETRY,)),
        E.RETRY_DUE: (S.PREFERRED_ONLY, (D.OPEN_FALLBACK,)),
        E.PREFERRED_DOUBTED: (S.PREFERRED_ONLY, ()),
        E.PREFERRED_ANSWERED: (S.PREFERRED_ONLY, ()),
        E.PREFERRED_LOST: _LEAVE_PREFERRED,
        E.PREFERRED_SILENT: _LEAVE_PREFERRED,
    },
    S.PREFERRED_LIVE: {
        E.PREFERRED_DOUBTED: (S.SUSPECT, (D.USE_FALLBACK,)),
        E.PREFERRED_ANSWERED: (S.PREFERRED_LIVE, ()),
        E.PREFERRED_LOST: (S.FENCING, (D.USE_FALLBACK, D.FENCE_PREFERRED)),
        E.PREFERRED_SILENT: (S.FENCING, (D.USE_FALLBACK, D.FENCE_PREFERRED)),
        # Requests of the time before a fail-back may still be out on the fallback.
        E.FALLBACK_LOST: (S.PREFERRED_ONLY, (D.DROP_FALLBACK, D.MOVE_IN_FLIGHT, D.SCHEDULE_RETRY)),
        E.FALLBACK_SILENT: (S.PREFERRED_ONLY, (D.DROP_FALLBACK, D.MOVE_IN_FLIGHT, D.SCHEDULE_RETRY)),
    },
    S.SUSPECT: {
        E.PREFERRED_ANSWERED: (S.STANDBY, (D.SCHEDULE_HOLD,)),
        E.PREFERRED_DOUBTED: (S.SUSPECT, ()),
        E.PREFERRED_LOST: (S.FENCING, (D.FENCE_PREFERRED,)),
        E.PREFERRED_SILENT: (S.FENCING, (D.FENCE_PREFERRED,)),
        E.FALLBACK_LOST: _RETURN_TO_PREFERRED,  # doubted, but all there is
        E.FALLBACK_SILENT: _RETURN_TO_PREFERRED,
    },
    S.STANDBY: {
        E.HOLD_OVER: (S.PREFERRED_LIVE, (D.USE_PREFERRED,)),
        E.PREFERRED_DOUBTED: (S.SUSPECT, ()),
        E.PREFERRED_ANSWERED: (S.STANDBY, ()),
        E.PREFERRED_LOST: (S.FENCING, (D.FENCE_PREFERRED,)),
        E.PREFERRED_SILENT: (S.FENCING, (D.FENCE_PREFERRED,)),
        E.FALLBACK_LOST: _RETURN_TO_PREFERRED,
        E.FALLBACK_SILENT: _RETURN_TO_PREFERRED,
    },
    S.FENCING: {
        E.FENCED: (S.FALLBACK_LIVE, (D.MOVE_IN_FLIGHT, D.SCHEDULE_PROBE)),
        E.FALLBACK_LOST: _REOPEN_FALLBACK,
        E.FALLBACK_SILENT: _LAST_WIRE_SILENT,
    },
    S.FALLBACK_LIVE: {
        E.PROBE_DUE: (S.PROBING, (D.PROBE_PREFERRED,)),
        E.PREFERRED_OPENED: (S.STANDBY, (D.SCHEDULE_HOLD,)),  # by a try that an earlier state began
        E.PREFERRED_FAILED: (S.FALLBACK_LIVE, ()),
        E.FALLBACK_LOST: _REOPEN_FALLBACK,
        E.FALLBACK_SILENT: _LAST_WIRE_SILENT,
    },
    S.PROBING: {
        E.PREFERRED_OPENED: (S.STANDBY, (D.SCHEDULE_HOLD,)),
        E.PREFERRED_FAILED: (S.FALLBACK_LIVE, (D.SCHEDULE_PROBE,)),
        E.FALLBACK_LOST: (S.CONNECTING, (D.USE_NONE, D.DROP_FALLBACK)),
        E.FALLBACK_SILENT: (S.CONNECTING, (D.USE_NONE, D.DROP_FALLBACK)),
    },
    S.DOWN: {
        E.PROBE_DUE: (S.CONNECTING, (D.OPEN_PREFERRED,)),
        # Opened for an earlier state and late: the peer answers, so it is taken.
        E.FALLBACK_OPENED: (S.FALLBACK_LIVE, (D.USE_FALLBACK, D.SCHEDULE_PROBE)),
        E.FALLBACK_FAILED: (S.DOWN, ()),
        E.PREFERRED_OPENED: (S.PREFERRED_ONLY, (D.USE_PREFERRED, D.OPEN_FALLBACK)),
        E.PREFERRED_FAILED: (S.DOWN, ()),
    },
    S.CLOSED: {
        E.PREFERRED_OPENED: (S.CLOSED, (D.CLOSE_WIRES,)),
        E.FALLBACK_OPENED: (S.CLOSED, (D.CLOSE_WIRES,)),
        E.PREFERRED_FAILED: (S.CLOSED, ()),
        E.FALLBACK_FAILED: (S.CLOSED, ()),
        E.PEER_EPOCH_CHANGED: (S.CLOSED, ()),
        E.BYE: (S.CLOSED, ()),
        E.CLOSE: (S.CLOSED, ()),
    },
}
_ANYWHERE: Edges = {
    E.PEER_EPOCH_CHANGED: (S.DOWN, (D.USE_NONE, D.CLOSE_WIRES, D.FAIL_IN_FLIGHT, D.SCHEDULE_PROBE)),
    E.BYE: (S.CLOSED, (D.USE_NONE, D.CLOSE_WIRES, D.FAIL_IN_FLIGHT)),
    E.CLOSE: (S.CLOSED, (D.USE_NONE, D.CLOSE_WIRES, D.FAIL_IN_FLIGHT)),
}
_MAY_BE_LATE = (E.PROBE_DUE, E.RETRY_DUE, E.HOLD_OVER, E.FENCED)
"""Timers and fences that were under way when the state changed: nothing to do."""

TABLE: dict[State, Edges] = {
    state: {**dict.fromkeys(_MAY_BE_LATE, (state, ())), **_ANYWHERE, **edges} for state, edges in _EDGES.items()
}
