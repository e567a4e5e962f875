"""A router's core without sockets: instances as discovery would tell them, links that are only names, a clock by hand.

The core yields what is to be sent, and a test answers for the node: nothing here behaves by itself.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from discovery.instance import Insert, Instance, ModelFacts, Readiness, Remove, TensorFacts
from fabric.deadline import Deadline
from fabric.frame import Load
from fabric.memory.arena import Arena
from fabric.message import Body, small_body, tensors_of
from fabric.transport import Answer, PeerFacts, WireName
from router.config import RouterConfig
from router.core import Core
from router.dispatch import Attempt
from router.table import Dial

if TYPE_CHECKING:
    from collections.abc import Generator

    from fabric.errors import OverspillError
    from fabric.transport import Call
    from router.reply import Reply
    from router.steps import Wait
    from router.table import Command
    from router.workers import Worker

    Life = Generator[Attempt | Wait, Answer | OverspillError | None, Reply]


def facts(name: str, *inputs: TensorFacts, idempotent: bool = True, refused: str = "") -> ModelFacts:
    return ModelFacts(name, "1", idempotent, inputs, (), refused)


PLAN = facts("plan", TensorFacts("x", "FP32", (-1, 4)), TensorFacts("n", "INT32", (1,)))
LEDGER = facts("ledger", TensorFacts("line", "BYTES", (1,)), idempotent=False)


_ARENA = Arena.create(1 << 20)
"""One for all tests: a mapping is only let go when the garbage collector comes by."""


class NamedLink:
    """A link that is a name, a wire and a pulse."""

    def __init__(self, node_id: str, wire: WireName = WireName.RPC, arena: Arena | None = None) -> None:
        self.uses = wire
        self.peer = PeerFacts(node_id, 1, 1)
        self.arena = arena
        self.alive = True
        self.suspect = False
        self.ended = ""

    @property
    def wire(self) -> WireName | None:
        return self.uses if self.alive else None

    def call(self, call: Call, deadline: Deadline) -> Answer:
        raise AssertionError("a test answers for the node")

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        raise AssertionError("a test answers for the node")

    def close(self, deadline: Deadline) -> None:
        self.alive = False

    def abort(self, reason: str) -> None:
        self.alive = False
        self.ended = reason


def instance(name: str, *models: ModelFacts, epoch: int = 1, readiness: Readiness = Readiness.READY) -> Instance:
    offered = models or (PLAN, LEDGER)
    return Instance(name, epoch, "host", readiness, "", f"{name}:1", rpc_tls=False, devices=("cpu:0",), models=offered)


def body(rows: int = 2) -> Body:
    return small_body(tensors_of({"x": np.zeros((rows, 4), np.float32)}))


def answer(
    load: Load | None = None, *, compute_us: int = 1000, queue_us: int = 0, wire: WireName = WireName.RPC
) -> Answer:
    made = small_body(tensors_of({"y": np.arange(3, dtype=np.float32)}))
    assert isinstance(made.memory, bytes)
    return Answer(made.layout, made.memory, 1, queue_us, compute_us, load or Load(1, 1, 0, 1), wire)


class Fleet:
    """A core, its clock, and the commands it gave."""

    def __init__(
        self, *names: str, config: RouterConfig | None = None, local: tuple[str, ...] = (), arena: Arena = _ARENA
    ) -> None:
        self.now = 100.0
        self.core = Core(7, config or RouterConfig(seed=1), arena, Random(1), lambda: self.now)
        self.commands: list[Command] = []
        self.core.execute_with(self.commands.extend)
        for name in names:
            self.add(instance(name), WireName.LOCAL if name in local else WireName.RPC)

    def add(self, what: Instance, wire: WireName = WireName.RPC, arena: Arena | None = None) -> Worker:
        """Discovers a node and links it."""
        with self.core.lock:
            (dial,) = self.core.table.changed((Insert(what),))
            assert isinstance(dial, Dial)
            self.core.table.link_up(dial.worker, NamedLink(what.node_id, wire, arena))
        return dial.worker

    def update(self, what: Instance, readiness: Readiness) -> None:
        """The registry tells new facts of a node."""
        self.core.table.changed((Insert(replace(what, readiness=readiness)),))

    def remove(self, name: str, epoch: int = 1) -> tuple[Command, ...]:
        """The registry forgets a node."""
        return self.core.table.changed((Remove(name, epoch),))

    def lose(self, name: str) -> None:
        """The link to a node dies, and says so."""
        worker = self.worker(name)
        link = worker.link
        assert isinstance(link, NamedLink)
        link.alive = False
        self.core.table.link_lost(worker, link)

    def worker(self, name: str) -> Worker:
        return next(worker for worker in self.core.table.workers if worker.name == name)

    def life(self, model: str = "plan", timeout_s: float = 1.0, rows: int = 2) -> Life:
        idempotent = self.core.table.offer(model).idempotent
        return self.core.life(model, body(rows), Deadline(self.now + timeout_s), 0, idempotent)

    def send(self, life: Life, outcome: Answer | OverspillError | None = None) -> Attempt:
        """Goes on until the next dispatch, and lets waits pass."""
        while True:
            step = life.send(outcome)
            assert not self.core.lock.locked(), "whoever sends or waits must not hold up the picks of others"
            if isinstance(step, Attempt):
                return step
            self.now += step.delay_s
            outcome = None

    def finish(self, life: Life, outcome: Answer | OverspillError) -> Reply:
        """Gives the last outcome, which must end the request."""
        try:
            step = life.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError(f"the request goes on with {step}")

    def assert_idle(self) -> None:
        """Nothing is counted as out anywhere."""
        statistics = self.core.statistics()
        assert (statistics.active, statistics.retrying) == (0, 0)
        for worker in self.core.table.workers:
            assert (worker.ahead.out, worker.ahead.unseen, worker.ahead.wait_ms(self.now)[1]) == (0, 0, 0.0)


def name_of(step: Attempt) -> str:
    return step.link.peer.node_id
