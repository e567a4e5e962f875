"""Which cards CUDA_VISIBLE_DEVICES leaves to a node, by UUID: its numbers are CUDA's own, and not the driver's.

A scheduler gives a job some of a machine's cards by that variable, so a node takes no other. It is read as CUDA reads
it: by UUID or the beginning of one, by a slice's UUID, or by number, up to the first word that names nothing. Numbers
count along the bus only with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all cards are alike; else CUDA counts the fastest
first, which nobody here can know, so that is refused and never guessed. What the order of the words is changes nothing.
This module reads no environment. Read `workers/cards.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from workers.device import Card

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE: Final = "CUDA_DEVICE_ORDER"
ALONG_THE_BUS: Final = "PCI_BUS_ID"
_SLICE_OF: Final = " MIG "
"""Between a card's name and its slice's."""


def shown_cards(visible: str | None, order: str, cards: tuple[Card, ...]) -> tuple[Card, ...]:
    """Those of the cards, in their own order, that the variable's value leaves; None leaves all. A whole card that is
    cut into slices stands for all of them. Raises ConfigError for numbers whose meaning cannot be known."""
    if visible is None:
        return cards
    wholes = tuple(dict.fromkeys(card.parent or card.uuid for card in cards))
    shown: set[str] = set()
    for word in (each.strip() for each in visible.split(",")):
        if word.isascii() and word.isdecimal():
            _check_countable(word, order, cards)
            found = set(wholes[int(word) : int(word) + 1])
        else:
            names = {*wholes, *(card.uuid for card in cards)}
            found = {word} & names or {name for name in names if word and name.startswith(word)}
        if len(found) != 1:
            break
        shown |= found
    return tuple(card for card in cards if card.uuid in shown or card.parent in shown)


def _check_countable(word: str, order: str, cards: tuple[Card, ...]) -> None:
    kinds = {card.model.partition(_SLICE_OF)[0] for card in cards}
    if len(kinds) > 1 and order != ALONG_THE_BUS:
        raise ConfigError(
            f"{VARIABLE} counts to {word} and the cards differ ({', '.join(sorted(kinds))}), so CUDA numbers them in an"
            f" order of its own; name them by UUID there, or set {ORDER_VARIABLE}={ALONG_THE_BUS}"
        )
