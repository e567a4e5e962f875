"""Policies over live nodes in two network namespaces rank as the simulator says, and are as slow as it says.

The nodes wait instead of computing, 50 ms on the average, so that what they do is what the trace says; the router is
in one namespace with two of them, and two are behind a cable of 3 ms each way. Both worlds see the same traces, one for
each seed; what is compared is the median of the seeds. No worker is more than two thirds busy under any policy: nearer
to the limit, the tenths of a millisecond that a node takes between two requests would decide. All of it runs at a
real-time priority, because whoever waits for a core in a busy machine is late under any policy, and more so in a queue.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from router import Router, RouterConfig
from router.policies.base import Answered, Report, Setting, Task
from router.policies.oracle import OnTheWay
from router.policies.table import BY_NAME, Shared
from router.simulator.compare import simulate
from router.simulator.measure import figures
from router.simulator.workload import Trace, Workload, draw
from tests.integration.router_nodes import ROOT, Nodes, settle
from tests.integration.slow_cable import FAR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.policies.base import Policy

NAMESPACE = "overspill-far"
DELAY_MS = 3.0
WORLD = Workload(
    name="two hosts",
    speeds=(1.0, 0.5, 1.0, 0.5),
    demand=(1.0,),
    load=0.45,
    work_mean_ms=50.0,
    work_sd_ms=30.0,
    hint_error=None,
    near_s=0.0001,
    far_s=DELAY_MS / 1000.0,
    per_host=2,
    requests=900,
    warm_up=100,
)
NAMES = ("near-fast", "near-slow", "far-fast", "far-slow")
POLICIES = ("random", "round-robin", "weighted", "least-loaded", "peak-ewma", "ours-reports")
SEEDS = (1, 2, 3)
APART = 1.2
"""Pairs that the simulator sees further apart than this must rank alike."""
_WAITING = """
import os, time
import numpy as np
class Model:
    def __init__(self, config): self.speed = float(os.environ["OVERSPILL_TEST_SPEED"])
    def execute(self, inputs, outputs):
        time.sleep(float(inputs["ms"][0]) / 1000.0 / self.speed)
        outputs["done"] = np.ones(1, np.int64)
"""
_CONFIG = """name: "waiting" backend: "python"
input [ { name: "ms" data_type: TYPE_FP64 dims: [ 1 ] } ]
output [ { name: "done" data_type: TYPE_INT64 dims: [ 1 ] } ]
parameters { key: "idempotent" value { string_value: "true" } }
"""


@contextmanager
def priority() -> Iterator[None]:
    """This thread, and all threads and processes that it begins meanwhile, come first."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a high priority and two network namespaces")
    usual = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # a nice value counts within a session only
    except PermissionError:
        pytest.skip("no real-time priority can be had here, and a busy machine would decide")
    try:
        yield
    finally:
        os.sched_setscheduler(0, usual, os.sched_param(0))


