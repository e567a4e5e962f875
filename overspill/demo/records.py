"""What the demo writes down of each request, and what an audit of those records says.

Lost, wrong and duplicated are defined in ARCHITECTURE.md: *lost* is no final outcome by deadline + 100 ms, or a failure
although the rules allowed another try; *wrong* is bytes that differ from the single-process answer; *duplicated* is two
executions of a request that is not idempotent. This module never sends anything. Read `overspill/demo/report.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import Fate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GRACE_S = 0.1
"""An outcome that comes this much after its deadline still counts as one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request as its caller saw it. Times are seconds since the round began; `error` is empty for a reply."""

    stage: str
    began_s: float
    ended_s: float
    timeout_s: float
    idempotent: bool
    worker: str = ""
    wire: str = ""
    attempts: int = 1
    compute_ms: float = 0.0
    right: bool = True
    ledger_no: int = -1
    error: str = ""
    fate: Fate = Fate.RAN

    @property
    def latency_ms(self) -> float:
        """What the caller waited."""
        return (self.ended_s - self.began_s) * 1e3

    @property
    def unknown(self) -> bool:
        """Failed with a fate that forbids another try: the caller was told so."""
        return bool(self.error) and self.fate is not Fate.NEVER_RAN and not self.idempotent

    @property
    def lost(self) -> bool:
        """No outcome in time, or a failure although another try was allowed."""
        late = self.ended_s > self.began_s + self.timeout_s + GRACE_S
        return late or (bool(self.error) and not self.unknown)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something broken on purpose: when, what, and when its effect was over for callers."""

    kind: str
    target: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict over all records and the ledger's lines."""

    requests: int
    lost: int
    wrong: int
    duplicated: int
    unknown: int
    retried: int

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, wrong or duplicated."""
        return self.lost == self.wrong == self.duplicated == 0


def audit(records: Sequence[Record], ledger_lines: Iterable[int]) -> Audit:
    """Counts what went wrong. `ledger_lines` are the numbers that the ledger's executions appended, on all nodes.

    A number that was answered but never appended counts as wrong, one appended twice as duplicated.
    """
    appended = Counter(ledger_lines)
    answered = {record.ledger_no for record in records if record.ledger_no >= 0 and not record.error}
    sent = {record.ledger_no for record in records if record.ledger_no >= 0}
    never_appended = sum(1 for number in answered if not appended[number])
    strangers = sum(1 for number in appended if number not in sent)
    return Audit(
        requests=len(records),
        lost=sum(record.lost for record in records),
        wrong=sum(not record.right for record in records) + never_appended + strangers,
        duplicated=sum(count - 1 for count in appended.values() if count > 1),
        unknown=sum(record.unknown for record in records),
        retried=sum(record.attempts > 1 for record in records),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank); NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def recovery_s(records: Sequence[Record], fault: Fault) -> float:
    """How long callers felt a fault: until the last request that it forced into another attempt was answered.

    Zero when no request had to be tried again.
    """
    hit = [
        record.ended_s - fault.at_s
        for record in records
        if record.attempts > 1 and not record.error and record.began_s <= fault.at_s <= record.ended_s
    ]
    return max(hit, default=0.0)
