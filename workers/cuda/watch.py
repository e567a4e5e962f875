"""The node's end of the watcher: which cards there are, and what it says of them, kept for whoever asks.

A watcher that ends is started again; meanwhile the node goes on without its word: an executor's death is seen without
it, and the memory of a process that ended counts as free, for a card that cannot be asked must be tried. This module
decides nothing: `workers/cards.py` does. Read that next.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from fabric.errors import ConfigError, ProtocolError
from fabric.local.sockets import receive_now, send_now, seqpacket_pair
from workers.child import child_environment, python_module
from workers.cuda.words import Word, decode_word, encode_word

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fabric.local.reactor import Reactor
    from workers.device import Card

_log = logging.getLogger(__name__)
FIRST_WORD_TIMEOUT_S: Final = 30.0
"""The driver may have to start its cards first, where nothing keeps them up: 2 s each were seen elsewhere."""
AGAIN_S: Final = 1.0
FREE_TIMEOUT_S: Final = 10.0
"""How long the memory of a process that ended may take to be free before its card is given up."""


class CardsHeard(Protocol):
    """Who hears of cards."""

    def xid(self, uuid: str, xid: int) -> None:
        """A card reported an Xid; an empty uuid means that it could not say which."""

    def recovery_action(self, uuid: str, action: int) -> None:
        """The driver wants something done about a card, or nothing any more (0)."""


class CardWatch:  # mutable: a process, then the next one; and what it said last
    """The watcher process of a node. Raises ConfigError when there is nothing to watch."""

    def __init__(self, reactor: Reactor, kind: str, where: str) -> None:
        self._reactor = reactor
        self._command = (kind, where)
        self._heard: CardsHeard | None = None
        self._awaited: dict[tuple[str, int], Callable[[bool], None]] = {}
        self._actions: dict[str, int] = {}
        self._free: dict[str, int] = {}
        self._holders: dict[str, tuple[tuple[int, int], ...]] = {}
        self._held: set[tuple[str, int]] = set()
        self._missing: set[str] = set()
        self._failed = ""
        self._closed = False
        self._sock, self._process = self._start()
        self.cards = self._first_word()
        self._watch()

    def listen(self, heard: CardsHeard) -> None:
        """Who hears what the watcher reports from now on."""
        self._heard = heard

    def await_free(self, uuid: str, pid: int, then: Callable[[bool], None]) -> None:
        """Calls `then(True)` when a process holds nothing of a card any more, or when that cannot be known;
        `then(False)` when it still does after FREE_TIMEOUT_S."""
        if self._failed or uuid in self._missing or not self._say(Word("await", uuid, pid)):
            self._reactor.call_later(0.0, partial(then, True))  # noqa: FBT003 - the answer itself
            return
        self._awaited[uuid, pid] = then
        self._reactor.call_later(FREE_TIMEOUT_S, partial(self._settled, uuid, pid, free=False))

    def held_bytes(self, uuid: str, pid: int) -> int:
        """What a process holds of a card, as last seen."""
        return sum(nbytes for holder, nbytes in self._holders.get(uuid, ()) if holder == pid)

    def holder_pids(self, uuid: str) -> tuple[int, ...]:
        """The processes that hold memory of a card, as last seen."""
        return tuple(pid for pid, _ in self._holders.get(uuid, ()))

    def free_bytes(self, uuid: str) -> int:
        """Memory of a card that nobody holds, as last seen; all of it before the first look."""
        whole = next((card.memory_bytes for card in self.cards if card.uuid == uuid), 0)
        return self._free.get(uuid, whole)

    def is_good(self, uuid: str) -> bool:
        """Whether the driver answers, wants nothing done about a card, and nobody who ended holds its memory."""
        held = any(holder == uuid for holder, _ in self._held)
        return not self._failed and uuid not in self._missing and not held and not self._actions.get(uuid, 0)

    def close(self) -> None:
        """Ends the watcher."""
        self._closed = True
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = seqpacket_pair()
        with theirs:
            words = (str(theirs.fileno()), str(os.getpid()), *self._command)
            process = subprocess.Popen(  # noqa: S603 - our own module
                [*python_module("workers.cuda.watcher"), *words],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=child_environment(),
                start_new_session=True,
            )
        return ours, process

    def _first_word(self) -> tuple[Card, ...]:
        ready = select.select([self._sock], [], [], FIRST_WORD_TIMEOUT_S)[0]
        message = receive_now(self._sock) if ready else None
        word = decode_word(message) if message else Word("failed", text="the watcher of the GPUs said nothing")
        if word.word == "cards":
            return word.cards
        self._sock.close()
        self._process.kill()
        self._process.wait()
        raise ConfigError(f"no GPU can be used: {word.text}; without one give --devices cpu:N, or fake:N for drills")

    def _watch(self) -> None:
        self._reactor.add(self._sock.fileno(), self._ready)

    def _say(self, word: Word) -> bool:
        try:
            return send_now(self._sock, encode_word(word))
        except OSError:
            return False

    def _ready(self, _events: int) -> None:
        while True:
            try:
                message = receive_now(self._sock)
                if message is None:
                    return
                if message:
                    self._take(decode_word(message))
                    continue
            except (OSError, ProtocolError):
                pass
            self._lost()
            return

    def _take(self, word: Word) -> None:
        if word.word == "free":
            self._settled(word.uuid, word.number, free=True)
        elif word.word == "memory":
            self._free[word.uuid] = word.number
            self._holders[word.uuid] = word.holders
        elif word.word == "cards":
            self._missing.clear()
            _log.info("the GPUs are watched again")
        elif word.word == "lost":
            self._missing.add(word.uuid)
            _log.error("GPU %s cannot be watched: %s", word.uuid, word.text)
        elif word.word == "found":
            self._missing.discard(word.uuid)
            _log.info("GPU %s is watched again", word.uuid)
        elif word.word in {"failed", "well"}:
            self._failed = word.text
            if word.text:
                _log.error("the GPUs cannot be watched: %s", word.text)
        elif word.word == "action":
            self._actions[word.uuid] = word.number
            if self._heard is not None:
                self._heard.recovery_action(word.uuid, word.number)
        elif word.word == "xid" and self._heard is not None:
            self._heard.xid(word.uuid, word.number)

    def _settled(self, uuid: str, pid: int, *, free: bool) -> None:
        then = self._awaited.pop((uuid, pid), None)
        if free:
            self._held.discard((uuid, pid))
        elif then is not None:
            self._held.add((uuid, pid))
        if then is not None:
            then(free)

    def _lost(self) -> None:
        if self._closed:
            return
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
        self._process.kill()
        code = self._process.wait()
        _log.warning("the watcher of the GPUs ended with code %d and is started again", code)
        self._failed = "its watcher ended"
        for uuid, pid in list(self._awaited):
            self._settled(uuid, pid, free=True)
        self._reactor.call_later(AGAIN_S, self._start_again)

    def _start_again(self) -> None:
        if self._closed:
            return
        try:
            self._sock, self._process = self._start()
        except OSError as error:
            _log.warning("the watcher of the GPUs cannot be started and is tried again: %s", error.strerror)
            self._reactor.call_later(AGAIN_S, self._start_again)
            return
        self._failed = ""
        for uuid, pid in self._held:
            self._say(Word("await", uuid, pid))
        self._watch()