@contextmanager
def cable() -> Iterator[None]:
    """Two namespaces with a slow cable between them. Skips where this machine gives none."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("needs /dev/net/tun for two network namespaces")
    made = subprocess.run(["ip", "netns", "add", NAMESPACE], capture_output=True, timeout=10, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.decode().strip()}")
    try:
        words = [sys.executable, "-m", "tests.integration.slow_cable", NAMESPACE, str(DELAY_MS)]
        with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            try:
                assert process.stdout.readline() == b"ready\n"
                yield
            finally:
                process.stdin.close()
                process.wait(10)
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True, timeout=10)


def make_waiting(folder: Path) -> Path:
    version = folder / "waiting-models" / "waiting" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_WAITING)
    return version.parent.parent


class Live:
    """One policy over the live nodes: it picks among four routers of one node each, or is the router itself."""

    def __init__(self, policy: str, routers: dict[str, Router], whole: Router, seed: int) -> None:
        self._routers, self._whole, self._lock = routers, whole, threading.Lock()
        self._policy: Policy | None = None
        if policy != "ours-reports":
            setting = Setting(
                router=0, routers=1, speeds=WORLD.speeds, reach_s=WORLD.reach_s(0), near=WORLD.near(0),
                rng=Random(seed << 16), hinted=False, nodes=(),
            )  # fmt: skip
            self._policy = BY_NAME[policy].make(setting, Shared(OnTheWay(len(WORLD.speeds))))

    def choose(self, number: int, work_ms: float) -> int:
        """Picks for one request, in the order of arrival, as the simulator does; -1 where the router picks."""
        if self._policy is None:
            return -1
        now = time.monotonic()
        with self._lock:
            (worker,) = self._policy.choose(Task(number, 0, now, work_ms, 0.0), (), now)
        return worker

    def send(self, number: int, work_ms: float, worker: int) -> None:
        """Sends it there, and tells the policy of the answer."""
        inputs = {"ms": np.array([work_ms])}
        if self._policy is None:
            self._whole.infer("waiting", inputs, timeout_s=60.0)
            return
        began_s = time.monotonic()
        task = Task(number, 0, began_s, work_ms, 0.0)
        reply = self._routers[NAMES[worker]].infer("waiting", inputs, timeout_s=60.0)
        now, trace = time.monotonic(), reply.trace
        report = Report(worker, now, 0, 0.0, 1.0, 0.0, 0.0)
        answer = Answered(worker, (now - began_s) * 1000.0, trace.compute_ms, trace.queue_ms, report)
        with self._lock:
            self._policy.answered(task, answer, now)

    def p99_ms(self, trace: Trace) -> float:
        """Sends the whole trace at its instants."""
        took_ms = [0.0] * len(trace.at_s)
        begin_s = time.monotonic() + 0.2

        def one(number: int, worker: int) -> None:
            self.send(number, trace.work_ms[number], worker)
            took_ms[number] = (time.monotonic() - begin_s - trace.at_s[number]) * 1000.0

        with ThreadPoolExecutor(128) as pool:
            for number, at_s in enumerate(trace.at_s):
                time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
                pool.submit(one, number, self.choose(number, trace.work_ms[number]))
        assert all(took_ms), "each was answered"
        return float(np.percentile(took_ms[WORLD.warm_up :], 99))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_live_nodes_rank_policies_as_the_simulator_does(tmp_path: Path) -> None:
    simulated = {name: median(figures(simulate(WORLD, name, seed)).p99_ms for seed in SEEDS) for name in POLICIES}
    with priority(), cable(), Nodes(tmp_path) as nodes:
        live = live_p99_ms(nodes, tmp_path)
    told = ", ".join(f"{name} {simulated[name]:.0f} / {live[name]:.0f}" for name in POLICIES)
    for one in POLICIES:
        assert 0.75 <= live[one] / simulated[one] <= 1.25, told
        for other in POLICIES:
            if simulated[one] > APART * simulated[other]:
                assert live[one] > live[other], told
    settle()


def live_p99_ms(nodes: Nodes, folder: Path) -> dict[str, float]:
    """The median p99 of each policy over the seeds."""
    nodes.models = make_waiting(folder)
    for name, speed in zip(NAMES, WORLD.speeds, strict=True):
        near = name.startswith("near")
        nodes.start(
            name,
            "local,rpc" if near else "rpc",
            settings="" if near else f'listen = "{FAR}:0"\n',
            environment={"OVERSPILL_TEST_SPEED": str(speed)},
            namespace="" if near else NAMESPACE,
        )
    nodes.wait_ready(*NAMES)
    config = RouterConfig(seed=1, refuse_late=False)
    found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with ExitStack() as undo:
        whole = undo.enter_context(Router.connect(nodes.registry, config=config))
        whole._core.pages = None  # as the simulated one: it goes by the reports of answers
        routers = {name: undo.enter_context(Router.connect(one_of(nodes, name), config=config)) for name in NAMES}
        for seed in SEEDS:
            trace = draw(WORLD, seed)
            for policy in POLICIES:
                found[policy].append(Live(policy, routers, whole, seed).p99_ms(trace))
    return {policy: median(each) for policy, each in found.items()}


def one_of(nodes: Nodes, name: str) -> str:
    """A registry that lists one node only."""
    folder = nodes.folder / f"only-{name}"
    folder.mkdir(exist_ok=True)
    for file in (nodes.folder / "registry").iterdir():
        if name in file.name or name in file.read_text(errors="replace"):
            os.link(file, folder / file.name)  # the node keeps it alive by its time stamp
    assert open_registry(f"dir:{folder}").read()
    return f"dir:{folder}"
