"""What a check of `overspill doctor` says: a grade, a subject, one sentence.

`ok`; `note`: worth knowing; `missing`: an optional part, and the sentence says what would bring it; `broken`: something
that Overspill needs, and the sentence says the mend. Read `overspill/doctoring.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw, in one sentence."""

    grade: Grade
    subject: str
    sentence: str
