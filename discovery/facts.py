"""An instance as plain JSON facts, and back: one reading for leases, registry entries and the last good list.

Whatever does not read as an instance raises one of `UNREADABLE`, so that its caller skips and counts it: one bad entry
never poisons a list. Unknown keys are ignored and missing new ones have a default, so that old and new nodes share a
registry. This module never touches a file or a socket. Read `discovery/lease_file.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from discovery.instance import CardFacts, Instance, ModelFacts, Readiness, TensorFacts

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""What reading foreign JSON may raise."""
_READINESS = {member.value: member for member in Readiness}


def instance_facts(instance: Instance) -> dict[str, Any]:
    """What `json.dumps` takes of an instance."""
    return {**asdict(instance), "readiness": instance.readiness.value}


def models_facts(models: tuple[ModelFacts, ...]) -> list[dict[str, Any]]:
    """The same of models alone."""
    return [asdict(model) for model in models]


def parse_instance(facts: Any) -> Instance:  # parsed JSON is anything until this has read it
    """Reads an instance. Raises one of UNREADABLE."""
    return Instance(
        node_id=text(facts["node_id"]),
        node_epoch=parse_epoch(facts["node_epoch"]),
        host_id=text(facts["host_id"]),
        readiness=parse_readiness(facts["readiness"]),
        local=parse_address(facts["local"]),
        rpc=parse_address(facts["rpc"]),
        rpc_tls=bool(facts["rpc_tls"]),
        devices=tuple(text(device) for device in facts["devices"]),
        models=parse_models(facts["models"]),
        rdma=parse_address(facts.get("rdma", "")),
        rack=text(facts.get("rack", "")),
        cards=parse_cards(facts.get("cards", [])),
    )


def parse_readiness(word: object) -> Readiness:
    """A word of a later version: the safe reading is that the node takes no work yet."""
    return _READINESS.get(word, Readiness.STARTING) if isinstance(word, str) else Readiness.STARTING


def parse_models(facts: Any) -> tuple[ModelFacts, ...]:  # parsed JSON is anything until this has read it
    """Reads models. Raises one of UNREADABLE."""
    return tuple(
        ModelFacts(
            name=text(model["name"]),
            version=text(model["version"]),
            idempotent=model["idempotent"] is True,  # anything else is no promise
            inputs=tuple(_tensor(tensor) for tensor in model["inputs"]),
            outputs=tuple(_tensor(tensor) for tensor in model["outputs"]),
            refused=text(model.get("refused", "")),
            state=text(model.get("state", "")),
            note=text(model.get("note", "")),
        )
        for model in facts
    )


def parse_cards(facts: Any) -> tuple[CardFacts, ...]:  # parsed JSON is anything until this has read it
    """Reads cards. Raises one of UNREADABLE."""
    return tuple(
        CardFacts(
            model=text(card["model"]),
            memory_bytes=_within(card["memory_bytes"], 0),
            uuid=text(card.get("uuid", "")),
            state=text(card.get("state", "")),
            standby=text(card.get("standby", "off")),
            standby_bytes=_within(card.get("standby_bytes", 0), 0),
        )
        for card in facts
    )


def cards_facts(cards: tuple[CardFacts, ...]) -> list[dict[str, Any]]:
    """What `json.dumps` takes of cards, without what is as by default."""
    usual = asdict(CardFacts("", -1))
    return [{key: value for key, value in asdict(card).items() if value != usual[key]} for card in cards]


def text(value: object) -> str:
    """The value if it is text that can be written. Raises TypeError, and ValueError for half a character: JSON can
    hold one, and whoever encodes it later would fail."""
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {value!r:.40}")
    if not value.isascii():
        value.encode()
    return value


def parse_address(value: object) -> str:
    """An address of any wire. Raises one of UNREADABLE."""
    address = text(value)
    if "\0" in address:
        raise ValueError("an address holds a zero byte")
    return address


def parse_epoch(value: Any) -> int:  # parsed JSON is anything until this has read it
    """A node's epoch, which frames carry in 64 bits. Raises one of UNREADABLE."""
    return _within(value, 0)


def _within(value: Any, least: int) -> int:
    number = int(value)
    if not least <= number < 1 << 64:
        raise ValueError(f"a number from {least} to 64 bits expected")
    return number


def _tensor(facts: Any) -> TensorFacts:  # parsed JSON is anything until this has read it
    return TensorFacts(text(facts["name"]), text(facts["dtype"]), tuple(_within(dim, -1) for dim in facts["dims"]))
