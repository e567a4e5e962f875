"""Requests that are asked for again: attached to the one that is under way, or answered from the reply that is kept.

Nothing runs twice by this. Read `workers/reception.py` for where requests come in, `workers/dedupe.py` for what is
known of them.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from fabric.deadline import TIMEOUT_MAX_S
from fabric.errors import ExecutorLost, Fate, ResourceExhausted
from fabric.frame import wants_stream
from workers.desks import RESENDS_MAX, ModelQueue
from workers.job import Job
from workers.places import check_places

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.errors import OverspillError
    from fabric.frame import Load, RequestFrame
    from workers.admission import Admission
    from workers.crew import Crew
    from workers.dedupe import Dedupe, Finished
    from workers.job import Waiter

ATTACHED_MAX: Final = 8
"""Sockets that wait for one running id beside the first; a client that asks more often has lost count."""
RESEND_MAX_S: Final = 30.0
"""For an executor to send a kept reply once more: it only copies, but hundreds of megabytes, on a crowded machine
perhaps, and whoever asks may have little time left. One that has stopped is found out by its heartbeat."""
_RESENDS: Final = ModelQueue("(a reply sent again)", 0, RESEND_MAX_S, idempotent=True)


class Resends:
    """What one node does with ids that it knows. `crew` gives its executors, `load` the load to report, and `refuse`
    answers a job with an error."""

    def __init__(
        self, admission: Admission, dedupe: Dedupe, crew: Callable[[], Crew], load: Callable[[int, int], Load],
        refuse: Callable[[Job, OverspillError], None],
    ) -> None:  # fmt: skip
        self._admission = admission
        self._dedupe = dedupe
        self._crew = crew
        self._load = load
        self._refuse = refuse

    def asked_again(self, known: Job | Finished, request: RequestFrame, asked: Waiter) -> None:
        """A request came whose id is known. Raises ResourceExhausted where too many wait for it."""
        if isinstance(known, Job):
            if len(known.attached) >= ATTACHED_MAX:
                raise ResourceExhausted(
                    f"{ATTACHED_MAX} sockets wait for request {request.request_no} already; wait for it", Fate.UNKNOWN
                )
            check_places(request, asked.tenant.arena.nbytes)  # it may be this frame that an executor gets
            known.attach(asked, deadline_s(request, monotonic()))
        elif known.holder is None:
            asked.socket.send(known.frame)
        else:
            check_places(request, asked.tenant.arena.nbytes)
            # A stream's next answer is made only now, within the limits of its model.
            model = self._admission.models.get(request.model, _RESENDS) if wants_stream(asked.frame) else _RESENDS
            by_s = deadline_s(request, monotonic())
            self.send_again(request.client_id, request.request_no, asked, known.holder, by_s, model)

    def send_again(
        self, client_id: int, request_no: int, asked: Waiter, holder: tuple[int, int], by_s: float,
        model: ModelQueue = _RESENDS,
    ) -> None:  # fmt: skip
        """Has the executor that keeps a reply send it once more, if it still lives."""
        shell, now, client = self._crew().shells[holder[0]], monotonic(), self._dedupe.clients[client_id]
        client.asked_again(request_no, now)
        job = Job(model, client_id, request_no, asked, now, max(now, by_s), 0, 0)
        job.resend, job.accepted = True, client.accepted
        if shell.holder != holder or not shell.desk.open:
            self._refuse(job, ExecutorLost("the executor that kept the reply has ended; the request did run", Fate.RAN))
        elif shell.desk.resends >= RESENDS_MAX:
            self._refuse(job, ResourceExhausted("too many kept replies are asked for at once; wait", Fate.RAN))
        else:
            shell.hand_over(job, self._load(job.accepted, 0), now)


def deadline_s(request: RequestFrame, now: float) -> float:
    """When the time of a request is over."""
    return now + min(request.budget_us / 1e6, TIMEOUT_MAX_S)
