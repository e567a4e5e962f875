"""One attempt on its way over the rdma wire: what it holds, and what came back for it.

It holds a place in the node's region for its input, the part of our memory that the NIC sends it from, and a slot that
the node writes the reply to. Each is given back when its own user is done: the NIC with the memory, the node with the
input, the node with the reply; who called may have left long before. This module never sends and takes no lock. Read
`fabric/rdma/channel.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import OverspillError, ProtocolError
from fabric.frame import ErrorFrame, decode_final
from fabric.layout import parse_layout
from fabric.message import SMALL_BODY_BYTES
from fabric.rdma.heads import frame_of, round_up
from fabric.transport import Answer, WireName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.memory.lease import Lease
    from fabric.message import RequestId
    from fabric.rdma.outbox import Write
    from fabric.rdma.replies import ReplyRegion
    from fabric.rdma.talk import Message
    from fabric.rdma.window import Place

_RDMA: Final = WireName.RDMA  # to look a member up in its enum costs 50 ns


class Flight:  # mutable: prepared, sent, answered or lost
    """One attempt. `ring` wakes whoever waits for it; `landed` is where a large reply's frame lay."""

    __slots__ = (
        "error", "given_up", "id", "landed", "message", "payload", "place", "region", "reply", "ring", "settled",
        "write",
    )  # fmt: skip

    def __init__(self, request: RequestId, ring: Callable[[], None]) -> None:
        self.id = request
        self.ring = ring
        self.place: Place | None = None
        self.reply: Lease | None = None
        self.region: ReplyRegion | None = None
        self.message: Message | None = None
        self.write: Write | None = None
        self.payload: bytes | None = None
        self.landed: int | None = None
        self.error: OverspillError | None = None
        self.given_up = False
        self.settled = False

    @property
    def over(self) -> bool:
        """Whether its outcome is there."""
        return self.payload is not None or self.error is not None

    @property
    def sent(self) -> bool:
        """Whether the node may have it."""
        return self.message is not None and self.message.posted

    @property
    def capacity(self) -> int:
        """Room for the reply's body, in bytes."""
        return self.reply.nbytes if self.reply is not None else 0

    def lend(self) -> None:
        """From now on, until `settle`, the node may write the reply."""
        if self.reply is not None and self.region is not None:
            self.region.arena.writer_began(self.reply.slot)
            self.region.out += 1

    def settle(self) -> None:
        """The node writes no reply any more. Harmless twice."""
        if not self.settled:
            self.settled = True
            if self.reply is not None and self.region is not None:
                self.region.arena.writer_ended(self.reply.slot)
                self.region.out -= 1
                if self.given_up:
                    self.reply.release()

    def check_landing(self, body_bytes: int, offset: int) -> None:
        """Whether a reply lies where it was asked to lie. Raises ProtocolError."""
        reply = self.reply
        inside = reply is not None and offset == reply.offset and round_up(body_bytes) <= reply.nbytes
        if not inside:
            raise ProtocolError("a reply lies outside of the place that was given for it; the node must keep to it")

    def outcome(self) -> Answer | OverspillError:
        """The answer, or the error that the node gave. Raises ProtocolError when what came is neither."""
        payload = self.payload
        assert payload is not None, "asked once it is over"
        frame = frame_of(payload)
        size = len(frame)
        final = decode_final(frame)
        if final.request_no != self.id.request_no or final.client_id != self.id.client_id:
            raise ProtocolError(f"the node answered request {final.request_no} where {self.id} was due")
        if isinstance(final, ErrorFrame):
            return final.error
        layout, nbytes = parse_layout(final.descriptors), final.body_bytes
        if layout.body_bytes != nbytes:
            raise ProtocolError(f"a reply says {nbytes} bytes and describes {layout.body_bytes}; the node must say one")
        memory: bytes | Lease
        if self.landed is None:
            memory = payload[size : size + nbytes]
            if len(memory) != nbytes:
                raise ProtocolError("a reply's body is cut; the node must send it whole")
        else:
            self.check_landing(nbytes, final.reply_offset)
            lease = self.reply
            assert lease is not None, "checked above"
            if nbytes < SMALL_BODY_BYTES:
                memory = bytes(lease.view[:nbytes])
            else:
                memory, self.reply = lease, None
        return Answer(
            layout, memory, final.generation, final.queue_us, final.compute_us, final.load, _RDMA
        )  # fmt: skip
