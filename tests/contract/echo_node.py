"""A node for the contract suite: a process of its own that echoes from slot to slot, and fails on command.

It is the real listener with a handler that does what an executor does: reads the input from the tenant's arena, writes
the reply to the place that the tenant gave. What it should do is in the model's name; what it should do wrong is armed
over stdin, one line each, and acknowledged on stdout:

    echo, flip            copies the body; writes its complement
    touch                 reads 64 bytes of the input, answers 64 bytes
    later/MS/flip         waits in a queue for MS first; a CANCEL ends it at once
    run/MS/flip           runs for MS and writes at the end; a CANCEL does not end it
    dribble/PIECES/MS     runs: writes the complement in pieces, MS apart
    fail                  answers ModelFailed
    grow/N                answers N bytes, whatever came
"""

from __future__ import annotations

import os
import signal
import sys
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fabric.dtypes import DType
from fabric.errors import Cancelled, Fate, InvalidArgument, ModelFailed, OverspillError, ReplyTooLarge, UnknownModel
from fabric.frame import (
    FRAME_BYTES_MAX,
    ErrorFrame,
    Header,
    Load,
    ReplyFrame,
    RequestFrame,
    decode_request,
    encode_error,
    encode_reply,
)
from fabric.layout import Layout, TensorSpec, layout_of, parse_layout
from fabric.local.listener import ListenerLimits, LocalListener
from fabric.local.reactor import Reactor
from fabric.local.tenant import QueueBounds
from fabric.transport import PeerFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Timer
    from fabric.local.tenant import Tenant, TenantSocket

Bytes = npt.NDArray[np.uint8]
KEPT_MAX = 64


