"""Our own router behind the interface of a policy: the live core, with simulated links and a simulated clock.

Nothing is decided here. `Core.life` yields the same steps as in a process that serves, and this file hands them to the
simulated world and its outcomes back. Read `router/core.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from discovery.instance import Insert, Instance, ModelFacts, Readiness
from fabric.deadline import Deadline
from fabric.frame import Load
from fabric.layout import layout_of
from fabric.message import Body
from fabric.transport import Answer, PeerFacts, WireName
from router.config import RouterConfig
from router.core import Core
from router.dispatch import Attempt
from router.freshen import tie_late
from router.load import Page
from router.steps import Read
from router.table import Dial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fabric.memory.arena import Arena
    from fabric.transport import Call
    from router.core import Life
    from router.policies.base import Answered, Report, Setting, Task
    from router.workers import Worker

MODEL = "plan"
_EMPTY = Body(layout_of(()), b"")
_FACTS = ModelFacts(MODEL, "1", idempotent=True, inputs=(), outputs=())
_SAMPLE = 5
"""Workers that are priced for each request where no page is read."""
_PATIENCE_S = 1e6
"""Requests of the simulator wait as long as they must: what a deadline would cut off is what is measured."""


class SimulatedLink:  # mutable: may die
    """A link to a simulated worker: a name and a wire. The world carries its calls."""

    arena: Arena | None = None
    suspect = False

    def __init__(self, number: int, *, near: bool) -> None:
        self.number = number
        self.wire: WireName | None = WireName.LOCAL if near else WireName.SIM
        self.peer: PeerFacts | None = PeerFacts(f"w{number}", 1, 1)
        self.alive = True

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Never called: the world hands over by itself."""
        raise NotImplementedError

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """Never called."""
        raise NotImplementedError

    def close(self, deadline: Deadline) -> None:
        """Dies."""
        self.alive = False

    def abort(self, reason: str) -> None:
        """Dies."""
        self.alive = False


class _Out:  # mutable: a request of ours that is out
    __slots__ = ("attempt", "life", "read")

    def __init__(self, life: Life) -> None:
        self.life = life
        self.read: Read | None = None
        self.attempt: Attempt | None = None


