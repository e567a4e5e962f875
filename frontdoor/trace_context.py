"""Reads the W3C Trace Context that a caller sends: which trace its request belongs to, and whether that is recorded.

The header is `traceparent` (HTTP) or the metadata of that name (gRPC), as www.w3.org/TR/trace-context-1 has it. What is
malformed is no error and no context: a request is never refused for what its caller's tracing does. This module decides
nothing about what is recorded here. Read `frontdoor/traces.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
STATE_CHARS_MAX: Final = 512
"""What every vendor must pass on (3.3.1.5 there); a longer state is left out."""
_SAMPLED: Final = 1
# Later versions may append fields, which are not read; version ff is none (2.2.2 there).
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Context:
    """The caller's trace and its own span in it, in hexadecimal. `state` is the vendors' own, uninterpreted."""

    trace_id: str
    parent_id: str
    sampled: bool
    state: str = ""


def read_context(parent: str, state: str = "") -> Context | None:
    """The context that two headers tell, either of which may be empty; None where they tell none."""
    found = _PARENT.fullmatch(parent.strip(" \t")) if parent else None
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (more is not None and version == "00") or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    plain = len(state) <= STATE_CHARS_MAX and state.isascii() and state.isprintable()
    return Context(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED), state.strip(" \t") if plain else "")
