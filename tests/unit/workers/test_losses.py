"""Who is told of a lost request before its executor is gone, and what everybody is told in the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fabric.errors import ExecutorLost, Fate
from fabric.frame import (
    HELD,
    HOLDS,
    MAYBE_SECOND,
    RELEASED,
    ErrorFrame,
    Load,
    decode_final,
    encode_error,
    is_held,
    is_release,
    may_be_second,
    pack_request,
)
from workers.admission import Admission
from workers.batchconfig import Batching
from workers.batching import BatchLine, Ticket
from workers.dedupe import Dedupe, Finished
from workers.desks import ExecutorDesk, ModelQueue
from workers.job import DEFAULT_LEVEL, Job, Waiter
from workers.losses import Losses
from workers.page import Answer
from workers.sentinel import Suspects

if TYPE_CHECKING:
    from fabric.local.tenant import Tenant, TenantSocket


class Socket:
    """What a tenant's socket was given to send."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


class Scene:
    def __init__(self, *, idempotent: bool = True) -> None:
        self.model = ModelQueue("m", 10, None, idempotent=idempotent)
        self.desk = ExecutorDesk(0)
        self.desk.open = True
        self.admission = Admission([self.model], (self.desk,), 10)
        self.dedupe = Dedupe()
        self.suspects = Suspects()
        self.losses = Losses(self.admission, self.dedupe, self.suspects, self._frame, lambda: None)
        self.socket = Socket()

    def _frame(self, job: Job, error: ExecutorLost, flags: int) -> bytes:
        return encode_error(ErrorFrame(job.client_id, job.request_no, 1, error, Load(1, 1, 0, 1)), flags)

    def began(self, flags: int = HOLDS) -> Job:
        frame = pack_request(1, 5, 1, 1, 0, 0, 0, 0, 0, 0, 0, "m", b"", flags)
        waiter = Waiter(cast("Tenant", SimpleNamespace(closed=False)), cast("TenantSocket", self.socket), frame)
        job = Job(self.model, 1, 5, waiter, 0.0, 100.0, DEFAULT_LEVEL, 0)
        client = self.dedupe.client(1, 0.0)
        desk = self.admission.offer(job, 0.0)
        assert desk is not None
        client.began(5, job)
        desk.give(1, job, 0.0)
        return job


def test_a_caller_that_understands_it_is_told_early_and_released_at_the_end() -> None:
    scene = Scene()
    job = scene.began()
    scene.losses.early(job, "met CUDA error 700", Answer.NONE)
    (held,) = scene.socket.sent
    assert (is_held(held), is_release(held), may_be_second(held)) == (True, False, True)
    assert scene.dedupe.clients[1].find(5) is None, "it may come again at once"
    assert scene.admission.outstanding_us == 0
    scene.losses.early(job, "was ended by signal 9", Answer.NONE)
    assert len(scene.socket.sent) == 1
    scene.losses.final(job, "ended with code 70", Answer.NONE)
    released = scene.socket.sent[1]
    assert (is_held(released), is_release(released), may_be_second(released)) == (False, True, True)
    assert "met CUDA error 700" in str(decode_final(released))
    scene.suspects.check(1, 5)  # it ended one executor, and was counted once


def test_one_that_may_not_run_twice_learns_that_nobody_knows() -> None:
    scene = Scene(idempotent=False)
    scene.losses.early(scene.began(), "was ended by signal 9", Answer.NONE)
    final = decode_final(scene.socket.sent[0])
    assert isinstance(final, ErrorFrame)
    assert final.error.fate is Fate.UNKNOWN
    known = scene.dedupe.clients[1].find(5)
    assert isinstance(known, Finished)
    assert not is_held(known.frame), "whoever asks again has other slots"


@pytest.mark.parametrize("answer", list(Answer))
def test_one_of_a_batch_runs_once_more_by_itself_unless_its_caller_may_have_an_answer(answer: Answer) -> None:
    scene = Scene()
    job = scene.began()
    job.ticket = Ticket(BatchLine(Batching(8)), 1, b"")
    job.ticket.mates = [job]
    if answer is not Answer.SENT:  # of which nobody is told before the end
        scene.losses.early(job, "was ended by signal 9", answer)
    scene.losses.final(job, "was ended by signal 9", answer)
    waits = list(scene.admission.waiting_jobs())
    flags = [frame[10] & (HELD | RELEASED | MAYBE_SECOND) for frame in scene.socket.sent]
    if answer is Answer.NONE:
        assert (waits, flags) == ([job], [])
    elif answer is Answer.PERHAPS:
        assert (waits, flags) == ([], [HELD | MAYBE_SECOND, RELEASED | MAYBE_SECOND])
        assert scene.dedupe.clients[1].find(5) is None, "one that has no answer may ask again"
    else:
        assert (waits, flags) == ([], []), "it has its answer"
        known = scene.dedupe.clients[1].find(5)
        assert isinstance(known, Finished)
        final = decode_final(known.frame)
        assert isinstance(final, ErrorFrame)
        assert final.error.fate is Fate.RAN


def test_one_of_a_batch_runs_no_second_time_for_a_caller_that_left() -> None:
    scene = Scene()
    job = scene.began()
    job.ticket = Ticket(BatchLine(Batching(8)), 1, b"")
    job.ticket.mates = [job]
    job.asked.tenant.closed = True
    scene.losses.final(job, "was ended by signal 9", Answer.NONE)
    assert list(scene.admission.waiting_jobs()) == []
    assert scene.dedupe.clients[1].find(5) is None
    assert scene.admission.outstanding_us == 0


@pytest.mark.parametrize("why_not", ["flag", "attached", "resend"])
def test_all_others_are_told_at_the_end(why_not: str) -> None:
    scene = Scene()
    job = scene.began(0 if why_not == "flag" else HOLDS)
    if why_not == "attached":
        job.attached.append(job.asked)
    job.resend = why_not == "resend"
    scene.losses.early(job, "was ended by signal 9", Answer.NONE)
    assert scene.socket.sent == []
    scene.losses.final(job, "was ended by signal 9", Answer.NONE)
    assert {frame[10] & (HELD | RELEASED | MAYBE_SECOND) for frame in scene.socket.sent} == {MAYBE_SECOND}
