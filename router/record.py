"""Why each request went where it went: the candidates of every pick with all terms of their prices, kept and told.

Off, it costs one comparison for each pick. On, the last decisions are kept in memory and, where a file is named,
written there one JSON object a line, for `overspill explain`. A decision can be made again from its record, also with
other weights: what would have been picked had the transport counted twice? This module writes no file. Read
`overspill/commands/explain.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from router.pick import Picked
    from router.price import Terms
    from router.workers import Worker

SCHEMA = 1
_SAME_MS = 0.001
UNWRITTEN_MAX = 10_000
"""Decisions that wait to be written; a disk that is slower than that loses the oldest, which are counted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker that was priced, in milliseconds; `report_age_ms` is how old its load report was, None before the
    first."""

    worker: str
    transport_ms: float
    queue_ms: float
    unseen_ms: float
    compute_ms: float
    report_age_ms: float | None

    @property
    def total_ms(self) -> float:
        """The price."""
        return self.transport_ms + self.queue_ms + self.unseen_ms + self.compute_ms


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each term counts when a decision is made again; 1 is as it was."""

    transport: float = 1.0
    queue: float = 1.0
    unseen: float = 1.0
    compute: float = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """One pick. `at_s` is the router's clock; `ties` counts the candidates that cost the same; `excluded` tells who was
    left out and why; `tied` names the second worker of a request that was sent to two."""

    request_id: str
    attempt: int
    model: str
    at_s: float
    picked: str
    candidates: tuple[Candidate, ...]
    excluded: tuple[tuple[str, str], ...]
    ties: int
    last_resort: bool
    tied: str = ""

    @property
    def margin_ms(self) -> float | None:
        """How much more the runner-up would have cost; None without one."""
        totals = sorted(candidate.total_ms for candidate in self.candidates)
        return totals[1] - totals[0] if len(totals) > 1 else None

    def again(self, weights: Weights | None = None) -> tuple[str, ...]:
        """Whom the same candidates would give with these weights: one name, or all that tie."""
        by = weights or Weights()
        totals = {
            one.worker: one.transport_ms * by.transport
            + one.queue_ms * by.queue
            + one.unseen_ms * by.unseen
            + one.compute_ms * by.compute
            for one in self.candidates
        }
        least = min(totals.values())
        return tuple(name for name, total in totals.items() if total < least + _SAME_MS)

    def as_line(self) -> str:
        """One line of JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"))

    def sentences(self) -> list[str]:
        """The decision for people, a line each."""
        margin = self.margin_ms
        why = "the only candidate" if margin is None else f"cheaper by {margin:.3f} ms"
        if self.ties > 1:
            why = f"by dice, one of {self.ties} that cost the same"
        if self.last_resort:
            why += ", as a last resort: nobody else was usable"
        lines = [f"request {self.request_id}, attempt {self.attempt + 1}, of {self.model}: {self.picked}, {why}"]
        lines += [
            (
                f"  {one.worker}: {one.total_ms:.3f} ms = transport {one.transport_ms:.3f} + queue {one.queue_ms:.3f}"
                f" + unseen {one.unseen_ms:.3f} + compute {one.compute_ms:.3f}; "
                + ("no report yet" if one.report_age_ms is None else f"report {one.report_age_ms:.1f} ms old")
            )
            for one in sorted(self.candidates, key=lambda one: one.total_ms)
        ]
        lines += [f"  {name}: left out, {reason}" for name, reason in self.excluded]
        if self.tied:
            lines.append(f"  tied with {self.tied}")
        return lines


def decision_of(line: str) -> Decision:
    """Reads a line of a record. Raises InvalidArgument for what is none."""
    try:
        told = json.loads(line)
        if told.pop("schema") != SCHEMA:
            raise InvalidArgument(f"the record has another schema than {SCHEMA}; use the version that wrote it")
        told["candidates"] = tuple(Candidate(**one) for one in told["candidates"])
        told["excluded"] = tuple((name, reason) for name, reason in told["excluded"])
        return Decision(**told)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidArgument("a line of the record is no decision; give the file that the router wrote") from None


class Record:  # mutable: a ring of decisions
    """The last `kept` decisions by request id, and those that are still to be written. Its owner's lock guards it."""

    def __init__(self, kept: int, *, to_file: bool) -> None:
        self._kept = kept
        self._decisions: OrderedDict[tuple[str, int], Decision] = OrderedDict()
        self._to_file = to_file
        self._unwritten: deque[Decision] = deque()
        self.lost = 0

    def note(
        self,
        request_id: str,
        attempt: int,
        model: str,
        found: Picked,
        seen: list[tuple[Worker, Terms]],
        now: float,
        tied: str,
    ) -> None:
        """Notes a pick and all that it compared."""
        candidates = tuple(
            Candidate(worker.name, *terms[1:], _age_ms(worker.ahead.reported_at_s, now)) for worker, terms in seen
        )
        self._decisions[request_id, attempt] = decision = Decision(
            request_id=request_id,
            attempt=attempt,
            model=model,
            at_s=now,
            picked=found.worker.name,
            candidates=candidates,
            excluded=found.excluded,
            ties=found.ties,
            last_resort=found.last_resort,
            tied=tied,
        )
        if len(self._decisions) > self._kept:
            self._decisions.popitem(last=False)
        if self._to_file:
            if len(self._unwritten) >= UNWRITTEN_MAX:
                self._unwritten.popleft()
                self.lost += 1
            self._unwritten.append(decision)

    def of(self, request_id: str) -> tuple[Decision, ...]:
        """The decisions of one request, an attempt each; empty if none is kept any more."""
        return tuple(decision for (known, _), decision in self._decisions.items() if known == request_id)

    def take_unwritten(self) -> list[Decision]:
        """What is to be written, once."""
        taken = list(self._unwritten)
        self._unwritten.clear()
        return taken


def _age_ms(reported_at_s: float, now: float) -> float | None:
    return (now - reported_at_s) * 1000.0 if reported_at_s else None
