"""A real node in one guest and a real router in the other: rdma is taken, left when it breaks, and taken again.

The model tells how often it ran for each request, and is not idempotent: a request that moved from wire to wire and ran
twice, or not at all, shows in its own answer.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import threading
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.deadline import Deadline
from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.wires import LinkConfig
from fabric.load_page import model_key
from fabric.rpc_fallback.channel import RpcChannel
from overspill import Router, RouterConfig
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.transport import Answer, Call

pytestmark = [
    pytest.mark.guests(2),
    pytest.mark.timeout(400),
    pytest.mark.leaks("closed routers' memory goes with their last connection, seconds later on an emulated CPU"),
]
ADDRESS = "10.78.0.2:7071"
REGISTRY = f"static:{ADDRESS}"
START_S = 120.0
WIRE_S = 90.0
TIMES = LinkTimes(connect_s=8.0, probe_s=20.0, ping_s=0.4, idle_ping_s=4.0, hold_down_max_s=5.0)
"""An emulated guest beside busy neighbours answers a ping in tenths of a second, and opens a wire in some. The
hold-down does not grow, or twenty cuts would take twenty minutes."""
CONFIG = RouterConfig(link=LinkConfig(times=TIMES))
CALL_S = 30.0
"""No request is given up for time: what is asserted of times is stated by the tests that measure them."""


class Node:
    """`overspill node` in guest 1."""

    def __init__(self) -> None:
        words = ["node", "--registry", REGISTRY, "--models", "/src/tests/softroce/models", "--listen", ADDRESS]
        self.process = here.Process(1, "overspill", *words, "--wires", "rdma,rpc", "--devices", "cpu:1")
        assert self.process.said("is ready at", START_S), "the node did not start"

    def close(self) -> None:
        if self.process.alive():
            self.process.signal(signal.SIGTERM)
            if self.process.wait(30.0) is None:
                self.process.signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


class Load:  # mutable: counts while it runs
    """Callers that ask all the time, each with numbers of its own, and check every answer."""

    def __init__(self, router: Router, callers: int = 2) -> None:
        self.wires: list[tuple[float, str, float]] = []
        """(when it was answered, over which wire, when it was asked) of each request."""
        self.wrong: list[str] = []
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(router, caller)) for caller in range(callers)]
        for thread in self._threads:
            thread.start()

    def _ask(self, router: Router, caller: int) -> None:
        numbers = random.Random(caller)
        base = (time.monotonic_ns() // 1000) << 8
        for number in range(1 << 20):
            if self._end.is_set():
                return
            size = numbers.choice((1, 200, 20_000))
            x = np.arange(base + number * 8 + caller, base + number * 8 + caller + size, dtype=np.int64)
            asked_s = time.monotonic()
            try:
                reply = router.infer("counted", {"x": x}, timeout_s=CALL_S)
            except Exception as error:  # noqa: BLE001 - the test's own thread reports it
                self._note(f"request {number} of {size}: {type(error).__name__}: {error}")
                continue
            with reply:
                y = reply["y"]
                good = y[0] == 1 and np.array_equal(y[1:], 2 * x[1:])
                if not good:
                    self._note(f"request {number} of {size} ran {y[0]} times, or its bytes are wrong")
                with self._lock:
                    self.wires.append((time.monotonic(), str(reply.trace.wire), asked_s))

    def _note(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def since(self, at_s: float) -> list[str]:
        """The wires of what was answered after that moment."""
        with self._lock:
            return [wire for when, wire, _ in self.wires if when > at_s]

    def moved_s(self, cut_s: float) -> tuple[float, float]:
        """After a cut: seconds until the first answer over rpc, and until the last of those that were out was there."""
        with self._lock:
            first = min(when for when, wire, _ in self.wires if when > cut_s and wire == "rpc")
            out = [when for when, _, asked_s in self.wires if asked_s <= cut_s < when]
        return first - cut_s, max(out, default=cut_s) - cut_s

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(CALL_S + 30.0)


def until(what: Callable[[], bool], why: str, timeout_s: float = WIRE_S) -> float:
    """Seconds until it was so."""
    began_s = time.monotonic()
    while not what():
        if time.monotonic() > began_s + timeout_s:
            raise AssertionError(f"{why}; {stories()}")
        time.sleep(0.02)
    return time.monotonic() - began_s


def stories() -> str:
    """What every link of this process went through last, and what kept its wires from opening."""
    return "; ".join(f"{link.statistics().story}, {link._wiring.error}, {link._wiring._reason}" for link in links())


def links() -> list[Link]:
    """Those of this process that are open."""
    return [one for one in gc.get_objects() if isinstance(one, Link) and one.alive]


def on_rdma(load: Load) -> bool:
    wires = load.since(0.0)
    return len(wires) >= 5 and set(wires[-5:]) == {"rdma"}


def fell_back(load: Load, at_s: float) -> bool:
    return "rpc" in load.since(at_s)


class Moments(logging.Handler):  # mutable: notes
    """When this process heard of a cut from its device, and when calls then went out over rpc: without the time that an
    emulated machine takes to tell, and the node to answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(logging.INFO)
        self.told_s: list[float] = []
        self.sent_s: list[float] = []
        send = RpcChannel.call

        def noted(channel: RpcChannel, call: Call, deadline: Deadline) -> Answer:
            self.sent_s.append(time.monotonic())
            return send(channel, call, deadline)

        patch.setattr(RpcChannel, "call", noted)
        logger = logging.getLogger("fabric.rdma.engine")
        patch.setattr(logger, "level", logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "PORT_ERR" in record.getMessage():
            self.told_s.append(time.monotonic())

    def went_s(self, cut_s: float) -> float:
        """Seconds from the device's word about a cut until a request was handed to rpc."""
        told_s = min((at for at in self.told_s if at > cut_s), default=cut_s)
        return min(at for at in self.sent_s if at > told_s) - told_s

    def end(self) -> None:
        """Nothing is noted any more."""
        logging.getLogger("fabric.rdma.engine").removeHandler(self)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moments]:
    made = Moments(monkeypatch)
    yield made
    made.end()


