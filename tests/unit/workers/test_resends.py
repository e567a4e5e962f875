"""A kept reply that is asked for again is only copied: neither its model's limit nor its caller's haste ends that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from fabric.errors import Fate
from fabric.frame import NO_SLOT, STREAM, Load, check_header, decode_request, pack_request
from workers.admission import Admission
from workers.dedupe import Dedupe, Finished
from workers.desks import ExecutorDesk, ModelQueue
from workers.job import Job, Waiter
from workers.resends import RESEND_MAX_S, Resends
from workers.vitals import hang_at_s

if TYPE_CHECKING:
    from fabric.errors import OverspillError
    from fabric.local.tenant import Tenant, TenantSocket
    from workers.crew import Crew

MODEL_S = 0.1
HOLDER = (0, 1)


class Scene:
    """One executor that keeps a reply, and what it is given to do."""

    def __init__(self) -> None:
        self.model = ModelQueue("m", 10, MODEL_S, idempotent=True)
        desk = ExecutorDesk(0)
        desk.open = True
        self.given: list[Job] = []
        self.refused: list[OverspillError] = []
        shell = SimpleNamespace(holder=HOLDER, desk=desk, hand_over=lambda job, _load, _now: self.given.append(job))
        crew = cast("Crew", SimpleNamespace(shells=[shell]))
        self.dedupe = Dedupe()
        self.dedupe.client(1, 0.0)
        self.resends = Resends(
            Admission([self.model], (desk,), 10), self.dedupe, lambda: crew, lambda *_: Load(1, 1, 0, 1),
            lambda _job, error: self.refused.append(error),
        )  # fmt: skip

    def ask(self, flags: int = 0) -> float:
        """How long its executor may work for somebody in a hurry who asks again."""
        frame = pack_request(1, 5, 1, 1000, 0, NO_SLOT, 0, NO_SLOT, 0, 0, 0, "m", b"", flags)
        waiter = Waiter(
            cast("Tenant", SimpleNamespace(arena=SimpleNamespace(nbytes=1 << 20))),
            cast("TenantSocket", SimpleNamespace()),
            frame,
        )
        request = decode_request(frame, check_header(frame))
        self.resends.asked_again(Finished(b"", 0.0, HOLDER), request, waiter)
        return self.limit_s()

    def limit_s(self) -> float:
        job = self.given.pop()
        assert job.resend
        model = job.model
        return hang_at_s(0.0, 0.0, model.speed.slowest_us, model.execution_timeout_s)


def test_a_reply_that_is_sent_again_has_time_whatever_its_model_may_take() -> None:
    assert Scene().ask() == RESEND_MAX_S


def test_so_has_one_for_whoever_asked_while_it_ran() -> None:
    scene = Scene()
    waiter = cast("Waiter", SimpleNamespace(frame=b"", socket=None, tenant=None))
    scene.resends.send_again(1, 5, waiter, HOLDER, 0.0)
    assert scene.limit_s() == RESEND_MAX_S


def test_the_next_answer_of_a_stream_is_made_within_its_models_limit() -> None:
    assert Scene().ask(STREAM) == MODEL_S


def test_the_executor_must_be_the_one_that_kept_it() -> None:
    scene = Scene()
    waiter = cast("Waiter", SimpleNamespace(frame=b"", socket=None, tenant=None))
    scene.resends.send_again(1, 5, waiter, (0, 2), 0.0)
    assert not scene.given
    assert [error.fate for error in scene.refused] == [Fate.RAN]
