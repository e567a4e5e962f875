"""The life of a connection's queue pairs, as one table: for each state and event, the next state and what to do.

Memory that the peer may write to is free only in GONE: an error says nothing of what was written before it, so the
pairs are put into error, what was posted comes back, and the pairs are destroyed. This module has no code that could
decide anything; `fabric/rdma/connection.py` carries it out. Read `fabric/rdma/terms.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum

from fabric.errors import IllegalTransition


class LinkState(Enum):
    """Where the pairs of a connection stand."""

    NEW = "new"  # made; nothing is posted
    OFFERED = "offered"  # receives are posted, the peer was told of the pairs
    CONNECTED = "connected"  # ready to send; the peer's echo is awaited
    LIVE = "live"  # both pairs have proved themselves
    DRAINING = "draining"  # in error; what was posted comes back
    GONE = "gone"  # destroyed: nobody writes any more


class LinkEvent(Enum):
    """What happened."""

    POSTED = "receives posted"
    AGREED = "terms agreed"
    PROVED = "both pairs proved"
    BROKEN = "broken"  # a completion's error, garbage, a lost port, the end of the device
    CLOSED = "closed by us"
    DRAINED = "all came back"
    OVERDUE = "drain overdue"


class LinkDo(Enum):
    """What to do about it."""

    CONNECT = "connect the pairs"
    TELL_LIVE = "tell the owner that it lives"
    STOP = "put the pairs into error"
    AWAIT_DRAIN = "await what was posted"
    TELL_LOST = "tell the owner that it is lost"
    DESTROY = "destroy pairs, memory and domain"
    TELL_FENCED = "tell the owner that nobody writes any more"


Edges = dict[LinkEvent, tuple[LinkState, tuple[LinkDo, ...]]]
S, E, D = LinkState, LinkEvent, LinkDo
_END = (S.DRAINING, (D.STOP, D.TELL_LOST, D.AWAIT_DRAIN))
_FENCE = (S.GONE, (D.DESTROY, D.TELL_FENCED))
_UNPOSTED = (S.GONE, (D.TELL_LOST, D.DESTROY, D.TELL_FENCED))

TABLE: dict[LinkState, Edges] = {
    S.NEW: {E.POSTED: (S.OFFERED, ()), E.BROKEN: _UNPOSTED, E.CLOSED: _UNPOSTED},
    S.OFFERED: {E.AGREED: (S.CONNECTED, (D.CONNECT,)), E.BROKEN: _END, E.CLOSED: _END},
    S.CONNECTED: {E.PROVED: (S.LIVE, (D.TELL_LIVE,)), E.BROKEN: _END, E.CLOSED: _END},
    S.LIVE: {E.BROKEN: _END, E.CLOSED: _END},
    S.DRAINING: {
        E.DRAINED: _FENCE, E.OVERDUE: _FENCE,
        # More errors of the same death, and a close that comes late.
        E.BROKEN: (S.DRAINING, ()), E.CLOSED: (S.DRAINING, ()), E.AGREED: (S.DRAINING, ()), E.PROVED: (S.DRAINING, ()),
    },
    S.GONE: {event: (S.GONE, ()) for event in E if event is not E.POSTED},
}  # fmt: skip


def step(state: LinkState, event: LinkEvent) -> tuple[LinkState, tuple[LinkDo, ...]]:
    """The next state and what to do. Raises IllegalTransition where the table has no edge."""
    edge = TABLE[state].get(event)
    if edge is None:
        raise IllegalTransition(f"a connection that is {state.value} met {event.value!r}; report this bug")
    return edge
