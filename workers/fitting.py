"""On which of a node's executors a model fits, and why not on the others: by what it requires, and by bytes.

Cards of one node may be unlike, so that a model fits some and not others; it serves on those, and what was refused is
told. Memory is counted before anything is loaded: a model that would not fit is refused with the numbers, where a load
that tries and fails may take others down with it. This module loads nothing. Read `workers/library.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fabric.errors import ModelBroken, ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.legs import Leg
    from workers.modelconfig import ModelConfig

_BYTES: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|[KMGT]i?B?|B)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LEAST: Final = re.compile(r"memory\s*>=\s*(.+)")
REQUIRES: Final = "gpu, cpu, card=NAME, or memory>=SIZE"


@dataclass(frozen=True, slots=True)
class Spot:
    """One executor as a place for models: its name, its card's model, memory and number (empty, 0 and -1 on a
    processor), and how much of that memory nobody holds."""

    number: int
    name: str
    card: str = ""
    memory_bytes: int = 0
    free_bytes: int = 0
    index: int = -1


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a model goes: the numbers of executors, and why it does not go to others, if there are such. `legs`, if
    any, are the parts of an ensemble that no executor has all steps of."""

    numbers: frozenset[int]
    refused: str = ""
    need_bytes: int = 0
    """Of each instance."""
    hosted: int = 0
    """Instances on processors, whose memory is the host's."""
    legs: tuple[Leg, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of the host for models: what may be used, what models are counted with, and what is free by the system's
    own word."""

    bytes_max: int
    counted_bytes: int
    free_bytes: int


def parse_bytes(text: str) -> int | None:
    """`6GiB` or `512 MB` as bytes (both by powers of 1024, as cards are sold); None for what is no size."""
    found = _BYTES.fullmatch(text.strip())
    return int(float(found[1]) * _UNITS[found[2][:1].upper().replace("B", "")]) if found else None


def told_bytes(count: int) -> str:
    """Bytes for people."""
    for unit in ("GiB", "MiB", "KiB"):
        size = _UNITS[unit[0]]
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def fit(config: ModelConfig, file_bytes: int, spots: tuple[Spot, ...], held: Mapping[int, int], room: Room) -> Fit:
    """The executors for a model, by `requires`, `profiles` and its instance groups; `held` is what each has already, in
    bytes, so that few instances go where there is least. An instance needs `memory_bytes`, or what its files take.
    Raises ModelBroken where it fits none, ResourceExhausted where there is no memory for it."""
    reasons: dict[str, list[str]] = {}
    good: list[Spot] = []
    for spot in spots:
        why = _unfit(config, spot)
        if why:
            reasons.setdefault(why, []).append(spot.name)
        else:
            good.append(spot)
    refused = "; ".join(f"not on {', '.join(names)}: it {why}" for why, names in reasons.items())
    if not good:
        raise ModelBroken(f"model {config.name!r} fits no device of this node: {refused}")
    count = config.instances.count
    if count and not any(spot.card for spot in good):  # on cards the count is of each card, which has one executor
        good = sorted(good, key=lambda spot: (held.get(spot.number, 0), spot.number))[:count]
    written = config.parameter("memory_bytes")
    need_bytes = parse_bytes(written) if written else file_bytes
    if need_bytes is None:
        raise ModelBroken(f"model {config.name!r}: parameter 'memory_bytes' is {written!r}; give a size, such as 6GiB")
    _check_room(config, need_bytes, good, room)
    hosted = sum(not spot.card for spot in good)
    return Fit(frozenset(spot.number for spot in good), refused, need_bytes, hosted)


def _unfit(config: ModelConfig, spot: Spot) -> str:
    """Why a model does not go to an executor; empty where it does."""
    kind = config.instances.kind
    if kind == "KIND_GPU" and not spot.card:
        return "has instance_group kind KIND_GPU"
    if kind == "KIND_CPU" and spot.card:
        return "has instance_group kind KIND_CPU"
    if config.instances.gpus and spot.index not in config.instances.gpus:
        return f"has instance_group gpus {list(config.instances.gpus)}"
    for term in filter(None, (term.strip() for term in config.parameter("requires").split(","))):
        least = _LEAST.fullmatch(term)
        if term == "gpu":
            met = bool(spot.card)
        elif term == "cpu":
            met = not spot.card
        elif term.startswith("card="):
            met = bool(spot.card) and _is_like(spot.card, term[len("card=") :])
        elif least is not None and (wanted := parse_bytes(least[1])) is not None:
            met = spot.memory_bytes >= wanted if spot.card else True
        else:
            raise ModelBroken(f"model {config.name!r}: parameter 'requires' says {term!r}; give {REQUIRES}")
        if not met:
            return f"requires {term}"
    profiles = [word.strip() for word in config.parameter("profiles").split(",") if word.strip()]
    if profiles and not any(_is_like(spot.card or "cpu", word) for word in profiles):
        return f"has profiles for {', '.join(profiles)} only"
    return ""


def _is_like(card: str, word: str) -> bool:
    return word.strip().lower() in card.lower()


def _check_room(config: ModelConfig, need_bytes: int, spots: Iterable[Spot], room: Room) -> None:
    """Raises ResourceExhausted, with the numbers, where a model of `need_bytes` for each instance has no room: on each
    card, or in the host's memory for all instances on processors together."""
    hosted = 0
    for spot in spots:
        if not spot.card:
            hosted += need_bytes
        elif spot.free_bytes and need_bytes > spot.free_bytes:
            raise ResourceExhausted(
                f"model {config.name!r} needs {told_bytes(need_bytes)} on {spot.name};"
                f" {told_bytes(spot.free_bytes)} of {told_bytes(spot.memory_bytes)} are free"
            )
    left = room.bytes_max - room.counted_bytes
    if hosted > min(left, room.free_bytes):
        count = hosted // max(1, need_bytes)
        raise ResourceExhausted(
            f"model {config.name!r} needs {told_bytes(need_bytes)} for each of {count} instances;"
            f" {told_bytes(max(0, min(left, room.free_bytes)))} are left: models may take {told_bytes(room.bytes_max)}"
            f" (model_bytes_max) and are counted with {told_bytes(room.counted_bytes)}, and the system has"
            f" {told_bytes(room.free_bytes)} free"
        )
