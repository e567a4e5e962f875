"""A simulated node with two ways to it, in real time, and links over both: what the tests of the link stand on."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import OverspillError
from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.loop import LoopThread
from fabric.link.table import Role, State
from fabric.link.wires import ANY_EPOCH, LinkConfig, Wires
from fabric.message import RequestId, Tensor, small_body
from fabric.sim.node import SimModel, echo
from fabric.sim.pump import RealPump
from fabric.sim.world import SimWorld
from fabric.transport import Answer, Call, Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.link.wires import Opener

QUICK = LinkTimes(hold_down_s=0.3, backoff_s=0.05, idle_ping_s=0.1, connect_s=0.3, last_missed=8)


@dataclass(frozen=True, slots=True)
class SimPeer:
    """A node as discovery would tell of it."""

    node_id: str
    node_epoch: int
    host_id: str = ""
    local: str = ""
    rpc: str = ""
    rpc_tls: bool = False
    rdma: str = ""


class Net:
    """A simulated node with two ways to it, `near` and `far`, in real time."""

    def __init__(self) -> None:
        self.world = SimWorld(seed=3, pump=RealPump())
        models = {"echo": SimModel(0.002, echo), "slow": SimModel(1.0, echo)}
        self.node = self.world.add_node("n", models, executors=8)
        self.loop = LoopThread()
        self._numbers = iter(range(1, 1 << 30))
        self._lock = threading.Lock()

    def close(self) -> None:
        self.loop.close()
        self.world.close()

    def opener(self, host: str) -> Opener:
        def open_it(deadline: Deadline, expect: tuple[str, int] | None) -> Channel:
            return self.world.connect("n", 7, deadline, expect=expect, host=host)

        return open_it

    @contextmanager
    def link(
        self, times: LinkTimes = QUICK, *, any_epoch: bool = False, near: bool = True, far: bool = True
    ) -> Iterator[Link]:
        peer = SimPeer("n", ANY_EPOCH if any_epoch else self.node.epoch)
        wires = Wires(self.opener("near") if near else None, self.opener("far") if far else None)
        link = Link(peer, wires, LinkConfig(times), self.loop)
        link.start(after(10.0))
        try:
            if near and far:
                wait(lambda: link.statistics().state is State.PREFERRED_LIVE)
            yield link
        finally:
            link.abort("the test is over")

    def run(self, action: Callable[[], None]) -> None:
        """Does something to the simulation, in its thread."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self.world.pump.post(act)
        assert done.wait(20.0)

    def request(self, model: str = "echo", *, movable: bool = False) -> Call:
        with self._lock:
            number = next(self._numbers)
        return Call(RequestId(7, number), model, small_body((Tensor.of("x", [number]),)), movable=movable)

    def lose(self, link: Link, role: Role) -> None:
        """An end of stream on one wire, the node itself alive."""
        channel = link._wiring.channels[role]
        self.run(lambda: channel._flights.lose("end of stream"))  # type: ignore[attr-defined]


class Asked:
    """A call in a thread of its own: when it ended, and how."""

    def __init__(self, link: Link, call: Call, timeout_s: float = 20.0) -> None:
        self.outcome: Answer | OverspillError | None = None
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(link, call, after(timeout_s)), name="asked")
        self._thread.start()

    def _run(self, link: Link, call: Call, deadline: Deadline) -> None:
        try:
            self.outcome = link.call(call, deadline)
        except OverspillError as error:
            self.outcome = error
        self.ended_at = time.monotonic()

    def result(self) -> Answer | OverspillError | None:
        self._thread.join(30.0)
        return self.outcome


def after(timeout_s: float) -> Deadline:
    return Deadline.after(timeout_s, time.monotonic())


def wait(done: Callable[[], bool], timeout_s: float = 20.0) -> float:
    """Waits until it is so; the seconds that took."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < timeout_s, "it did not come to that in time"
        time.sleep(0.001)
    return time.monotonic() - began
