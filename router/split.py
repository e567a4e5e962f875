"""Splits one large batch over unequal workers: into many small parts, of which a few are out at a time.

A batch that is cut once, by what was measured before, ends when the worker does that was measured wrongly. Many small
parts, each priced when it is sent, need no such forecast: whoever is faster than expected is asked again sooner. The
last part is the only one that can be waited for, so parts are small beside the whole, and the last ones smaller still.
A part that is lost is tried again alone, as any request is. This module sends nothing. Read `router/mapping.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTS_PER_EXECUTOR = 8
"""Workers of speed 1:2:4 then end within three percent of each other, had they been measured well."""
PART_MS_MIN = 2.0
"""A part takes at least about this long, where the length is known: sending one costs some tenths of a millisecond."""
TAIL_SHARES, TAIL_DIVIDES = 2, 6
"""Of the last rows, as many as an equal part for each executor, a part takes half of an executor's share, but no less
than a sixth of an equal part."""
LANES_PER_EXECUTOR = 2
"""Parts that are out for each executor: one that runs, and one that waits so that it never idles."""
LANES_MAX = 64


@dataclass(frozen=True, slots=True)
class Split:
    """How a batch is cut: the rows of each part, and how many parts are out at a time."""

    parts: tuple[slice, ...]
    lanes: int


def plan(rows: int, executors: int, whole_ms: float | None) -> Split:
    """Cuts `rows` for so many executors; `whole_ms` is what the whole batch should take on one, None if unknown."""
    assert rows > 0, "asked before"
    executors = max(executors, 1)
    count = min(rows, executors * PARTS_PER_EXECUTOR)
    if whole_ms is not None:
        count = min(count, max(int(whole_ms / PART_MS_MIN), min(rows, executors)))
    edges = _edges(rows, count, executors, whole_ms)
    parts = tuple(slice(begin, end) for begin, end in pairwise(edges))
    return Split(parts, min(count, executors * LANES_PER_EXECUTOR, LANES_MAX))


def _edges(rows: int, count: int, executors: int, whole_ms: float | None) -> list[int]:
    """Where parts begin and end: `count` equal ones, but towards the end each is a part of what is left, so that the
    slowest worker's last one is short."""
    edges = [rows * number // count for number in range(count + 1)]
    if count <= executors:
        return edges
    usual = rows // count
    least = max(1, usual // TAIL_DIVIDES)
    if whole_ms is not None and whole_ms > 0.0:
        least = max(least, min(usual, int(rows * PART_MS_MIN / whole_ms)))
    kept = [edge for edge in edges if rows - edge >= usual * executors]
    while kept[-1] < rows:
        left = rows - kept[-1]
        kept.append(kept[-1] + min(left, max(least, min(usual, left // (TAIL_SHARES * executors)))))
    return kept


def rows_of(batch: Mapping[str, object]) -> tuple[int, dict[str, np.ndarray[Any, Any]]]:
    """The number of rows of a batch, and its arrays. Raises InvalidArgument unless all have equally many."""
    arrays = {name: np.asarray(value) for name, value in batch.items()}
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        bare = {name for name, array in arrays.items() if not array.ndim}  # a number, or a resident
        of_each = (f"{name} has {'no dimension' if name in bare else count}" for name, count in counts.items())
        told = ", ".join(of_each) or "there is no input"
        raise InvalidArgument(
            f"the inputs of a batch need the same number of rows, one or more ({told}); give what all parts need in"
            " `shared`"
        )
    return next(iter(counts.values())), arrays


def join(model: str, parts: Sequence[slice], outputs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of all parts, row by row in the order of the batch. Raises InvalidArgument for an output that has not
    one row for each row of its part."""
    joined: dict[str, np.ndarray[Any, Any]] = {}
    for name in outputs[0]:
        pieces = [output[name] for output in outputs]
        for part, piece in zip(parts, pieces, strict=True):
            wanted = part.stop - part.start
            if piece.ndim == 0 or piece.shape[0] != wanted:
                raise InvalidArgument(
                    f"output {name!r} of {model!r} has shape {list(piece.shape)} for {wanted} rows, so its parts cannot"
                    " be joined; use infer"
                )
        joined[name] = np.concatenate(pieces)
    return joined
