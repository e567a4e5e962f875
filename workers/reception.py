"""Where requests enter a node and final frames leave it: the handler of the local wire, and of the executors' news.

Each request gets exactly one final frame per time that it was asked: from here when it is refused, expires, is
cancelled or lost, else from the executor that ran it. What is decided about it is decided in `workers/admission.py` and
`workers/dedupe.py`; this module connects them to sockets and executors. Read `workers/crew.py` next.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from fabric.errors import (
    Cancelled,
    Fate,
    InvalidArgument,
    OverspillError,
    StaleEpoch,
)
from fabric.frame import ErrorFrame, Load, decode_request, encode_error, is_traced
from workers.blame import learn, too_late
from workers.dedupe import Dedupe, Finished
from workers.handover import DELIVERED, KEPT, PASSED, RAN
from workers.job import DEFAULT_LEVEL, Job, JobState, Waiter
from workers.losses import Losses
from workers.onward import Onward
from workers.places import check_places
from workers.resends import Resends, deadline_s
from workers.sentinel import Suspects
from workers.statistics import CANCELED, OTHER, REJECTED
from workers.traced import TracedRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Header
    from fabric.local.reactor import Reactor, Timer
    from fabric.local.tenant import Tenant, TenantSocket
    from workers.admission import Admission
    from workers.crew import Crew
    from workers.desks import ModelQueue
    from workers.handover import Spent
    from workers.page import Answer

LAPSE_S: Final = 5.0


class Reception:  # mutable: the node's requests
    """All requests of one life of a node. `crew` is set once it is made, since it reports here. `executors_changed`
    hears of executors that come and go."""

    crew: Crew

    def __init__(
        self, reactor: Reactor, node_epoch: int, admission: Admission, executors_changed: Callable[[], None]
    ) -> None:
        self._reactor = reactor
        self._epoch = node_epoch
        self._admission = admission
        self._executors_changed = executors_changed
        self.dedupe = Dedupe()
        self.traced = TracedRuns()
        self._suspects = Suspects()
        self._losses = Losses(admission, self.dedupe, self._suspects, self._loss_frame, self._arm_expiry)
        self._onward = Onward(admission, lambda: self.crew)
        self._resends = Resends(admission, self.dedupe, lambda: self.crew, self._load, self._refuse)
        self.sequence = self.executors = 0
        self._expiry: Timer | None = None
        self._lapse()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no executor has anything in hand, nor one that was replaced and is not gone."""
        in_hand = any(desk.in_hand for desk in self._admission.desks)
        owed = any(life.in_hand for shell in self.crew.shells for life in shell.lives)
        return not (self._admission.waiting or in_hand or owed)

    # What the local wire calls.

    def tenant_opened(self, tenant: Tenant) -> None:
        """Executors learn of it with its first task."""

    def socket_opened(self, tenant: Tenant, socket: TenantSocket) -> None:
        """Executors learn of it with its first task."""

    def request(self, tenant: Tenant, socket: TenantSocket, header: Header, frame: bytes) -> None:
        """Takes, attaches or refuses a request. Raises OverspillError to refuse it."""
        now = monotonic()
        request = decode_request(frame, header)
        if request.client_id != tenant.client_id:
            raise InvalidArgument("the request carries another client's id than its session; use one id for both")
        if request.node_epoch not in (self._epoch, 0):
            raise StaleEpoch("the request is meant for an earlier life of this node; open a new channel to it")
        client = self.dedupe.client(request.client_id, now)
        client.acknowledge(request.ack_no)
        known = client.find(request.request_no)
        asked = Waiter(tenant, socket, frame)
        if known is not None:
            self._resends.asked_again(known, request, asked)
            return
        self._suspects.check(request.client_id, request.request_no)
        model = self._admission.model(request.model)
        check_places(request, tenant.arena.nbytes)
        until_s, level = deadline_s(request, now), request.priority or DEFAULT_LEVEL
        job = Job(model, request.client_id, request.request_no, asked, now, until_s, level, request.body_bytes)
        if model.line is not None:
            model.line_up(job, request.descriptors, request.priority)
        desk = self._admission.offer(job, now, request.descriptors)
        client.began(request.request_no, job)
        job.accepted = client.accepted
        if desk is not None:
            self._hand_over(desk.number, job, now)
        elif job.ticket is not None:
            self._feed()
        else:
            self._arm_expiry()

    def cancel(self, tenant: Tenant, socket: TenantSocket, request_no: int, client_id: int) -> None:
        """Ends a request that still waits, unless another socket asked for the same; one that is with an executor goes
        on, and its final frame comes."""
        client = self.dedupe.clients.get(client_id)
        job = client.running.get(request_no) if client is not None and client_id == tenant.client_id else None
        if job is not None and job.state is JobState.QUEUED and not job.has_begun:
            error = Cancelled("the caller gave the request up before it ran", Fate.NEVER_RAN)
            if job.leave(socket):
                socket.send(self._error_frame(client_id, request_no, error))
            else:
                self._withdraw(job, error)

    def load(self, tenant: Tenant) -> Load:
        """The node's load as this client should see it."""
        client = self.dedupe.clients.get(tenant.client_id)
        return self._load(client.accepted if client is not None else 0, 0)

    def socket_closed(self, tenant: Tenant, socket: TenantSocket) -> None:  # noqa: ARG002 - the contract's
        """Executors let their duplicate go."""
        for shell in self.crew.shells:
            shell.hang_up(socket.socket_no)

    def tenant_closed(self, tenant: Tenant) -> None:
        """Drops what waits for it, unless somebody else asked for the same; what runs comes to its end."""
        for job in self._admission.waiting_jobs():
            if job.asked.tenant is tenant and not job.ask_for_another():
                self._withdraw(job, Cancelled("the caller left before the request ran", Fate.NEVER_RAN))
        self._admission.tidy()
        self._admission.card_memory.left(tenant.client_id)
        for shell in self.crew.shells:
            shell.forget(tenant.tenant_no)

    # What the executors report.

    def done(self, job: Job, flags: int, spent: Spent, frame: bytes, holder: tuple[int, int]) -> None:
        """A task has its final frame: whoever waits for it and has it not yet gets it."""
        if flags & PASSED:
            self._passed(job, spent, frame, holder)
            return
        if job.told:  # too late: its caller was told that it is lost
            self._losses.released(job)
            return
        if not flags & DELIVERED:
            job.asked.socket.send(frame)
        if not job.resend:
            self._admission.over(job)
            now, desks = monotonic(), self._admission.desks
            learn(job, flags, spent, now, desks[holder[0]] if len(desks) > 1 else None)
            if flags & KEPT and is_traced(job.asked.frame):
                self.traced.ran(job, spent, holder)
            client = self.dedupe.clients[job.client_id]
            if flags & RAN:
                client.ended(job.request_no, Finished(frame, now, holder if flags & KEPT else None))
            else:
                client.never_ran(job.request_no)
            for waiter in job.attached:
                if waiter.tenant.closed:
                    continue
                if flags & KEPT:
                    self._resends.send_again(job.client_id, job.request_no, waiter, holder, now)
                else:
                    waiter.socket.send(frame)
        if self._admission.waiting:
            self._feed()

    def lost(self, job: Job, why: str, answer: Answer, *, early: bool = False) -> None:
        """A job's executor ended while it ran; `early`: it will not answer, and is not gone yet."""
        if early:
            self._losses.early(job, why, answer)
        else:
            self._losses.final(job, why, answer)

    def reach(self, reader: int, source: int, *, good: bool) -> None:
        """An executor could, or could not, read the memory of another one's card."""
        self._onward.reach(reader, source, good=good)

    def came_back(self, job: Job) -> None:
        """A job that was never begun waits again, unless nobody does."""
        self._onward.came_back(job)
        if not job.is_wanted():
            self._admission.over(job)
            self.dedupe.clients[job.client_id].never_ran(job.request_no)
        else:
            self._admission.put_back(job)
            self._arm_expiry()

    def executor_opened(self) -> None:
        """An executor takes work."""
        self.executors_changed()
        self._feed()

    def executors_changed(self) -> None:
        """There are more or fewer executors that take work."""
        self.executors = self.crew.ready
        self._executors_changed()

    def give_up_waiting(self, error: OverspillError, model: ModelQueue | None = None) -> None:
        """Ends everything that still waits, or all that waits for one model."""
        for job in self._admission.waiting_jobs():
            if model is None or job.model.is_of(model):
                self._withdraw(job, error)

    def _feed(self) -> None:
        now = monotonic()
        while (work := self._admission.next_work(now)) is not None:
            for job in work[1]:
                self._hand_over(work[0].number, job, now, more=job is not work[1][-1])
        if self._admission.is_timed:
            self._arm_expiry()

    def _passed(self, job: Job, spent: Spent, text: bytes, holder: tuple[int, int]) -> None:
        """A leg of an ensemble has run."""
        try:
            if not self._onward.passed(job, spent, text, holder):
                self._losses.released(job)
        except OverspillError as error:
            self._admission.over(job)
            self._not_run(job, error)
        self._feed()
        self._arm_expiry()

    def _hand_over(self, number: int, job: Job, now: float, *, more: bool = False) -> None:
        if job.model.leg is not None:
            self._onward.tell(job, number)
        self.crew.shells[number].hand_over(job, self._load(job.accepted, job.work_us), now, more=more)

    def _load(self, accepted: int, own_us: int) -> Load:
        self.sequence += 1
        # The reply of a request reports the load without it: it is over when that is read.
        return Load(self.sequence, accepted, max(0, self._admission.outstanding_us - own_us), self.executors)

    def _withdraw(self, job: Job, error: OverspillError) -> None:
        self._admission.withdraw(job)
        job.model.tally.failed(CANCELED if isinstance(error, Cancelled) else OTHER, monotonic() - job.arrived_s)
        self._not_run(job, error)

    def _not_run(self, job: Job, error: OverspillError) -> None:
        """A job has come to its end without an answer: it never ran, unless a leg of it has."""
        client = self.dedupe.clients[job.client_id]
        if (job.has_begun or error.fate is Fate.RAN) and not job.model.idempotent:
            error = type(error)(str(error), Fate.RAN)
            client.ended(job.request_no, Finished(self._loss_frame(job, error, 0), monotonic(), None))
        else:
            client.never_ran(job.request_no)
        self._refuse(job, error)

    def _refuse(self, job: Job, error: OverspillError) -> None:
        frame = self._error_frame(job.client_id, job.request_no, error)
        for waiter in (job.asked, *job.attached):
            waiter.socket.send(frame)

    def _loss_frame(self, job: Job, error: OverspillError, flags: int) -> bytes:
        return self._error_frame(job.client_id, job.request_no, error, flags)

    def _error_frame(self, client_id: int, request_no: int, error: OverspillError, flags: int = 0) -> bytes:
        client = self.dedupe.clients.get(client_id)
        load = self._load(client.accepted if client is not None else 0, 0)
        return encode_error(ErrorFrame(client_id, request_no, self._epoch, error, load), flags)

    def _arm_expiry(self) -> None:
        at_s = self._admission.next_look_s()
        if at_s is not None and (self._expiry is None or not self._expiry.pending or at_s < self._expiry.at_s):
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = self._reactor.call_later(max(0.0, at_s - monotonic()), self._expire)

    def _expire(self) -> None:
        now = monotonic()
        for job in self._admission.expire(now):
            job.model.tally.failed(REJECTED, now - job.arrived_s)
            self._not_run(job, too_late(job, now))
        if self._admission.is_timed:
            self._feed()
        self._arm_expiry()

    def _lapse(self) -> None:
        self.dedupe.lapse(monotonic())
        self._reactor.call_later(LAPSE_S, self._lapse)
