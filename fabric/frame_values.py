"""What frames say, as values: a request, a reply, the error that ends a request, and the load that comes with both.

These are made for each request, in each process that it passes. Their `__init__` is written out because the one that
`dataclass` makes costs ten times as much once the module is compiled (0.5 against 0.05 us for seven fields), and a
frozen one thirty times; nobody changes them all the same. This module never encodes: `fabric/frame.py` does. Read that
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fabric.errors import OverspillError


@final
@dataclass(init=False, slots=True)
class RequestFrame:  # mutable: made for each request; never changed
    """A request. `budget_us` is the time that remained when it was sent; `ack_no` says that the caller has the final
    answer of every request of its own below it; offsets are into the tenant's arena, `NO_SLOT` where there is none."""

    client_id: int
    request_no: int
    node_epoch: int
    budget_us: int
    ack_no: int
    body_offset: int
    body_bytes: int
    reply_offset: int
    reply_capacity: int
    priority: int
    attempt: int
    model: str
    descriptors: bytes

    def __init__(  # noqa: PLR0917 - in the order of its fields
        self,
        client_id: int,
        request_no: int,
        node_epoch: int,
        budget_us: int,
        ack_no: int,
        body_offset: int,
        body_bytes: int,
        reply_offset: int,
        reply_capacity: int,
        priority: int,
        attempt: int,
        model: str,
        descriptors: bytes,
    ) -> None:
        self.client_id = client_id
        self.request_no = request_no
        self.node_epoch = node_epoch
        self.budget_us = budget_us
        self.ack_no = ack_no
        self.body_offset = body_offset
        self.body_bytes = body_bytes
        self.reply_offset = reply_offset
        self.reply_capacity = reply_capacity
        self.priority = priority
        self.attempt = attempt
        self.model = model
        self.descriptors = descriptors


@final
@dataclass(init=False, slots=True)
class Load:  # mutable: made for each request; never changed
    """What a node says of its load. `sequence` grows with each report of a node epoch; `accepted` counts the requests
    of this caller that the report has seen; `outstanding_us` is the work queued and running, by the node's own
    estimate, summed over `executors`."""

    sequence: int
    accepted: int
    outstanding_us: int
    executors: int

    def __init__(
        self,
        sequence: int,
        accepted: int,
        outstanding_us: int,
        executors: int,
    ) -> None:
        self.sequence = sequence
        self.accepted = accepted
        self.outstanding_us = outstanding_us
        self.executors = executors


@final
@dataclass(init=False, slots=True)
class ReplyFrame:  # mutable: made for each request; never changed
    """A reply: who made it, how long it waited and ran, and where its tensors lie."""

    client_id: int
    request_no: int
    node_epoch: int
    body_bytes: int
    reply_offset: int
    generation: int
    queue_us: int
    compute_us: int
    load: Load
    descriptors: bytes

    def __init__(
        self,
        client_id: int,
        request_no: int,
        node_epoch: int,
        body_bytes: int,
        reply_offset: int,
        generation: int,
        queue_us: int,
        compute_us: int,
        load: Load,
        descriptors: bytes,
    ) -> None:
        self.client_id = client_id
        self.request_no = request_no
        self.node_epoch = node_epoch
        self.body_bytes = body_bytes
        self.reply_offset = reply_offset
        self.generation = generation
        self.queue_us = queue_us
        self.compute_us = compute_us
        self.load = load
        self.descriptors = descriptors


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The final answer of a request that has no reply."""

    client_id: int
    request_no: int
    node_epoch: int
    error: OverspillError
    load: Load