class Priced:  # mutable: a router
    """A router of ours. `reads` pages for each request; `tied` requests where nodes tell when they begin one; copies of
    late ones as `hedge_ratio` allows."""

    def __init__(self, setting: Setting, *, reads: int = 5, tied: bool = True, hedge_ratio: float = 0.0) -> None:
        self._setting = setting
        self._now = 0.0
        config = RouterConfig(remote_sample=reads or _SAMPLE, tied=tied, hedge_ratio=hedge_ratio)
        self.core = Core(setting.router + 1, config, None, setting.rng, lambda: self._now)
        self.core.execute_with(lambda _: None)
        if reads:
            self.core.pages = lambda _: None
        self._workers = [self._add(number) for number in range(setting.count)]
        self._numbers = {worker.name: number for number, worker in enumerate(self._workers)}

    def _add(self, number: int) -> Worker:
        near = number in self._setting.near
        instance = Instance(
            node_id=f"w{number}",
            node_epoch=1,
            host_id="",
            readiness=Readiness.READY,
            local="",
            rpc="",
            rpc_tls=False,
            devices=(),
            models=(_FACTS,),
        )
        (dial,) = self.core.table.changed((Insert(instance),))
        assert isinstance(dial, Dial), "a new worker is dialled"
        self.core.table.link_up(dial.worker, SimulatedLink(number, near=near))
        return dial.worker

    def wants(self, task: Task, now: float) -> tuple[int, ...]:
        """Lets the core begin, and reads whom it names."""
        self._now = now
        out = task.slot
        if not isinstance(out, _Out):
            life = self.core.life(MODEL, _EMPTY, Deadline(now + _PATIENCE_S), 0, idempotent=True, hint=task.hint_ms)
            out = task.slot = _Out(life)
            self._go_on(out)
        return tuple(self._numbers[worker.name] for worker in out.read.workers) if out.read is not None else ()

    def _go_on(self, out: _Out) -> None:
        step = out.life.send(None)
        out.read = step if isinstance(step, Read) else None
        if not isinstance(step, Read):
            assert isinstance(step, Attempt), "simulated workers are always there"
            out.attempt = step

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Hands over the pages, and sends where the core says; it may ask for more of them first."""
        self._now = now
        out = task.slot
        assert isinstance(out, _Out), "wants came first"
        if out.read is not None:
            for report in reports:
                self._tell(report)
            self._go_on(out)
            if out.read is not None:
                return ()
        attempt = out.attempt
        assert attempt is not None, "an attempt was made"
        task.units = attempt.units
        first = self._numbers[attempt.picked.worker.name]
        if attempt.tied is None:
            return (first,)
        return first, *(self._numbers[tied.picked.worker.name] for tied in attempt.tied.all())

    def beside(self, task: Task) -> tuple[int, ...]:
        """Whom the core wants to know of while the request is out."""
        out = task.slot
        read = out.attempt.beside if isinstance(out, _Out) and out.attempt is not None else None
        return tuple(self._numbers[worker.name] for worker in read.workers) if read is not None else ()

    def tie(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Hands over those pages, and sends the request to a second worker too if the core says so."""
        self._now = now
        for report in reports:
            self._tell(report)
        out = task.slot
        if task.begun_by >= 0 or not isinstance(out, _Out) or out.attempt is None:
            return ()  # it has begun, which a local worker tells at once
        tied = tie_late(self.core, out.attempt)
        return (self._numbers[tied.picked.worker.name],) if tied is not None else ()

    def late_s(self, task: Task) -> float | None:
        """As the core's hedger says."""
        out, hedger = task.slot, self.core.hedger
        if hedger is None or not isinstance(out, _Out) or out.attempt is None:
            return None
        return hedger.after_s(out.attempt)

    def look(self, task: Task, now: float) -> tuple[int, ...]:
        """Whom the hedger would send a copy to."""
        self._now = now
        out, hedger = task.slot, self.core.hedger
        assert hedger is not None, "it said when"
        assert isinstance(out, _Out), "it has no answer"
        assert out.attempt is not None, "it was sent"
        out.read = hedger.look(out.attempt) if self.core.pages is not None else None
        return tuple(self._numbers[worker.name] for worker in out.read.workers) if out.read is not None else ()

    def late(self, task: Task, reports: Sequence[Report], now: float) -> tuple[tuple[int, ...], float | None]:
        """One copy at most, where the hedger finds somebody who would answer it soon."""
        self._now = now
        for report in reports:
            self._tell(report)
        out, hedger = task.slot, self.core.hedger
        assert hedger is not None, "it said when"
        assert isinstance(out, _Out), "it has no answer"
        attempt = out.attempt
        assert attempt is not None, "it was sent"
        tied = hedger.copy(attempt, out.read)
        if tied is not None:
            return (self._numbers[tied.picked.worker.name],), None
        return (), hedger.again_s(attempt)

    def _tell(self, report: Report) -> None:
        table = self.core.table
        kind = table.hints.kind(MODEL) if self._setting.hinted else table.work.kind(MODEL, 0)
        self.core.told(self._workers[report.worker], Page(_load(report), report.made_s, report.rate), kind)

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """Gives the core its answer."""
        self._now = now
        out, task.slot = task.slot, None
        assert isinstance(out, _Out), "it was sent"
        attempt = out.attempt
        assert attempt is not None, "it was sent"
        for tied in attempt.tied.all() if attempt.tied is not None else ():
            tied.won = self._numbers[tied.picked.worker.name] == answer.worker
        wire = attempt.link.wire or WireName.SIM
        us = (int(answer.queue_ms * 1000.0), max(1, int(answer.compute_ms * 1000.0)))
        load = _load(answer.report)
        try:
            out.life.send(Answer(_EMPTY.layout, b"", 1, us[0], us[1], load, wire))
        except StopIteration:
            return
        raise AssertionError("an answer ends a request")

    def probes(self, now: float) -> tuple[int, ...]:
        """None: it reads."""
        return ()

    def probed(self, report: Report, now: float) -> None:
        """Never asked for."""


def _load(report: Report) -> Load:
    return Load(report.sequence, report.accepted, int(report.work_ms * 1000.0), 1)
