"""What tests of a whole router and node share: a node in a guest, load on it, and when what moved after a cut.

The model tells how often it ran for each request, and is not idempotent: a request that moved from wire to wire and ran
twice, or not at all, shows in its own answer. Read `tests/softroce/test_nodes.py` next.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.table import State
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback.channel import RpcChannel
from overspill import Router, RouterConfig
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from fabric.deadline import Deadline
    from fabric.transport import Answer, Call

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
BEAT_S, STALL_S = 0.005, 0.1


class Node:
    """`overspill node` in a guest, or a program of another name that becomes one."""

    def __init__(self, where: int = 1, address: str = ADDRESS, program: tuple[str, ...] = ("overspill",)) -> None:
        words = ["node", "--registry", f"static:{address}", "--models", "/src/tests/softroce/models"]
        words += ["--listen", address, "--wires", "rdma,rpc", "--devices", "cpu:1"]
        self.process = here.Process(where, program[0], *program[1:], *words)
        assert self.process.said("is ready at", START_S), "the node did not start"

    def close(self) -> None:
        if self.process.alive():
            self.process.signal(signal.SIGTERM)
            if self.process.wait(30.0) is None:
                self.process.signal(signal.SIGKILL)


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


def both_open() -> bool:
    """Whether rpc stands by: right after a connect, or when it was lost, it has to be opened first, which an emulated
    guest takes seconds for."""
    return all(link.statistics().state is State.PREFERRED_LIVE for link in links())


def fell_back(load: Load, at_s: float) -> bool:
    return "rpc" in load.since(at_s)


class Moments(logging.Handler):  # mutable: notes
    """When this process heard of a cut from its device, and when calls then went out over rpc: without the time that an
    emulated machine takes to tell, and the node to answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(logging.INFO)
        self.told_s: list[float] = []
        self.sent_s: list[float] = []
        self.stalls: list[tuple[float, float]] = []
        """(when it was over, how long it took) each time that none of this process's threads came to run."""
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heart")
        self._heart.start()
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

    def stalled_s(self, cut_s: float, within_s: float) -> float:
        """The longest stall that was over within that time after a cut."""
        return max((took for at, took in self.stalls if cut_s < at < cut_s + within_s), default=0.0)

    def end(self) -> None:
        """Nothing is noted any more."""
        logging.getLogger("fabric.rdma.engine").removeHandler(self)
        self._over.set()
        self._heart.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            time.sleep(BEAT_S)
            now = time.monotonic()
            if now - last > STALL_S:
                self.stalls.append((now, now - last))
            last = now


def report(load: Load, cuts: list[float], told: list[str], moments: Moments) -> None:
    """The figures of docs/rdma.md, and what the slowest cut went through; `-rP` shows them."""
    first, last = zip(*map(load.moved_s, cuts), strict=True)
    went = tuple(map(moments.went_s, cuts))
    names = ("first answer over rpc", "last one that was out", "from the device's word until a call went to rpc")
    for name, found in zip(names, (first, last, went), strict=True):
        sys.stdout.write(f"{name}: median {median(found):.3f} s, longest {max(found):.3f} s, {len(found)} cuts\n")
    slowest = first.index(max(first))
    cut_s, took_s = cuts[slowest], max(first)
    stalled_s = moments.stalled_s(cut_s, took_s + 0.5)
    sys.stdout.write(f"slowest, cut at {cut_s:.3f}: the process stood still for {stalled_s:.3f} s; {told[slowest]}\n")
