"""What each model has done here, counted as Triton counts it: requests, batch items, runs, and where the time went.

One tally per version of a model takes the figures that executors send with each answer, and the requests that never got
so far; it gives them out as values. This module never times anything itself. Read `fabric/control.py` for what the
values mean, `workers/reception.py` for where the tallies are fed.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fabric.control import BatchStatistics, Duration, ModelStatistics

if TYPE_CHECKING:
    from workers.handover import Spent

REJECTED: Final = "REJECTED"
CANCELED: Final = "CANCELED"
BACKEND: Final = "BACKEND"
OTHER: Final = "OTHER"
"""Triton's reasons of a failure, as its metric `nv_inference_request_failure` has them."""
BATCH_SIZES_MAX: Final = 1024
"""Batch sizes that are told apart for one model; runs of further ones count in the sums only."""


@final
class BatchTally:  # mutable: counts runs
    """The runs of one batch size."""

    __slots__ = ("count", "infer_us", "input_us", "output_us")

    def __init__(self) -> None:
        self.count = 0
        self.input_us = 0
        self.infer_us = 0
        self.output_us = 0


@final
class ModelTally:  # mutable: counts
    """One version of one model, since it was loaded first."""

    __slots__ = (
        "_batches",
        "_fail_us",
        "_failures",
        "_infer_us",
        "_input_us",
        "_output_us",
        "_queue_us",
        "_success_us",
        "execution_count",
        "fail_count",
        "inference_count",
        "last_s",
        "success_count",
        "version",
    )  # fmt: skip

    def __init__(self, version: str) -> None:
        self.version = version
        self.success_count = 0
        self.fail_count = 0
        self.inference_count = 0
        self.execution_count = 0
        self.last_s = 0.0
        """When the last request that ran had its answer, in monotonic seconds."""
        self._success_us = 0
        self._fail_us = 0
        self._queue_us = 0
        self._input_us = 0
        self._infer_us = 0
        self._output_us = 0
        self._batches: dict[int, BatchTally] = {}
        self._failures: dict[str, int] = {}

    def ran(self, spent: Spent, *, leads: bool, took_s: float, now: float) -> None:
        """A request was answered, `took_s` after it came. One request of each batch `leads` it: it counts the run."""
        input_us, output_us = spent.input_us, spent.output_us
        infer_us = spent.compute_us - input_us - output_us
        self.success_count += 1
        self.inference_count += spent.rows
        self.last_s = now
        self._success_us += int(took_s * 1e6)
        self._queue_us += spent.queue_us
        self._input_us += input_us
        self._infer_us += infer_us
        self._output_us += output_us
        if leads:
            self.execution_count += 1
            batch = self._batches.get(spent.batch_rows)
            if batch is None:
                if len(self._batches) >= BATCH_SIZES_MAX:
                    return
                batch = self._batches[spent.batch_rows] = BatchTally()
            batch.count += 1
            batch.input_us += input_us
            batch.infer_us += infer_us
            batch.output_us += output_us

    def failed(self, reason: str, took_s: float) -> None:
        """A request came to a bad end, `took_s` after it came."""
        self.fail_count += 1
        self._fail_us += int(took_s * 1e6)
        self._failures[reason] = self._failures.get(reason, 0) + 1

    def value(self, name: str, pending: int, epoch_s: float) -> ModelStatistics:
        """The figures of now. `epoch_s` is what to add to a monotonic time to make it one of the Unix epoch."""
        count = self.success_count
        return ModelStatistics(
            name=name,
            version=self.version,
            last_inference_ms=int((self.last_s + epoch_s) * 1000) if count else 0,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            success=_duration(count, self._success_us),
            fail=_duration(self.fail_count, self._fail_us),
            queue=_duration(count, self._queue_us),
            compute_input=_duration(count, self._input_us),
            compute_infer=_duration(count, self._infer_us),
            compute_output=_duration(count, self._output_us),
            batches=tuple(_batch(size, self._batches[size]) for size in sorted(self._batches)),
            failures=tuple(sorted(self._failures.items())),
            pending=pending,
        )

    def __repr__(self) -> str:
        return f"<ModelTally of version {self.version}, {self.success_count} good, {self.fail_count} bad>"


def _batch(size: int, tally: BatchTally) -> BatchStatistics:
    spent = _duration(tally.count, tally.input_us), _duration(tally.count, tally.infer_us)
    return BatchStatistics(size, *spent, _duration(tally.count, tally.output_us))


def _duration(count: int, us: int) -> Duration:
    return Duration(count, us * 1000)
