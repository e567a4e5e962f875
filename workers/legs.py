"""An ensemble whose steps no executor has all of, cut into legs: the steps that run in one executor in a row.

Two models that are too large for one card are put on two, and a request goes from the one to the other. What travels
between two legs is a `Parcel` (`workers/parcels.py`): in memory of the first card where the second can read that, else
in the host's. This module decides where a chain is cut, and what each leg gives and takes; it moves nothing. Read
`workers/onward.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.ensembleconfig import EnsembleStep

BETWEEN_BYTES: Final = 512 << 20
"""What an ensemble's tensors between two cards may take on each, where its `memory_bytes` does not say."""
BETWEEN_MAX: Final = 4
"""Requests of one ensemble that are past its first leg, for each executor of the later ones: one that runs, one that
waits, and as many whose memory is being filled or let go. The first leg waits while there are so many."""


def loaded_anew(name: str) -> str:
    """What is said of a request that was between two legs then."""
    return f"ensemble {name!r} was loaded anew while the request was between two of its steps; send it again"


@dataclass(frozen=True, slots=True)
class Leg:
    """The steps from `first` to before `upto`, and the executors, by number, that have all of them."""

    first: int
    upto: int
    numbers: frozenset[int]


def cut(placed: Sequence[frozenset[int]]) -> tuple[Leg, ...]:
    """The legs of a chain whose steps are on these executors: each as long as some executor has all of it, which makes
    the fewest. Every step is somewhere."""
    legs: list[Leg] = []
    for at, numbers in enumerate(placed):
        assert numbers, "a step that is nowhere was refused"
        if legs and legs[-1].numbers & numbers:
            legs[-1] = Leg(legs[-1].first, at + 1, legs[-1].numbers & numbers)
        else:
            legs.append(Leg(at, at + 1, numbers))
    return tuple(legs)


def given_on(steps: Sequence[EnsembleStep], first: int, upto: int, outputs: Sequence[str]) -> frozenset[str]:
    """The tensors that the leg from `first` to before `upto` gives and that later steps, or the caller, get."""
    given = {tensor for step in steps[first:upto] for _, tensor in step.outputs}
    wanted = {tensor for step in steps[upto:] for _, tensor in step.inputs} | set(outputs)
    return frozenset(given & wanted)


def taken_by(steps: Sequence[EnsembleStep], first: int, upto: int, outputs: Sequence[str]) -> frozenset[str]:
    """Of what earlier steps gave, the tensors that the leg from `first` to before `upto` reads: all that the caller
    gets too, if it is the last."""
    wanted = {tensor for step in steps[first:upto] for _, tensor in step.inputs}
    if upto == len(steps):
        wanted |= set(outputs)
    return frozenset(wanted & {tensor for step in steps[:first] for _, tensor in step.outputs})
