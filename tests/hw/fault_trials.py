"""Break one card's executor again and again under load, and measure from the callers' side: one process a card.

    python -m tests.hw.fault_trials --device cuda:0 --standby full --fault trap --trials 20

A real node with one executor, a router, two callers who ask on all the while and look at every byte, and a third whose
request meets the fault (its model may not run twice, so the router tells it at once). It prints one JSON object. With
`--device fake:1` everything but the card is the same, which tries this file where there is none.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from discovery.registry import open_registry
from fabric.errors import ExecutorLost, OverspillError
from overspill import Router
from tests.hw.gpu_models import copy_models
from tests.integration.bad_node import NodeProcess, wait_dead, wait_until

if TYPE_CHECKING:
    from discovery.instance import CardFacts

FRESH_EVERY = 3
"""A fresh node after so many faults: below the quarantine limit, and before the back-off of a crash loop counts."""
CALLERS = 2
FLOATS = 1 << 16
PATIENCE_S = 30.0
HANG_LIMIT_S = 0.3
SUMS = ("trials", "answers", "retried", "wrong", "lost")
PARTS = ("seen_ms", "told_ms", "ended_ms", "right_ms", "recovered_ms", "teardown_ms")


class EndWatch(threading.Thread):
    """Sees when a process ends, within the time of a trial."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.at_s = 0.0
        self.start()

    def run(self) -> None:
        self.at_s = wait_dead(self._pid, PATIENCE_S) or 0.0


class Load(threading.Thread):
    """Asks on, and keeps (when it came, generation) of every right answer."""

    def __init__(self, router: Router, seed: int) -> None:
        super().__init__(name=f"caller {seed}")
        self._router = router
        self._draw = np.random.default_rng(seed)
        self.stop = threading.Event()
        self.answers: list[tuple[float, int]] = []
        self.wrong = 0
        self.retried = 0
        self.failures: list[str] = []
        self.start()

    def run(self) -> None:
        while not self.stop.is_set():
            x = self._draw.random(FLOATS, np.float32)
            try:
                with self._router.infer("gpu_double", {"x": x}, timeout_s=PATIENCE_S) as reply:
                    right = bool(np.array_equal(reply["y"], 2 * x))
                    self.wrong += not right
                    self.retried += reply.trace.attempts > 1
                    self.answers.append((time.monotonic(), reply.trace.generation))
            except OverspillError as error:
                self.failures.append(repr(error))


