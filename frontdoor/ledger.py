"""What each model has done through an engine that has no figures of its own, counted as Triton counts.

A node counts for itself and tells it (`fabric/control.py`); a gateway counts here what it sends. It does not know the
batches that nodes make, so a request is one run of one row. This module reads no clock. Read `frontdoor/engine.py`.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import Counter

from fabric.control import BatchStatistics, Duration, ModelStatistics


class Tally:  # mutable: counts
    """One version of one model."""

    def __init__(self) -> None:
        self.pending = 0
        self._success = 0
        self._success_ns = 0
        self._fail = 0
        self._fail_ns = 0
        self._queue_ns = 0
        self._compute_ns = 0
        self._last_ms = 0
        self._failures: Counter[str] = Counter()

    def answered(self, took_ns: int, queue_ns: int, compute_ns: int, now_ms: int) -> None:
        """A request was answered, at `now_ms` of the Unix epoch."""
        self._success += 1
        self._success_ns += took_ns
        self._queue_ns += queue_ns
        self._compute_ns += compute_ns
        self._last_ms = now_ms

    def failed(self, took_ns: int, reason: str) -> None:
        """A request came to a bad end, for one of Triton's reasons."""
        self._fail += 1
        self._fail_ns += took_ns
        self._failures[reason] += 1

    def value(self, name: str, version: str) -> ModelStatistics:
        """The figures of now."""
        count = self._success
        compute, nothing = Duration(count, self._compute_ns), Duration(count, 0)
        return ModelStatistics(
            name=name,
            version=version,
            last_inference_ms=self._last_ms,
            inference_count=count,
            execution_count=count,
            success=Duration(count, self._success_ns),
            fail=Duration(self._fail, self._fail_ns),
            queue=Duration(count, self._queue_ns),
            compute_input=nothing,
            compute_infer=compute,
            compute_output=nothing,
            batches=(BatchStatistics(1, nothing, compute, nothing),) if count else (),
            failures=tuple(sorted(self._failures.items())),
            pending=self.pending,
        )
