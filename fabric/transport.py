"""The contract between a link and its wires: a channel carries calls to one peer and brings answers back.

Every wire offers the same `Channel`, checked by one contract suite. A call is made from the caller's own thread
(`call`) or from the background loop (`call_async`); both raise typed errors whose fate is true. It promises:

- exactly one outcome for each call: an `Answer` or one error, by its deadline;
- after a timeout or a cancel no memory of the call is reused before its writers have answered or are fenced;
- a peer's death ends every call on the channel at once, with fate `unknown` unless it is known better;
- whoever watches is told of it as soon, also while nothing is out;
- `close` lets calls finish until a deadline, `abort` does not; afterwards every call raises `NodeLost`.

This module never chooses among channels: `fabric/link` does. Read `fabric/link/machine.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, final

from fabric.frame import Load
from fabric.layout import Layout
from fabric.memory.lease import Lease
from fabric.message import Body, RequestId
from fabric.peer import PeerFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena

__all__ = ["Answer", "Call", "Channel", "PeerFacts", "WireName"]


class WireName(Enum):
    """How bytes move."""

    LOCAL = "local"
    RDMA = "rdma"
    RPC = "rpc"
    SIM = "sim"


@final
@dataclass(init=False, slots=True)
class Call:  # mutable: made for each request, see fabric/frame_values.py
    """One attempt of one request. `ack_no`: the caller has the final answers of all its requests below it.
    `reply_bytes` is a guess of the reply's size; a reply that is larger costs one more round trip, never a second run.
    `movable`: it may run twice, and another node could run it, so that it should not wait long for a silent one.
    `stream`: a decoupled model may be asked, whose next answer comes when the same id is asked again; local wire only.
    `traced`: the node is to remember what it takes, for its control socket to tell; local wire only.
    """

    id: RequestId
    model: str
    body: Body
    ack_no: int
    priority: int
    attempt: int
    reply_bytes: int
    movable: bool
    stream: bool
    traced: bool

    def __init__(
        self,
        id: RequestId,  # noqa: A002 - the field's name
        model: str,
        body: Body,
        ack_no: int = 0,
        priority: int = 0,
        attempt: int = 0,
        reply_bytes: int = 0,
        movable: bool = False,
        stream: bool = False,
        traced: bool = False,
    ) -> None:
        self.id = id
        self.model = model
        self.body = body
        self.ack_no = ack_no
        self.priority = priority
        self.attempt = attempt
        self.reply_bytes = reply_bytes
        self.movable = movable
        self.stream = stream
        self.traced = traced


@final
@dataclass(init=False, slots=True)
class Answer:  # mutable: made for each request, see fabric/frame_values.py
    """A reply as a channel delivers it. `memory` holds the body: small bytes, or a lease that the holder releases."""

    layout: Layout
    memory: bytes | Lease
    generation: int
    queue_us: int
    compute_us: int
    load: Load
    wire: WireName
    lane: bool

    def __init__(
        self,
        layout: Layout,
        memory: bytes | Lease,
        generation: int,
        queue_us: int,
        compute_us: int,
        load: Load,
        wire: WireName,
        lane: bool = False,
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.generation = generation
        self.queue_us = queue_us
        self.compute_us = compute_us
        self.load = load
        self.wire = wire
        self.lane = lane


class Channel(Protocol):
    """One way to one peer, open."""

    @property
    def wire(self) -> WireName:
        """How its bytes move."""

    @property
    def peer(self) -> PeerFacts:
        """What the peer said when the channel opened."""

    @property
    def arena(self) -> Arena | None:
        """Memory that the peer can reach, where inputs are best staged; None when any memory is as good."""

    @property
    def alive(self) -> bool:
        """False once the channel is closed or its peer is lost."""

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError."""

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same on the background loop; cancelling it cancels the request at the peer."""

    def cancel(self, request: RequestId) -> None:
        """Asks the peer for an early end of a running call. It never blocks and promises nothing: the call's own
        outcome still comes. Safe from any thread; does nothing for an id that is not running."""

    async def ping(self, deadline: Deadline) -> Load:
        """Asks the peer's own code for a sign of life. Raises OverspillError."""

    def watch(self, doubted: Callable[[], None]) -> None:
        """From now on `doubted()` is called, from any thread, whenever there is reason to ask for a sign of life at
        once, and when the channel is over. Call it on the background loop; it never blocks."""

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, then aborts."""

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises `NodeLost` with this reason. Safe from any thread, twice too."""
