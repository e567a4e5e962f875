"""One accepted request inside the node, from its arrival to its final frame.

It is a record that admission, dedupe and the executors' shells share; it decides nothing. Read `workers/admission.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from workers.parcels import ParcelEvent

if TYPE_CHECKING:
    from fabric.local.tenant import Tenant, TenantSocket
    from workers.batching import Ticket
    from workers.desks import ModelQueue
    from workers.handover import Spent
    from workers.parcels import Parcel
    from workers.resident import Use


DEFAULT_LEVEL: Final = 128
"""Where a request of priority 0 (not given) stands. As in Triton 1 is the highest; 255 is the lowest here."""


class JobState(Enum):
    """Where a job is."""

    QUEUED = "queued"
    HANDED_OVER = "handed over"
    OVER = "over"


class Waiter:
    """Somebody who is owed the final frame: the socket it goes to, and the REQUEST that asked."""

    __slots__ = ("frame", "socket", "tenant")

    def __init__(self, tenant: Tenant, socket: TenantSocket, frame: bytes) -> None:
        self.tenant = tenant
        self.socket = socket
        self.frame = frame


class Job:  # mutable: its state and place change as it moves
    """`order` is its place among all jobs of its level; times are monotonic seconds. `resend` marks the job that only
    fetches a kept reply once more: it is never queued and never runs. `uses` are the residents that it refers to,
    `ticket` its place in its model's own line. In an ensemble of several legs `model` is the queue of the present one,
    `legs` are those that it began with, `parcels` what the legs before have given, and `spent` what they took."""

    __slots__ = (
        "accepted",
        "arrived_s",
        "asked",
        "attached",
        "body_bytes",
        "client_id",
        "deadline_s",
        "legs",
        "level",
        "model",
        "only",
        "order",
        "parcels",
        "request_no",
        "resend",
        "spent",
        "state",
        "ticket",
        "told",
        "uses",
        "work_us",
    )

    def __init__(
        self,
        model: ModelQueue,
        client_id: int,
        request_no: int,
        asked: Waiter,
        arrived_s: float,
        deadline_s: float,
        level: int,
        body_bytes: int,
    ) -> None:
        self.model = model
        self.client_id = client_id
        self.request_no = request_no
        self.asked = asked
        self.attached: list[Waiter] = []
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.level = level
        self.body_bytes = body_bytes
        self.work_us = 0
        self.order = 0
        self.accepted = 0
        self.resend = False
        self.told = ""
        """Why its caller was told that it is lost, before its executor's end."""
        self.uses: tuple[Use, ...] = ()
        self.only: frozenset[int] | None = None
        """The executors that it may run on, by number; None for any that has its model."""
        self.ticket: Ticket | None = None
        self.legs: tuple[ModelQueue, ...] = ()
        self.parcels: tuple[Parcel, ...] = ()
        self.spent: Spent | None = None
        self.state = JobState.QUEUED

    @property
    def has_begun(self) -> bool:
        """Whether a leg of it has run, although it may wait."""
        return self.model.whole is not None

    def end_legs(self) -> None:
        """It has come to its end: what it held between legs of an ensemble, if one has run, is free again."""
        if self.model.whole is None:
            return
        self.model.whole.goes_on(-1)
        parcels, self.parcels = self.parcels, ()
        for parcel in parcels:
            parcel.handle(ParcelEvent.ENDED)

    def ask_for_another(self) -> bool:
        """Goes on for somebody else who asked for the same; False when there is nobody left."""
        while self.attached:
            self.asked = self.attached.pop()
            if not self.asked.tenant.closed:
                return True
        return False

    def is_wanted(self) -> bool:
        """Whether anybody who asked for it is still there. To run it for others would map their memory once more, in
        executors that nobody tells to let it go."""
        return not self.asked.tenant.closed or self.ask_for_another()

    def attach(self, waiter: Waiter, deadline_s: float) -> None:
        """One more asks for the same. In the queue it may wait as long as the most patient of them."""
        self.attached.append(waiter)
        if self.state is JobState.QUEUED:
            self.deadline_s = max(self.deadline_s, deadline_s)

    def leave(self, socket: TenantSocket) -> bool:
        """Whoever asked on this socket gave up; False unless somebody else waits for the same."""
        first = self.asked
        if first.socket is socket:
            if self.ask_for_another():
                return True
            self.asked = first
            return False
        left = next((waiter for waiter in self.attached if waiter.socket is socket), None)
        if left is not None:
            self.attached.remove(left)
        return left is not None

    def __repr__(self) -> str:
        return f"<Job {self.client_id:016x}-{self.request_no} of {self.model.name} {self.state.value}>"