class EchoNode:
    """The handler."""

    def __init__(self, reactor: Reactor, facts: PeerFacts) -> None:
        self._reactor = reactor
        self._facts = facts
        self._arenas: dict[int, Bytes] = {}
        self._queued: dict[tuple[int, int], tuple[Timer, Tenant, TenantSocket]] = {}
        self._kept: OrderedDict[tuple[int, int], Bytes] = OrderedDict()
        self._sequence = 0
        self._accepted = 0
        self.armed = ""
        # Asked since it was armed: an answer that an earlier test left behind is none of these.
        self._since: set[tuple[int, int]] = set()

    # What the listener calls.

    def tenant_opened(self, tenant: Tenant) -> None:
        self._strike("die_hello")
        self._arenas[tenant.tenant_no] = np.frombuffer(tenant.arena.map, np.uint8)

    def socket_opened(self, tenant: Tenant, socket: TenantSocket) -> None:
        pass

    def socket_closed(self, tenant: Tenant, socket: TenantSocket) -> None:
        pass

    def tenant_closed(self, tenant: Tenant) -> None:
        del self._arenas[tenant.tenant_no]

    def load(self, tenant: Tenant) -> Load:
        self._sequence += 1
        return Load(self._sequence, self._accepted, len(self._queued), 1)

    def cancel(self, tenant: Tenant, socket: TenantSocket, request_no: int, client_id: int) -> None:
        queued = self._queued.pop((client_id, request_no), None)
        if queued is not None:
            queued[0].cancel()
            self._fail(tenant, socket, client_id, request_no, Cancelled("it was given up", Fate.NEVER_RAN))

    def arm(self, what: str) -> None:
        """Goes wrong so, once, with something that is asked from now on."""
        self.armed = what
        self._since.clear()

    def request(self, tenant: Tenant, socket: TenantSocket, header: Header, frame: bytes) -> None:
        self._accepted += 1
        self._strike("die_request")
        if self.armed:
            self._since.add((header.client_id, header.request_no))
        request = decode_request(frame, header)
        layout = parse_layout(request.descriptors)
        self._check_places(tenant, request, layout)
        verb, *rest = request.model.split("/")
        if verb in ("later", "run"):
            act = partial(self._finish, tenant, socket, request, layout, rest[1])
            timer = self._reactor.call_later(int(rest[0]) / 1e3, act)
            if verb == "later":
                self._queued[request.client_id, request.request_no] = (timer, tenant, socket)
        elif verb == "dribble":
            self._dribble(tenant, socket, request, layout, int(rest[0]), int(rest[1]) / 1e3, 0)
        else:
            self._finish(tenant, socket, request, layout, request.model)

    # What an executor does.

    def _check_places(self, tenant: Tenant, request: RequestFrame, layout: Layout) -> None:
        end = tenant.arena.nbytes
        if request.body_bytes != layout.body_bytes or request.body_offset + request.body_bytes > end:
            raise InvalidArgument("the input lies outside of the arena")
        if request.reply_offset + request.reply_capacity > end:
            raise InvalidArgument("the reply's place lies outside of the arena")

    def _finish(self, tenant: Tenant, socket: TenantSocket, request: RequestFrame, layout: Layout, what: str) -> None:
        self._queued.pop((request.client_id, request.request_no), None)
        if tenant.closed:
            return
        arena = self._arenas[tenant.tenant_no]
        body = arena[request.body_offset : request.body_offset + request.body_bytes]
        key = (request.client_id, request.request_no)
        verb, *rest = what.split("/")
        try:
            made = self._kept.pop(key, None)
            if verb == "fail":
                raise ModelFailed("the model raised on purpose")
            if verb == "touch":
                spec = TensorSpec.of("out", DType.UINT8, (64,))
                made, layout = np.full(64, int(body[:64].sum()) & 0xFF, np.uint8), layout_of((spec,))
            elif verb == "grow":
                layout = layout_of((TensorSpec.of("out", DType.UINT8, (int(rest[0]),)),))
                made = made if made is not None else np.full(layout.body_bytes, 7, np.uint8)
            elif verb not in ("echo", "flip"):
                raise UnknownModel(f"no model {what}; the test asked for what this node cannot do")
            self._reply(tenant, socket, request, layout, partial(self._write, body, verb, made))
        except OverspillError as error:
            self._fail(tenant, socket, request.client_id, request.request_no, error)

    def _write(self, body: Bytes, verb: str, made: Bytes | None, out: Bytes) -> None:
        if made is not None:
            out[:] = made
        elif verb == "flip":
            np.invert(body, out=out)
        else:
            out.data[:] = body.data  # what the shortest request costs is measured with this one

    def _reply(
        self,
        tenant: Tenant,
        socket: TenantSocket,
        request: RequestFrame,
        layout: Layout,
        write: Callable[[Bytes], None],
    ) -> None:
        nbytes = layout.body_bytes
        if nbytes > request.reply_capacity:
            kept = np.empty(nbytes, np.uint8)
            write(kept)
            self._kept[request.client_id, request.request_no] = kept
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            raise ReplyTooLarge(f"the reply takes {nbytes} bytes; give a larger place", None, nbytes)
        place = self._arenas[tenant.tenant_no][request.reply_offset : request.reply_offset + nbytes]
        if self.armed == "die_reply" and (request.client_id, request.request_no) in self._since:
            write(np.empty_like(place))
            place[: nbytes // 2] = 1
            self._strike("die_reply")
        write(place)
        self._send_reply(tenant, socket, request, layout)

    def _send_reply(self, tenant: Tenant, socket: TenantSocket, request: RequestFrame, layout: Layout) -> None:
        socket.send(
            self._spoiled(
                ReplyFrame(
                    request.client_id,
                    request.request_no,
                    self._facts.node_epoch,
                    layout.body_bytes,
                    request.reply_offset,
                    1,
                    10,
                    20,
                    self.load(tenant),
                    layout.encoded,
                )
            )
        )

    def _dribble(
        self,
        tenant: Tenant,
        socket: TenantSocket,
        request: RequestFrame,
        layout: Layout,
        pieces: int,
        gap_s: float,
        done: int,
    ) -> None:
        nbytes = request.body_bytes
        if nbytes > request.reply_capacity:
            raise InvalidArgument("a dribbled reply needs its room from the start; give reply_bytes")
        # A tenant that died meanwhile is written to all the same, as by an executor that is busy and has not heard.
        arena = np.frombuffer(tenant.arena.map, np.uint8)
        start, stop = nbytes * done // pieces, nbytes * (done + 1) // pieces
        at, to = request.body_offset, request.reply_offset
        np.invert(arena[at + start : at + stop], out=arena[to + start : to + stop])
        if done + 1 == pieces:
            self._send_reply(tenant, socket, request, layout)
        else:
            again = partial(self._dribble, tenant, socket, request, layout, pieces, gap_s, done + 1)
            self._reactor.call_later(gap_s, again)

    def _fail(
        self, tenant: Tenant, socket: TenantSocket, client_id: int, request_no: int, error: OverspillError
    ) -> None:
        frame = ErrorFrame(client_id, request_no, self._facts.node_epoch, error, self.load(tenant))
        socket.send(encode_error(frame))

    # What goes wrong on command.

    def _strike(self, step: str) -> None:
        if self.armed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def _spoiled(self, reply: ReplyFrame) -> bytes | bytearray:
        if (reply.client_id, reply.request_no) not in self._since:
            return encode_reply(reply)
        armed, self.armed = self.armed, ""
        if armed == "foreign_id":
            return encode_reply(replace(reply, request_no=reply.request_no + 1_000_000))
        if armed == "outside":
            return encode_reply(replace(reply, reply_offset=reply.reply_offset ^ (1 << 40)))
        if armed == "length":
            return encode_reply(replace(reply, body_bytes=reply.body_bytes + 64))
        frame = bytearray(encode_reply(reply))
        if armed == "bit":
            frame[-1] ^= 1
        elif armed == "cut":
            return frame[:-8]
        elif armed == "oversize":
            return bytes(frame) + bytes(FRAME_BYTES_MAX)
        elif armed == "noise":
            return bytes(range(200))
        elif armed == "magic":
            frame[0] ^= 0xFF
        elif armed == "version":
            frame[8] = 99
        else:
            self.armed = armed  # for another step
        return frame


def main() -> None:
    """`python -m tests.contract.echo_node PATH NODE_ID NODE_EPOCH`: serves until stdin ends."""
    path, node_id, node_epoch = sys.argv[1:]
    reactor = Reactor()
    facts = PeerFacts(node_id, int(node_epoch), 1)
    node = EchoNode(reactor, facts)
    # A queue that a test can fill, and silence that a test can wait for.
    limits = ListenerLimits(hello_timeout_s=2.0, queue=QueueBounds(64, 1 << 20))
    listener = LocalListener(reactor, path, facts, node, limits)

    def command(_events: int) -> None:
        words = os.read(0, 4096).decode().split()
        if not words:
            reactor.stop()
            return
        node.arm(words[-1])
        os.write(1, b"armed\n")

    reactor.add(0, command)
    os.write(1, b"ready\n")
    reactor.run()
    listener.close()
    reactor.close()


if __name__ == "__main__":
    main()
