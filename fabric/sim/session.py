"""The node's end of one simulated connection: frames in, frames out, large replies written into the caller's arena.

A frame that arrives twice is told by its serial number, as a reliable wire would tell it: its reply is written once.
A damaged frame closes the connection. This module decides nothing about requests; `fabric/sim/node.py` does. Read
`fabric/sim/channel.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import OverspillError, ProtocolError, ReplyTooLarge
from fabric.frame import (
    NO_SLOT,
    ErrorFrame,
    Kind,
    ReplyFrame,
    RequestFrame,
    check_header,
    decode_request,
    encode_error,
    encode_reply,
)
from fabric.hello import Welcome, common_version, decode_hello, encode_pong, encode_welcome
from fabric.message import SMALL_BODY_BYTES, RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.memory.arena import Arena
    from fabric.sim.network import SimNetwork
    from fabric.sim.node import Outcome, SimNode, SimReply


class SimSession:  # mutable: it remembers what it wrote
    """One connection named `name` from the host `client` to `node`. `to_client` takes (frame, body, serial), `lost` a
    reason. `arena` is the caller's memory that this end may write to, or None."""

    def __init__(
        self,
        network: SimNetwork,
        node: SimNode,
        name: str,
        client: str,
        to_client: Callable[[bytes, bytes, int], None],
        lost: Callable[[str], None],
        arena: Arena | None,
    ) -> None:
        self._network, self._node, self._name, self._client = network, node, name, client
        self._to_client, self._lost, self._arena = to_client, lost, arena
        self._epoch = node.epoch
        self._written: dict[int, bool] = {}  # serial of a reply with a slot: whether it has landed
        self.closed = False
        node.on_death.append(self._node_died)

    def receive(self, frame: bytes, body: bytes, serial: int) -> None:
        """Takes one frame of the caller."""
        node = self._node
        if self.closed or not node.alive or node.epoch != self._epoch:
            return
        if node.frozen is not None:
            node.frozen.append(lambda: self.receive(frame, body, serial))
            return
        try:
            header = check_header(frame)
            key = RequestId(header.client_id, header.request_no)
            asker = (self._name, serial)
            if header.kind is Kind.REQUEST:
                request = decode_request(frame, header)
                node.request(request, body, asker, lambda outcome: self._answer(request, serial, outcome))
            elif header.kind is Kind.CANCEL:
                node.cancel(key, asker, lambda outcome: self._send_end(key, serial, outcome))
            elif header.kind is Kind.PING:
                pong = encode_pong(key.client_id, key.request_no, node.load(key.client_id))
                self._send(bytes(pong), b"", serial, f"PONG {serial}")
            elif header.kind is Kind.HELLO and not node.dies("hello"):
                version = common_version(decode_hello(frame, header))
                arena_bytes = self._arena.nbytes if self._arena else 0
                welcome = Welcome(node.node_id, node.epoch, version, self._name, arena_bytes, 1)
                self._send(bytes(encode_welcome(welcome, key.client_id)), b"", serial, "WELCOME")
        except OverspillError as error:
            self._break(error)

    def close(self) -> None:
        """The caller is gone, or this end closes."""
        self.closed = True
        self._arena, self._to_client, self._lost = None, _unheard, _unheard  # nothing of the caller is kept
        if self._node_died in self._node.on_death:
            self._node.on_death.remove(self._node_died)

    def _break(self, error: OverspillError) -> None:
        wrapped = error if isinstance(error, ProtocolError) else ProtocolError(str(error))
        frame = encode_error(ErrorFrame(0, 0, self._epoch, wrapped, self._node.load(0)))
        self._send(bytes(frame), b"", 0, "ERROR of the connection")
        self.close()

    def _node_died(self, reason: str) -> None:
        # The end of the stream is news that travels like a frame: a partition keeps it from arriving.
        frame = encode_error(ErrorFrame(0, 0, self._epoch, ProtocolError(reason), self._node.load(0)))
        self.closed = True
        lost = self._lost
        self._network.send(self._node.node_id, self._client, bytes(frame), "end", lambda _: lost(reason))

    def _answer(self, request: RequestFrame, serial: int, outcome: Outcome) -> None:
        key = RequestId(request.client_id, request.request_no)
        if isinstance(outcome, OverspillError):
            self._send_end(key, serial, outcome)
            return
        nbytes = len(outcome.body)
        if self._arena is None or nbytes < SMALL_BODY_BYTES or request.reply_offset == NO_SLOT:
            if self._arena is not None and nbytes >= SMALL_BODY_BYTES:
                self._send_end(key, serial, ReplyTooLarge("the reply needs a slot; ask with one", None, nbytes))
                return
            self._send_reply(key, serial, outcome, NO_SLOT, outcome.body)
        elif nbytes > request.reply_capacity:
            self._send_end(key, serial, ReplyTooLarge("the reply needs a larger slot; ask with one", None, nbytes))
        elif serial not in self._written:
            self._written[serial] = False
            place = self._arena.view[request.reply_offset : request.reply_offset + nbytes]

            def landed() -> None:
                self._written[serial] = True
                self._send_reply(key, serial, outcome, request.reply_offset, b"")

            self._network.write(self._name, place, outcome.body, landed)
        elif self._written[serial]:
            self._send_reply(key, serial, outcome, request.reply_offset, b"")

    def _send_end(self, key: RequestId, serial: int, outcome: Outcome) -> None:
        if not isinstance(outcome, OverspillError):
            # Cancelled too late: the caller wants no reply any more, only to know that nobody writes for it.
            if self._written.get(serial) is False:
                return
            self._send_reply(key, serial, outcome, NO_SLOT, b"")
            return
        frame = encode_error(
            ErrorFrame(key.client_id, key.request_no, self._epoch, outcome, self._node.load(key.client_id))
        )
        self._send(bytes(frame), b"", serial, f"ERROR {key.request_no}")

    def _send_reply(self, key: RequestId, serial: int, reply: SimReply, offset: int, body: bytes) -> None:
        answer = ReplyFrame(
            client_id=key.client_id,
            request_no=key.request_no,
            node_epoch=self._epoch,
            body_bytes=len(reply.body),
            reply_offset=offset,
            generation=0,
            queue_us=0,
            compute_us=0,
            load=self._node.load(key.client_id),
            descriptors=reply.descriptors,
        )
        spoil, self._node.spoil = self._node.spoil, None
        frame = encode_reply(answer) if spoil is None else spoil(answer)
        self._send(bytes(frame), body, serial, f"REPLY {key.request_no}")

    def _send(self, frame: bytes, body: bytes, serial: int, label: str) -> None:
        if self.closed:
            return
        to_client = self._to_client  # as it is now: what was sent arrives even if this end closes meanwhile
        self._network.send(
            self._node.node_id, self._client, frame, label, lambda arrived: to_client(arrived, body, serial)
        )


def _unheard(*_: object) -> None:
    """Where frames of a closed connection go."""
