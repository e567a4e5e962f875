"""The node's child that watches the cards: their Xids, what the driver wants done, who still holds their memory.

It is a process of its own because a question to a broken driver may never return, and may end whoever asked. It has no
context and runs nothing on a card. It tells and decides nothing; it ends with its node. Read `workers/cuda/watch.py`
for the node's end.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fabric.errors import MissingDependency
from workers.cuda.words import WORD_BYTES_MAX, Word, decode_word, encode_word
from workers.device import Card, OverseerError, open_overseer
from workers.lifeline import end_with

if TYPE_CHECKING:
    from workers.device import Overseer

LOOK_S: Final = 0.5
"""How often a card's memory and the driver's wishes are asked for."""
AWAIT_LOOK_S: Final = 0.01
"""The same for the memory of a process that ended, while an executor waits for it."""
EVENTS_WAIT_S: Final = 0.5
AGAIN_S: Final = 1.0


class Watcher:  # mutable: remembers what it told
    """The loop of the process."""

    def __init__(self, node: socket.socket, kind: str, where: str) -> None:
        self._node = node
        self._kind = kind
        self._where = where
        self._overseer: Overseer | None = None
        self._cards: tuple[Card, ...] = ()
        self._awaited: set[tuple[str, int]] = set()
        self._actions: dict[str, int] = {}
        self._lost: set[str] = set()
        self._failure: OverseerError | None = None
        self._failed = ""
        self._look_at_s = 0.0
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Runs until the node is gone. Raises OverseerError or MissingDependency where nothing can be watched."""
        self._overseer = open_overseer(self._kind, self._where)
        self._cards = self._overseer.cards()
        self._tell(Word("cards", cards=self._cards))
        threading.Thread(target=self._hear_events, name="events", daemon=True).start()
        while True:
            try:
                self._look()
                self._well("")
            except OverseerError as error:
                self._well(str(error))
                time.sleep(AWAIT_LOOK_S)
            wait_s = AWAIT_LOOK_S if self._awaited else LOOK_S
            if select.select([self._node], [], [], wait_s)[0]:
                message = self._node.recv(WORD_BYTES_MAX)
                if not message:
                    return
                word = decode_word(message)
                self._awaited.add((word.uuid, word.number))

    def _look(self) -> None:
        overseer = self._overseer
        assert overseer is not None, "it was opened before"
        for uuid, pid in list(self._awaited):
            with suppress(OverseerError):  # told below
                if all(holder.pid != pid for holder in overseer.holders(uuid)):
                    self._awaited.discard((uuid, pid))
                    self._look_at(overseer, uuid)  # what is free now, before somebody looks whether it is enough
                    self._tell(Word("free", uuid, pid))
        now = time.monotonic()
        if now >= self._look_at_s:
            self._look_at_s = now + LOOK_S
            failures = [failure for card in self._cards if (failure := self._look_at(overseer, card.uuid))]
            # What is true of all cards is no card's failure, but the driver's.
            self._failure = failures[0] if failures and len(failures) == len(self._cards) else None
        if self._failure is not None:
            raise self._failure

    def _look_at(self, overseer: Overseer, uuid: str) -> OverseerError | None:
        """One card that cannot be asked any more says nothing about the others."""
        try:
            action = overseer.recovery_action(uuid)
            memory = Word("memory", uuid, overseer.free_bytes(uuid), holders=overseer.holders(uuid))
        except OverseerError as error:
            if uuid not in self._lost:
                self._lost.add(uuid)
                self._tell(Word("lost", uuid, text=str(error)))
            return error
        if uuid in self._lost:
            self._lost.discard(uuid)
            self._tell(Word("found", uuid))
        if action != self._actions.get(uuid, 0):
            self._actions[uuid] = action
            self._tell(Word("action", uuid, action))
        self._tell(memory)
        return None

    def _hear_events(self) -> None:
        """The events' own thread: the library waits for them inside itself."""
        overseer = self._overseer
        assert overseer is not None, "it was opened before"
        while True:
            try:
                for event in overseer.events(EVENTS_WAIT_S):
                    self._tell(Word("xid", event.uuid, event.xid))
            except OverseerError:  # told by the other thread, which asks more often
                time.sleep(AGAIN_S)

    def _well(self, failure: str) -> None:
        if bool(failure) != bool(self._failed):
            self._tell(Word("failed" if failure else "well", text=failure))
        self._failed = failure

    def _tell(self, word: Word) -> None:
        with self._lock:
            self._node.send(encode_word(word))


def main() -> int:
    """The process: `watcher FD PARENT KIND WHERE`."""
    fd, parent_pid = map(int, sys.argv[1:3])
    kind, where = sys.argv[3:5]
    end_with(parent_pid)
    node = socket.socket(fileno=fd)
    try:
        Watcher(node, kind, where).serve()
    except (OverseerError, MissingDependency) as error:
        node.send(encode_word(Word("failed", text=str(error))))
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0