def report(load: Load, cuts: list[float], moments: Moments) -> None:
    """The figures of docs/rdma.md; `-rP` shows them."""
    moved = zip(*map(load.moved_s, cuts), strict=True)
    names = ("first answer over rpc", "last one that was out", "from the device's word until a call went to rpc")
    for name, found in zip(names, (*moved, tuple(map(moments.went_s, cuts))), strict=True):
        sys.stdout.write(f"{name}: median {median(found):.3f} s, longest {max(found):.3f} s, {len(found)} cuts\n")


@pytest.mark.parametrize("wires", ["rdma,rpc", pytest.param("rdma", marks=pytest.mark.long)])
def test_a_call_that_names_rdma_is_answered_over_it(node: Node, wires: str) -> None:
    np.savez("/tmp/in.npz", x=np.arange(100, dtype=np.int64))
    words = ["call", "counted", "--registry", REGISTRY, "--input", "/tmp/in.npz", "--output", "/tmp/out.npz"]
    call = here.Process(0, "overspill", *words, "--timeout-s", "60", "--wires", wires)
    assert call.said(" over rdma, attempts 1", 100.0), "another wire answered, or none"
    assert call.wait(30.0) == 0
    with np.load("/tmp/out.npz") as answer:
        assert np.array_equal(answer["y"][1:], 2 * np.arange(1, 100))


def test_a_reply_tells_that_it_came_over_rdma(node: Node) -> None:
    """A small one and a large one, and the node's load page is read by the NIC."""
    with Router.connect(REGISTRY, config=CONFIG) as router:

        def wire_of(size: int) -> str:
            x = np.arange(time.monotonic_ns(), time.monotonic_ns() + size, dtype=np.int64)[:size]
            with router.infer("counted", {"x": x}, timeout_s=CALL_S) as reply:
                assert np.array_equal(reply["y"][1:], 2 * x[1:])
                return str(reply.trace.wire)

        until(lambda: wire_of(100) == "rdma", "rdma was not taken")
        assert wire_of(100_000) == "rdma"
        (link,) = links()
        reading = link.read_page(Deadline.after(CALL_S, time.monotonic()))
        assert reading.load.accepted >= 2
        assert reading.load.executors == 1
        assert model_key("counted") in {model.key for model in reading.models}


@pytest.mark.parametrize("cuts", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_rdma_is_cut_under_load_at_random_moments(node: Node, noted: Moments, cuts: int) -> None:
    """Its cable alone: requests go on over rpc, none is lost, wrong or run twice, and rdma is taken again."""
    moments, cuts_s = random.Random(20_260), list[float]()
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            for _ in range(cuts):
                until(lambda: on_rdma(load), "rdma was not taken")
                time.sleep(moments.uniform(0.0, 1.0))
                cut_s = time.monotonic()
                here.cable(0, up=False)
                until(partial(fell_back, load, cut_s), "nothing was answered over rpc")
                here.cable(0, up=True)
                cuts_s.append(cut_s)
            until(lambda: on_rdma(load), "rdma was not taken again")
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]
    report(load, cuts_s, noted)


@pytest.mark.long
def test_acknowledgements_alone_are_lost(node: Node) -> None:
    """What the node sends over its RDMA card is dropped: requests arrive and run, and nobody there hears of it."""
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            until(lambda: on_rdma(load), "rdma was not taken")
            cut_s = time.monotonic()
            here.run(1, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%", "limit", "100000")
            until(partial(fell_back, load, cut_s), "nothing was answered over rpc")
            here.run(1, "tc", "qdisc", "del", "dev", "eth0", "root")
            until(lambda: on_rdma(load), "rdma was not taken again")
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]


@pytest.mark.long
def test_a_flapping_cable_changes_the_wire_seldom(node: Node) -> None:
    """Once a second for 30 s: at most one change of the wire in 5 s, and nothing lost."""
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            until(lambda: on_rdma(load), "rdma was not taken")
            (link,) = links()
            began_s, before = time.monotonic(), link.statistics().changes
            for _ in range(15):
                here.cable(0, up=False)
                time.sleep(1.0)
                here.cable(0, up=True)
                time.sleep(1.0)
            wires, changes = load.since(began_s), link.statistics().changes - before
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]
    assert len(wires) > 20, "nothing was asked meanwhile"
    assert "rpc" in wires
    assert changes <= 30.0 / 5.0, "at most one change of the wire in 5 s"
    sys.stdout.write(f"30 s of a flapping cable: {changes} changes of the wire, {len(wires)} answers\n")
