"""What somebody who looks at a registry has to say of it: one sentence, and how bad it is.

Used by `overspill doctor`. This module never looks. Read `discovery/agent/diagnosis.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Weight(Enum):
    """How bad it is."""

    FINE = "fine"
    NOTE = "note"
    """It works, and somebody should know."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Remark:
    """What was seen, in one sentence that ends in what to do."""

    weight: Weight
    subject: str
    sentence: str
