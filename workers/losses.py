"""What callers are told when an executor ends while it has their request, and when.

Nobody reuses a slot before the kernel says that the process is gone, and taking a GPU's context down takes it a tenth
of a second. A caller that understands it (flag `HOLDS` of its REQUEST) need not wait for that: it is told as soon as
the executor cannot answer any more, by an ERROR with the flag `HELD`, keeps its slots aside, and is sent the same ERROR
with `RELEASED` at the end. All others are told at the end. Read `workers/reception.py` for who connects it.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fabric.errors import ExecutorLost, Fate
from fabric.frame import HELD, MAYBE_SECOND, RELEASED, holds
from workers.blame import blame, may_run_alone
from workers.dedupe import Finished
from workers.page import Answer
from workers.statistics import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.admission import Admission
    from workers.dedupe import Dedupe
    from workers.job import Job
    from workers.sentinel import Suspects


class Losses:
    """The losses of one life of a node. `frame` makes an ERROR for a request, `changed` hears that one waits again."""

    def __init__(
        self, admission: Admission, dedupe: Dedupe, suspects: Suspects,
        frame: Callable[[Job, ExecutorLost, int], bytes], changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._admission = admission
        self._dedupe = dedupe
        self._suspects = suspects
        self._frame = frame
        self._changed = changed

    def early(self, job: Job, why: str, answer: Answer) -> None:
        """The executor has begun this job and cannot answer it any more, but may still write to its slots."""
        if job.told or job.resend or job.attached or not holds(job.asked.frame) or may_run_alone(job, answer):
            return
        job.told = why
        self._settle(job, why, HELD, answer)

    def final(self, job: Job, why: str, answer: Answer) -> None:
        """The executor is gone. An idempotent request may come again, until it is poison."""
        if job.told:
            self.released(job)
        elif job.resend:
            gone = ExecutorLost(f"the executor {why} and the kept reply with it; the request did run", Fate.RAN)
            self._send(job, gone, MAYBE_SECOND, to_first=True)
        elif may_run_alone(job, answer) and job.is_wanted():
            blame(job, self._suspects)
            self._admission.put_back(job, alone=True)
            self._changed()
        else:
            self._settle(job, why, 0, answer)

    def released(self, job: Job) -> None:
        """Nobody writes any more for a job whose caller was told early."""
        error = ExecutorLost(f"the executor that had the request {job.told}", Fate.UNKNOWN)
        self._send(job, error, MAYBE_SECOND | RELEASED, to_first=True)

    def _settle(self, job: Job, why: str, flags: int, answer: Answer) -> None:
        blame(job, self._suspects)
        self._admission.over(job)
        job.model.tally.failed(BACKEND, monotonic() - job.arrived_s)
        answered = answer is Answer.SENT
        fate = Fate.RAN if answered else Fate.UNKNOWN
        error = ExecutorLost(f"the executor that had the request {why}; send it again if that is safe", fate)
        client = self._dedupe.clients[job.client_id]
        if job.model.idempotent and not answered:
            client.never_ran(job.request_no)
        else:
            client.ended(job.request_no, Finished(self._frame(job, error, 0), monotonic(), None))
        # Where it has sent its answer, perhaps or surely, a caller that has one drops this.
        self._send(job, error, MAYBE_SECOND | flags, to_first=not answered)

    def _send(self, job: Job, error: ExecutorLost, flags: int, *, to_first: bool) -> None:
        frame = self._frame(job, error, flags)
        for waiter in (job.asked, *job.attached) if to_first else job.attached:
            waiter.socket.send(frame)
