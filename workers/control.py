"""The node's end of its control socket: one question per connection about its models, one answer, and closed.

It is for processes of the node's own user on its own host: front doors, and tools. A peer that is slow, says too much
or what is no question costs a bounded table its place and nothing else. What is answered is decided in
`workers/library.py` and seen in `workers/inventory.py`. Read them next.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabric.control import (
    MESSAGE_BYTES_MAX,
    ExecutorFacts,
    MemoryFacts,
    Reply,
    decode_memory,
    decode_question,
    encode_reply,
)
from fabric.errors import InvalidArgument, OverspillError
from fabric.local.sockets import credentials

if TYPE_CHECKING:
    from fabric.control import Question
    from fabric.local.reactor import Reactor, Timer
    from workers.card_memory import CardMemory
    from workers.library import ModelLibrary
    from workers.shell import ExecutorShell
    from workers.traced import TracedRuns

PEERS_MAX: Final = 64
BACKLOG: Final = 64
ASK_S: Final = 5.0
"""Time to put a question, and to take an answer; what is asked for may take longer between."""
_READ_BYTES: Final = 1 << 16


class _Peer:  # mutable: reads a question, then writes an answer
    __slots__ = ("asked", "received", "sock", "timer", "to_send")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.to_send = memoryview(b"")
        self.asked = False
        self.timer: Timer | None = None


class ControlListener:  # mutable: owns the socket and its peers
    """Listens on `path`, whose folder is the node's own, until `close`. Raises OSError when it cannot."""

    def __init__(
        self, reactor: Reactor, path: str, library: ModelLibrary, card_memory: CardMemory, traced: TracedRuns
    ) -> None:
        self._reactor = reactor
        self._library = library
        self._card_memory = card_memory
        self._traced = traced
        self._path = Path(path)
        self._peers: set[_Peer] = set()
        self._uids = {os.getuid(), 0}
        self._path.unlink(missing_ok=True)  # the node holds the folder's lock, so whoever listened here is dead
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)  # noqa: FBT003 - the standard library's own order
        before = os.umask(0o177)
        try:
            self._sock.bind(path)
        finally:
            os.umask(before)
        self._sock.listen(BACKLOG)
        reactor.add(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Stops listening, hangs up on everybody, and removes the socket."""
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
        self._path.unlink(missing_ok=True)
        for peer in list(self._peers):
            self._hang_up(peer)

    def _accept(self, _events: int) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return  # it left again, or we are out of descriptors: it stays in the backlog
        if credentials(sock).uid not in self._uids or len(self._peers) >= PEERS_MAX:
            sock.close()
            return
        sock.setblocking(False)  # noqa: FBT003 - the standard library's own order
        peer = _Peer(sock)
        self._peers.add(peer)
        peer.timer = self._reactor.call_later(ASK_S, partial(self._hang_up, peer))
        self._reactor.add(sock.fileno(), partial(self._ready, peer))

    def _ready(self, peer: _Peer, events: int) -> None:
        if peer not in self._peers:
            return
        try:
            if events & select.EPOLLOUT:
                self._write(peer)
            else:
                self._read(peer)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(peer)

    def _read(self, peer: _Peer) -> None:
        piece = peer.sock.recv(_READ_BYTES)
        if not piece or peer.asked or len(peer.received) + len(piece) > MESSAGE_BYTES_MAX:
            self._hang_up(peer)  # gone, or says more than one question
            return
        peer.received += piece
        if not peer.received.endswith(b"\n"):
            return
        peer.asked = True
        if peer.timer is not None:
            peer.timer.cancel()
        try:
            self._answer(peer, decode_question(bytes(peer.received)))
        except OverspillError as error:
            self._send(peer, error)

    def _answer(self, peer: _Peer, question: Question) -> None:
        library, seen, word = self._library, self._library.inventory, question.word
        if word == "index":
            seen.scan(lambda error: self._send(peer, error or Reply(states=seen.index())))
        elif word == "statistics":
            self._send(peer, Reply(statistics=seen.statistics(question.model, question.version)))
        elif word == "config":
            self._send(peer, Reply(config=seen.config(question.model, question.version)))
        elif word == "executors":
            self._send(peer, Reply(executors=tuple(_facts_of(shell) for shell in library.crew.shells)))
        elif word == "traced":
            self._send(peer, Reply(traced=self._traced.take()))
        elif word == "load":
            library.load(question.model, question.config, lambda error: self._send(peer, error or Reply()))
        elif word == "unload":
            library.unload(question.model, lambda error: self._send(peer, error or Reply()))
        elif word == "open_memory":
            self._open_memory(peer, decode_memory(question))
        elif word == "close_memory":
            memory = decode_memory(question)
            self._card_memory.close(memory.number, memory.client_id)
            self._send(peer, Reply())
        else:
            raise InvalidArgument(
                f"a node cannot be asked for {word[:40]!r}; ask for index, statistics, config, executors, traced, load,"
                " unload, open_memory or close_memory"
            )

    def _open_memory(self, peer: _Peer, memory: MemoryFacts) -> None:
        def opened(number: int, error: OverspillError | None) -> None:
            self._send(peer, error or Reply(config=str(number)))

        words = memory.client_id, memory.handle, memory.card, memory.nbytes
        self._card_memory.open(self._library.crew, self._reactor, *words, opened)

    def _send(self, peer: _Peer, reply: Reply | OverspillError) -> None:
        if peer not in self._peers:
            return  # it left before it was told
        peer.to_send = memoryview(encode_reply(reply))
        peer.timer = self._reactor.call_later(ASK_S, partial(self._hang_up, peer))
        self._reactor.modify(peer.sock.fileno(), select.EPOLLOUT)

    def _write(self, peer: _Peer) -> None:
        peer.to_send = peer.to_send[peer.sock.send(peer.to_send) :]
        if not peer.to_send:
            self._hang_up(peer)

    def _hang_up(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        if peer.timer is not None:
            peer.timer.cancel()
        self._reactor.remove(peer.sock.fileno())
        with suppress(OSError):  # the peer may have left first
            peer.sock.shutdown(socket.SHUT_RDWR)
        peer.sock.close()


def _facts_of(shell: ExecutorShell) -> ExecutorFacts:
    machine, seat = shell.machine, shell.seat
    device = ":".join(seat.word.split(":")[:2])  # what follows says where a fake one lies
    facts = ExecutorFacts(shell.desk.number, device, machine.generation, machine.state.value, ready=shell.desk.open)
    if shell.pid:
        page = shell.lives[0].child.page
        facts = replace(facts, pid=shell.pid, registrations=page.registered, pinned_bytes=page.pinned_bytes)
        card, host, fallbacks = page.passed_on
        facts = replace(facts, passed_card_bytes=card, passed_host_bytes=host, passed_fallbacks=fallbacks)
    if seat.card is None or seat.cards is None:
        return facts
    whole, free = seat.card.memory_bytes, seat.cards.free_bytes(seat.card.uuid)
    return replace(facts, card=seat.card.uuid, card_bytes=whole, card_used_bytes=max(0, whole - free))
