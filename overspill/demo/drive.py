"""Sends the round through the router: OR then ETR for each job, the ledger beside them, faults when their time comes.

Callers are plain threads with the blocking router, as a service would have them. Each reply is compared, byte for byte,
with the single-process answer. This module never starts or stops a node: it is handed the faults as functions. Read
`overspill/demo/records.py` next.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.errors import OverspillError
from overspill.demo.records import Fault, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from router import Reply, Router

Arrays = dict[str, np.ndarray[Any, Any]]
CALLERS = 6
"""Threads that send jobs: enough to keep three executors and the wires to them busy."""
LEDGER_INTERVAL_S = 0.02
LOOK_S = 0.02
"""How often the share of the work that is done is looked at: the last quarter of the shortest round takes longer."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a job: which model, what goes in (made from the step before), and what must come out."""

    model: str
    inputs: Callable[[Mapping[str, np.ndarray[Any, Any]]], Arrays]
    expected: Arrays


@dataclass(frozen=True, slots=True)
class Job:
    """A shard's piece: its steps run one after the other, jobs run beside each other. `work_s` is what one executor
    computes for it."""

    shard: str
    steps: tuple[Step, ...]
    work_s: float


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault to inject once this share of the work, or of the jobs, is done: one job may be most of the work."""

    at_share: float
    kind: str
    inject: Callable[[], str]


class Drive:  # mutable: one run of a round
    """Runs jobs and the ledger until all are done; collects a record of each request."""

    def __init__(
        self,
        router: Router,
        jobs: Sequence[Job],
        faults: Sequence[PlannedFault],
        timeout_s: float,
        tables: Sequence[np.ndarray[Any, Any]] = (),
        callers: int = CALLERS,
        ledger_interval_s: float = LEDGER_INTERVAL_S,
    ) -> None:
        """`tables` are inputs that many jobs share: they are sent to each node once."""
        self._callers, self._ledger_interval_s = callers, ledger_interval_s
        self.router = router
        self._residents = {id(table): router.resident(table) for table in tables}
        self._tables = tables  # while they live, nothing else has their id
        self.each_time_bytes = 0
        """What the tables would have taken, had each answered request brought them along."""
        self.timeout_s = timeout_s
        self.records: list[Record] = []  # list.append is atomic, so callers share it without a lock
        self.faults: list[Fault] = []
        self.total = len(jobs)
        self._todo = deque(jobs)
        self._planned = sorted(faults, key=lambda fault: fault.at_share)
        self._done = 0
        self._work_s = sum(job.work_s for job in jobs)
        self._done_s = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._began = 0.0

    def run(self, progress: Callable[[int, int], None]) -> float:
        """Sends everything; gives the wall time in seconds. `progress` is told (done, total) all the while."""
        self._began = time.monotonic()
        callers = [threading.Thread(target=self._caller, name=f"caller-{number}") for number in range(self._callers)]
        ledger = threading.Thread(target=self._ledger, name="ledger")
        for thread in (*callers, ledger):
            thread.start()
        try:
            while any(thread.is_alive() for thread in callers):
                progress(self._done, self.total)
                self._inject_due()
                self._over.wait(LOOK_S)
            took = self._now()
        finally:  # Ctrl-C too: callers stop after their present request
            self._todo.clear()
            self._over.set()
            for thread in (*callers, ledger):
                thread.join(self.timeout_s + 1.0)
        progress(self._done, self.total)
        return took

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _inject_due(self) -> None:
        share = max(self._done_s / self._work_s, self._done / self.total)
        while self._planned and share >= self._planned[0].at_share:
            fault = self._planned.pop(0)
            at_s = self._now()
            self.faults.append(Fault(fault.kind, fault.inject(), at_s))

    def _caller(self) -> None:
        while True:
            try:
                job = self._todo.popleft()
            except IndexError:
                return
            outputs: Mapping[str, np.ndarray[Any, Any]] = {}
            for step in job.steps:
                reply = self._send(step.model, step.inputs(outputs), step.expected)
                if reply is None:
                    break
                outputs = {name: reply[name] for name in reply}
            with self._lock:
                self._done += 1
                self._done_s += job.work_s

    def _send(self, model: str, inputs: Arrays, expected: Arrays) -> Reply | None:
        began = self._now()
        given = {name: self._residents.get(id(array), array) for name, array in inputs.items()}
        try:
            reply = self.router.infer(model, given, timeout_s=self.timeout_s)
        except OverspillError as error:
            self._note_failure(model, began, error, idempotent=True)
            return None
        ended = self._now()
        right = set(expected) <= set(reply) and all(same_bytes(reply[name], array) for name, array in expected.items())
        trace = reply.trace
        with self._lock:
            self.each_time_bytes += sum(array.nbytes for array in inputs.values() if id(array) in self._residents)
        self.records.append(
            Record(
                model,
                began,
                ended,
                self.timeout_s,
                idempotent=True,
                worker=trace.worker,
                wire=trace.wire,
                attempts=trace.attempts,
                compute_ms=trace.compute_ms,
                right=right,
            )
        )
        return reply

    def _note_failure(
        self, model: str, began: float, error: OverspillError, *, idempotent: bool, ledger_no: int = -1
    ) -> None:
        ended = self._now()
        record = Record(
            model, began, ended, self.timeout_s, idempotent, ledger_no=ledger_no, error=str(error), fate=error.fate
        )
        self.records.append(record)

    def _ledger(self) -> None:
        """Sends numbers that must each be appended at most once, at a steady pace."""
        number = 0
        while not self._over.wait(self._ledger_interval_s):
            began = self._now()
            try:
                reply = self.router.infer("ledger", {"number": np.array([number], np.int64)}, timeout_s=self.timeout_s)
            except OverspillError as error:
                self._note_failure("ledger", began, error, idempotent=False, ledger_no=number)
            else:
                trace = reply.trace
                right = reply["number"].tolist() == [number]
                self.records.append(
                    Record(
                        "ledger",
                        began,
                        self._now(),
                        self.timeout_s,
                        idempotent=False,
                        worker=trace.worker,
                        wire=trace.wire,
                        attempts=trace.attempts,
                        compute_ms=trace.compute_ms,
                        right=right,
                        ledger_no=number,
                    )
                )
            number += 1


def same_bytes(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same shape, dtype and bytes."""
    return got.shape == wanted.shape and got.dtype == wanted.dtype and got.tobytes() == wanted.tobytes()
