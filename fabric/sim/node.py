"""A simulated node: it answers frames as a real one does, on simulated executors.

It keeps the same promises: one run per request id and epoch, a running id attaches, a finished one is answered again,
an unknown cancelled one never runs, a full queue refuses. It counts its runs, so that a test can say that nothing ran
twice. Its handlers get plain bytes and give plain bytes. This module never times anything but by the network's clock.
Read `fabric/sim/channel.py` next.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    DuplicateRequest,
    Fate,
    OverspillError,
    QueueFull,
    StaleEpoch,
    UnknownModel,
)
from fabric.frame import Load, ReplyFrame, RequestFrame
from fabric.message import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.sim.network import SimNetwork

KEPT_MAX = 4096
KEPT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class SimReply:
    """What a handler made: encoded descriptors and the body."""

    descriptors: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class SimModel:
    """A model: how long it takes, in seconds, and what it answers to (descriptors, body)."""

    service_s: float
    handle: Callable[[bytes, bytes], SimReply]
    queue_s: float = 0.0
    """It waits in the queue at least this long, where it can still be cancelled."""


def echo(descriptors: bytes, body: bytes) -> SimReply:
    """Answers the input."""
    return SimReply(descriptors, body)


Outcome = SimReply | OverspillError
Asker = tuple[str, int]
"""A connection, and the number of the asking on it."""


class _Job:  # mutable: queued, running, then finished
    __slots__ = ("answer", "asker", "body", "outcome", "request", "running", "until_s")

    def __init__(
        self, request: RequestFrame, body: bytes, until_s: float, asker: Asker, answer: Callable[[Outcome], None]
    ) -> None:
        self.request, self.body, self.until_s, self.asker, self.answer = request, body, until_s, asker, answer
        self.running = False
        self.outcome: Outcome | None = None


class SimNode:  # mutable: it has a queue and a memory of ids
    """A node of `executors` simulated devices. `runs` counts the executions of each request id over all lives."""

    def __init__(self, network: SimNetwork, node_id: str, models: dict[str, SimModel], executors: int = 1) -> None:
        self.network = network
        self.node_id = node_id
        self.models = models
        self.executors = executors
        self.queue_max = 1024
        self.runs: Counter[RequestId] = Counter()
        self.draining = False
        self.frozen: list[Callable[[], None]] | None = None
        self.on_death: list[Callable[[str], None]] = []
        self.dies_at = ""
        """`hello`, `request` or `reply`: the step at which it dies next."""
        self.spoil: Callable[[ReplyFrame], bytes] | None = None
        """Makes the next reply's frame into something else."""
        self.epoch = 0
        self._life = 0
        self.alive = False
        self.start()

    def start(self) -> None:
        """A new life: a new epoch, no memory of earlier ids."""
        assert not self.alive, "a node lives once at a time"
        self._life += 1
        self.epoch += 1 + self.network.random.getrandbits(32)
        self.alive, self.frozen = True, None
        self._jobs: dict[RequestId, _Job] = {}
        self._kept: deque[_Job] = deque()
        self._kept_bytes = 0
        self._queue: deque[_Job] = deque()
        self._waiting: list[_Job] = []
        self._acknowledged: dict[int, int] = {}
        self._look_at = KEPT_MAX
        self._running: list[_Job] = []
        self._sequence = 0
        self._accepted: Counter[int] = Counter()

    def kill(self, *, signalled: bool = True) -> None:
        """Ends this life at once; peers see an end of stream only if `signalled`."""
        self.alive = False
        self.network.note(f"{self.node_id} killed")
        hearers, self.on_death = self.on_death, []
        if signalled:
            for tell in hearers:
                tell(f"node {self.node_id} was lost (end of stream); its requests may have run")

    def dies(self, step: str) -> bool:
        """Dies if this is the step that it was told to die at."""
        if self.dies_at != step:
            return False
        self.dies_at = ""
        self.kill()
        return True

    def freeze(self) -> None:
        """Stops all its code, as SIGSTOP does; connections stay."""
        self.frozen = []

    def thaw(self) -> None:
        """Goes on with all that came meanwhile."""
        held, self.frozen = self.frozen or [], None
        for action in held:
            action()

    def load(self, client_id: int) -> Load:
        """What it says of its load."""
        self._sequence += 1
        work_s = sum(self._seconds(job) for job in (*self._waiting, *self._queue, *self._running))
        return Load(self._sequence, self._accepted[client_id], int(work_s * 1e6), self.executors)

    def request(self, request: RequestFrame, body: bytes, asker: Asker, answer: Callable[[Outcome], None]) -> None:
        """Takes one attempt; `answer` gets its final outcome, or that of a newer asker of the same id does."""
        if self.dies("request"):
            return
        key = RequestId(request.client_id, request.request_no)
        job = self._jobs.get(key)
        if job is not None:
            if job.outcome is not None:
                answer(job.outcome)
            elif job.asker != asker:
                job.answer(Cancelled("a newer attempt of the same request asked for its answer; wait for that one"))
                job.asker, job.answer = asker, answer
            return
        refusal = self._refusal(request)
        if refusal is not None:
            answer(refusal)
            return
        self._accepted[request.client_id] += 1
        until_s = self.network.clock.now + request.budget_us / 1e6
        job = self._jobs[key] = _Job(request, body, until_s, asker, answer)
        self._acknowledge(request)
        self._waiting.append(job)
        entering = job
        self.network.clock.call_later(self.models[request.model].queue_s, lambda: self._enter(entering))

    def cancel(self, key: RequestId, asker: Asker, answer: Callable[[Outcome], None]) -> None:
        """Ends a queued request, and one that never came; a running one ends by itself."""
        job = self._jobs.get(key)
        gone = Cancelled("the caller gave the request up before it ran; send it again if it is wanted", Fate.NEVER_RAN)
        if job is None:
            request = RequestFrame(key.client_id, key.request_no, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", b"")
            job = self._jobs[key] = _Job(request, b"", 0.0, asker, answer)
            job.outcome = gone
            answer(gone)
        elif job.outcome is not None:
            answer(job.outcome)
        elif job.asker != asker:
            answer(gone)  # a newer asker has it; this one is owed nothing but its end
        elif not job.running:
            (self._waiting if job in self._waiting else self._queue).remove(job)
            self._finish(job, gone)

    def _refusal(self, request: RequestFrame) -> OverspillError | None:
        if request.node_epoch not in {0, self.epoch}:
            return StaleEpoch(f"the request was meant for an earlier life of {self.node_id}; ask discovery again")
        if request.request_no < self._acknowledged.get(request.client_id, 0):
            return DuplicateRequest(f"request {request.request_no} was answered and acknowledged; use a new id")
        if request.model not in self.models:
            return UnknownModel(f"{self.node_id} offers no model {request.model!r}; see `overspill models`")
        if self.draining:
            return Draining(f"{self.node_id} drains; send the request to another node")
        if len(self._queue) + len(self._waiting) >= self.queue_max:
            return QueueFull(f"{self.node_id} has {self.queue_max} requests queued; send fewer or to another node")
        return None

    def _acknowledge(self, request: RequestFrame) -> None:
        self._acknowledged[request.client_id] = max(request.ack_no, self._acknowledged.get(request.client_id, 0))
        if len(self._jobs) > self._look_at:
            done = [
                key
                for key, job in self._jobs.items()
                if job.outcome is not None and key.request_no < self._acknowledged.get(key.client_id, 0)
            ]
            for key in done:
                del self._jobs[key]
            # Callers that acknowledge nothing would else have all jobs looked at for each of their requests.
            self._look_at = max(KEPT_MAX, 2 * len(self._jobs))

    def _seconds(self, job: _Job) -> float:
        model = self.models[job.request.model]
        return model.queue_s + model.service_s

    def _enter(self, job: _Job) -> None:
        if job in self._waiting:  # else cancelled meanwhile, or of an earlier life
            self._waiting.remove(job)
            self._queue.append(job)
            self._next()

    def _next(self) -> None:
        clock = self.network.clock
        while self._queue and len(self._running) < self.executors:
            job = self._queue.popleft()
            if clock.now >= job.until_s:
                late = DeadlineExceeded("the time given was over before the request's turn came", Fate.NEVER_RAN)
                self._finish(job, late)
                continue
            self._running.append(job)
            job.running = True
            self.runs[RequestId(job.request.client_id, job.request.request_no)] += 1
            life = self._life
            model = self.models[job.request.model]
            clock.call_later(model.service_s, lambda job=job, life=life: self._ended(job, life))  # type: ignore[misc]

    def _ended(self, job: _Job, life: int) -> None:
        if not self.alive or life != self._life:
            return
        if self.frozen is not None:
            self.frozen.append(lambda: self._ended(job, life))
            return
        self._running.remove(job)
        if self.dies("reply"):
            return
        try:
            outcome: Outcome = self.models[job.request.model].handle(job.request.descriptors, job.body)
        except OverspillError as error:
            outcome = error
        self._finish(job, outcome)
        self._next()

    def _finish(self, job: _Job, outcome: Outcome) -> None:
        job.outcome = outcome
        job.body = b""
        self._keep(job)
        job.answer(outcome)

    def _keep(self, job: _Job) -> None:
        """Replies are kept up to a bound; of those beyond, only that they ran."""
        self._kept.append(job)
        self._kept_bytes += len(job.outcome.body) if isinstance(job.outcome, SimReply) else 0
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            old = self._kept.popleft()
            if isinstance(old.outcome, SimReply):
                self._kept_bytes -= len(old.outcome.body)
                old.outcome = DuplicateRequest("the reply of this request is not kept any more; use a new id")
