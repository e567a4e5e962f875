"""The replies that an executor can send once more: where each lies, until it is acknowledged or its minute is over.

A large reply stays in the slot it was written to, which its tenant does not reuse while the same id may be asked again;
one that is small, did not fit, or whose tenant left, lies in the executor's own memory, within bounds. This module
never sends and reads no clock. Read `workers/executor.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

KEPT_S: Final = 60.0
KEPT_PER_CLIENT_MAX: Final = 4096
OWN_BYTES_MAX: Final = 256 << 20
"""What replies in our own memory take together. The newest is kept whatever its size: one that did not fit its slot is
asked for again at once, with a larger one."""
LEAVING_BYTES_MAX: Final = 64 << 20
"""What is copied when a tenant leaves: some 10 ms, which other tenants' requests wait for."""


@final
@dataclass(init=False, slots=True)
class KeptReply:  # mutable: made for each request, see fabric/frame_values.py
    """A reply: its bytes, in the slot of `tenant_no` or in our own memory (0), and what its frame said."""

    tenant_no: int
    memory: bytes | memoryview
    descriptors: bytes
    compute_us: int
    at_s: float

    def __init__(
        self,
        tenant_no: int,
        memory: bytes | memoryview,
        descriptors: bytes,
        compute_us: int,
        at_s: float,
    ) -> None:
        self.tenant_no = tenant_no
        self.memory = memory
        self.descriptors = descriptors
        self.compute_us = compute_us
        self.at_s = at_s


class ReplyKeep:  # mutable: a table with bounds
    """Kept replies by client and request number."""

    def __init__(self) -> None:
        self._clients: dict[int, dict[int, KeptReply]] = {}
        self._own: dict[tuple[int, int], int] = {}  # bytes by id, oldest first
        self._own_bytes = 0

    @property
    def own_bytes(self) -> int:
        """Bytes that lie in our own memory."""
        return self._own_bytes

    def put(self, client_id: int, request_no: int, reply: KeptReply) -> None:
        """Keeps a reply; the oldest ones make room."""
        replies = self._clients.get(client_id)
        if replies is None:
            replies = self._clients[client_id] = {}
        if request_no in replies:
            self._drop(client_id, request_no)
        replies[request_no] = reply
        if not reply.tenant_no:
            self._own[client_id, request_no] = len(reply.memory)
            self._own_bytes += len(reply.memory)
            while self._own_bytes > OWN_BYTES_MAX and len(self._own) > 1:
                self._drop(*next(iter(self._own)))
        if len(replies) > KEPT_PER_CLIENT_MAX:
            self._drop(client_id, next(iter(replies)))

    def find(self, client_id: int, request_no: int) -> KeptReply | None:
        """The kept reply of a request."""
        return self._clients.get(client_id, {}).get(request_no)

    def acknowledge(self, client_id: int, ack_no: int) -> None:
        """The client has all answers below `ack_no`."""
        replies = self._clients.get(client_id)
        while replies:
            oldest = next(iter(replies))
            if oldest >= ack_no:
                break
            self._drop(client_id, oldest)

    def leave(self, tenant_no: int) -> None:
        """A tenant's memory is about to go: what it holds is copied, the newest first, as far as the bound allows."""
        moved = 0
        for client_id, replies in list(self._clients.items()):
            for request_no, reply in reversed(list(replies.items())):
                if reply.tenant_no != tenant_no:
                    continue
                moved += len(reply.memory)
                self._drop(client_id, request_no)
                if moved <= LEAVING_BYTES_MAX:
                    own = bytes(reply.memory)
                    self.put(client_id, request_no, KeptReply(0, own, reply.descriptors, reply.compute_us, reply.at_s))

    def lapse(self, now: float) -> None:
        """Drops what nobody asked for in time."""
        for client_id, replies in list(self._clients.items()):
            for request_no in [number for number, reply in replies.items() if reply.at_s <= now - KEPT_S]:
                self._drop(client_id, request_no)
            if not replies:
                del self._clients[client_id]

    def _drop(self, client_id: int, request_no: int) -> None:
        del self._clients[client_id][request_no]
        self._own_bytes -= self._own.pop((client_id, request_no), 0)
