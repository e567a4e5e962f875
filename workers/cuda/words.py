"""What the watcher of the cards and its node say to each other, one word a message.

Read `workers/cuda/watcher.py` for the one end, `workers/cuda/watch.py` for the other.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any, Final

from fabric.errors import ProtocolError
from workers.device import Card

WORD_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Word:
    """Watcher to node: `cards` (all of them, once), `xid` (a card's, `number`), `action` (what the driver wants done,
    `number`), `memory` (a card's free bytes, with its `holders` as (pid, bytes)), `free` (a pid holds nothing any
    more), `lost` and `found` (a card cannot be asked, or can again), `failed` and `well` (the same of the driver). Node
    to watcher: `await` (a card and a pid).
    """

    word: str
    uuid: str = ""
    number: int = 0
    text: str = ""
    holders: tuple[tuple[int, int], ...] = ()
    cards: tuple[Card, ...] = ()


def encode_word(word: Word) -> bytes:
    """The word as it travels."""
    cards = [list(astuple(card)) for card in word.cards]
    return json.dumps([word.word, word.uuid, word.number, word.text, word.holders, cards]).encode()


def decode_word(message: bytes) -> Word:
    """Reads a word. Raises ProtocolError when it is none."""
    try:
        parts: Any = json.loads(message)
        word, uuid, number, text, holders, cards = parts
        held = tuple((int(pid), int(nbytes)) for pid, nbytes in holders)
        found = tuple(
            Card(int(index), str(name), str(model), int(memory), str(parent))
            for index, name, model, memory, parent in cards
        )
        return Word(str(word), str(uuid), int(number), str(text), held, found)
    except (ValueError, TypeError):
        raise ProtocolError("the watcher of the cards wrote what is no word; its node starts it again") from None