class Bench:
    """One node on one card, a router to it, and its callers."""

    def __init__(self, folder: Path, device: str, standby: str, fault: str) -> None:
        self.flag = folder / "now"
        self.standby = standby
        models = folder / "models"
        limits = {"gpu_once": round(1e3 * HANG_LIMIT_S)} if fault == "hang" else {}
        copy_models(models, fake=device.startswith("fake"), limits_ms=limits)
        settings = folder / "node.toml"
        settings.write_text(
            f'standby = "{standby}"\ninject = "{fault}@gpu_once:flag={self.flag}"\nruntime_dir = "{folder}"\n'
        )
        self.registry = f"dir:{folder / 'registry'}"
        self.node = NodeProcess(folder, self.registry, models, "--config", str(settings), devices=device)
        self.node.wait_ready()
        self.router = Router.connect(self.registry)
        self.callers = [Load(self.router, seed) for seed in range(CALLERS)]
        self.standby_bytes = 0
        self.ask_once(PATIENCE_S)

    def ask_once(self, timeout_s: float) -> None:
        x = np.ones(64, np.float32)
        self.router.infer("gpu_once", {"x": x}, timeout_s=timeout_s).close()

    def settle(self) -> None:
        """Until everything is as it was: a standby, where there should be one, and its bytes known."""
        if self.standby != "off":
            wanted = self.node.log.count("goes on as generation") + 1
            assert wait_until(lambda: self.node.log.count("has a standby") >= wanted, 60.0, 0.02), self.node.log
            if not self.standby_bytes:
                wait_until(lambda: self._card().standby_bytes > 0, 3.0, 0.05)
                self.standby_bytes = self._card().standby_bytes
        time.sleep(0.3)

    def _card(self) -> CardFacts:
        (instance,) = open_registry(self.registry).read()
        return instance.cards[0]

    def trial(self, fault: str) -> dict[str, float]:
        """Milliseconds from the fault (for `hang` from the model's time limit): until the node knows of it, until its
        caller is told, until the executor's process is gone, until the first right answer of the next generation; from
        the caller's error to that answer, and to the process's end, which the kernel takes a context down in."""
        self.settle()
        generation = max(caller.answers[-1][1] for caller in self.callers)
        hang = fault == "hang"
        began = [0.0]

        def watch() -> None:
            while self.flag.exists():
                time.sleep(0.0002)
            began[0] = time.monotonic()

        self.flag.touch()
        watcher = threading.Thread(target=watch)
        watcher.start()
        ends = [EndWatch(pid) for pid in self.node.executors()]
        try:
            self.ask_once(PATIENCE_S)
        except ExecutorLost:
            told_s = time.monotonic()
        else:
            raise AssertionError(f"the request that met {fault} was answered")
        watcher.join()
        zero_s = began[0] + HANG_LIMIT_S * hang
        assert wait_until(lambda: self._first_after(generation) > 0, PATIENCE_S, 0.001), self.node.log
        right_s = self._first_after(generation)
        assert wait_until(lambda: any(end.at_s for end in ends), PATIENCE_S, 0.001), "no executor ended"
        ended_s = min(end.at_s for end in ends if end.at_s)
        return {
            "seen_ms": 1e3 * (self._logged_s(generation) - zero_s),
            "told_ms": 1e3 * (told_s - zero_s),
            "ended_ms": 1e3 * (ended_s - zero_s),
            "right_ms": 1e3 * (right_s - zero_s),
            "recovered_ms": 1e3 * max(0.0, right_s - told_s),
            "teardown_ms": 1e3 * max(0.0, ended_s - told_s),
        }

    def _logged_s(self, generation: int) -> float:
        """When the node wrote that it lost this generation, on the monotonic clock: its log has milliseconds."""
        line = re.search(rf"^(\S+ \S+),(\d+) .*\(generation {generation}\) ", self.node.log, re.MULTILINE)
        assert line is not None, self.node.log
        wall_s = dt.datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S").astimezone().timestamp() + int(line[2]) / 1e3
        return wall_s - time.time() + time.monotonic()

    def _first_after(self, generation: int) -> float:
        return min((at for caller in self.callers for at, found in caller.answers if found > generation), default=0.0)

    def close(self) -> dict[str, Any]:
        for caller in self.callers:
            caller.stop.set()
        for caller in self.callers:
            caller.join(PATIENCE_S + 5)
        self.router.close()
        self.node.end()
        return {
            "answers": sum(len(caller.answers) for caller in self.callers),
            "retried": sum(caller.retried for caller in self.callers),
            "wrong": sum(caller.wrong for caller in self.callers),
            "lost": [failure for caller in self.callers for failure in caller.failures],
        }


def run(device: str, standby: str, fault: str, trials: int, log: str = "") -> dict[str, Any]:
    """All trials of one kind. The nodes' logs are added to the file `log`, if there is one."""
    found: list[dict[str, Any]] = []
    while (left := trials - sum(node["trials"] for node in found)) > 0:
        with tempfile.TemporaryDirectory(prefix="osp-hw-") as folder:
            bench = Bench(Path(folder), device, standby, fault)
            try:
                seen = [bench.trial(fault) for _ in range(min(FRESH_EVERY, left))]
            except AssertionError:
                sys.stderr.write(bench.node.log)
                raise
            finally:
                if log:
                    with Path(log).open("a") as file:
                        file.write(bench.node.log)
                totals = bench.close()
            parts = {name: {"all": [round(trial[name], 2) for trial in seen]} for name in PARTS}
            kind = {"standby": standby, "fault": fault, "standby_bytes": bench.standby_bytes, "trials": len(seen)}
            found.append(kind | totals | parts)
    return joined(found)


def joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What several nodes have shown of one kind of fault: sums, and of each time all that was measured."""
    times = {name: [value for each in found for value in each[name]["all"]] for name in PARTS}
    return {
        "standby": found[0]["standby"],
        "fault": found[0]["fault"],
        "standby_bytes": max(each["standby_bytes"] for each in found),
        **{name: sum((each[name] for each in found), start=type(found[0][name])()) for name in SUMS},
        **{name: {"median": round(median(all_), 2), "max": max(all_), "all": all_} for name, all_ in times.items()},
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw.fault_trials", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--standby", default="off", choices=("off", "context", "full"))
    parser.add_argument("--fault", default="illegal_address")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--log", default="", metavar="FILE", help="add the nodes' logs to it")
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.device, given.standby, given.fault, given.trials, given.log)) + "\n")


if __name__ == "__main__":
    main()
