"""Break one card's executor again and again under load, and measure from the callers' side: one process a card.

    python -m tests.hw.fault_trials --device cuda:0 --standby full --faults trap,kill --trials 10

A real node with one executor, a router, two callers who ask on all the while and look at every byte, and a third whose
request meets the fault (its model may not run twice, so the router tells it at once). The kinds of faults take turns.
It prints one JSON object for each trial as it goes, so that a run which is cut short has told what it saw. With
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
from typing import TYPE_CHECKING, Any

import numpy as np

from discovery.registry import open_registry
from fabric.errors import ExecutorLost, OverspillError
from overspill import Router
from tests.hw.gpu_models import copy_models
from tests.integration.bad_node import NodeProcess, wait_dead, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discovery.instance import CardFacts

CALLERS = 2
FLOATS = 1 << 16
PATIENCE_S = 30.0
HANG_LIMIT_S = 0.3
PAUSE_S = 0.25
"""A report of a card that comes so soon after a death is taken for that one's (`workers/cards.py`)."""
PF_EXITING = 0x4
COUNTS = ("answers", "retried", "wrong")
_WRITTEN = re.compile(r"^(\S+ \S+),(\d+) ")
_STARTED = re.compile(r"works as generation \d+, ([\d.]+) s after its start \(([\d.]+) s until its first model\)")


class EndWatch(threading.Thread):
    """Sees when the kernel begins to end a process, and when it has: a driver's context is taken down in between."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._stat = Path(f"/proc/{pid}/stat")
        self._pid = pid
        self.exiting_s = self.at_s = 0.0
        self.start()

    def run(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self._exits() and time.monotonic() < until_s:
            time.sleep(0.001)
        self.exiting_s = time.monotonic()
        self.at_s = wait_dead(self._pid, PATIENCE_S) or 0.0

    def _exits(self) -> bool:
        try:
            return bool(int(self._stat.read_text().rpartition(")")[2].split()[6]) & PF_EXITING)
        except (OSError, IndexError):
            return True  # it is gone


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
        self.told = 0
        self.start()

    def new_failures(self) -> list[str]:
        """Those that this was not asked about before."""
        new = self.failures[self.told :]
        self.told += len(new)
        return new

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
    """One node on one card, a router to it, and its callers. It takes more faults than a node's life may have: its
    quarantine has tests of its own."""

    def __init__(self, folder: Path, device: str, standby: str, faults: tuple[str, ...]) -> None:
        self._folder = folder
        self._standby = standby
        models = folder / "models"
        copy_models(models, fake=device.startswith("fake"), limits_ms={"gpu_hang": round(1e3 * HANG_LIMIT_S)})
        settings = folder / "node.toml"
        inject = ",".join(f"{fault}@{self._model(fault)}:flag={folder / fault}" for fault in faults)
        settings.write_text(
            f'standby = "{standby}"\ninject = "{inject}"\nruntime_dir = "{folder}"\nquarantine_faults = 10000\n'
        )
        self.registry = f"dir:{folder / 'registry'}"
        self.node = NodeProcess(folder, self.registry, models, "--config", str(settings), devices=device)
        self.node.wait_ready()
        self.router = Router.connect(self.registry)
        self.callers = [Load(self.router, seed) for seed in range(CALLERS)]
        self.standby_bytes = 0
        self._ask("gpu_once")
        self._counted = dict.fromkeys(COUNTS, 0)

    @staticmethod
    def _model(fault: str) -> str:
        return "gpu_hang" if fault == "hang" else "gpu_once"

    def _ask(self, model: str) -> None:
        self.router.infer(model, {"x": np.ones(64, np.float32)}, timeout_s=PATIENCE_S).close()

    def settle(self) -> None:
        """Until everything is as it was: a standby, where there should be one, and its bytes known."""
        if self._standby != "off":
            log = self.node.log
            wanted = log.count("its standby") + 1
            assert wait_until(lambda: self.node.log.count("has a standby") >= wanted, 60.0, 0.02), self.node.log
            if not self.standby_bytes:  # the node looks at its cards twice a second
                wait_until(lambda: self._card().standby_bytes > 0, 5.0, 0.05)
                self.standby_bytes = self._card().standby_bytes
        time.sleep(PAUSE_S)

    def _card(self) -> CardFacts:
        (instance,) = open_registry(self.registry).read()
        return instance.cards[0]

    def trial(self, fault: str) -> dict[str, Any]:
        """Milliseconds from the fault (for `hang` from the model's time limit), see `_times`, and what the callers saw
        since the last trial."""
        self.settle()
        generation = max(caller.answers[-1][1] for caller in self.callers)
        before = len(self.node.log)
        began, flag = [0.0], self._folder / fault

        def watch() -> None:
            while flag.exists():
                time.sleep(0.0002)
            began[0] = time.monotonic()

        flag.touch()
        watcher = threading.Thread(target=watch)
        watcher.start()
        end = EndWatch(self.node.executors()[0])
        try:
            self._ask(self._model(fault))
        except ExecutorLost:
            told_s = time.monotonic()
        else:
            raise AssertionError(f"the request that met {fault} was answered")
        watcher.join()
        zero_s = began[0] + HANG_LIMIT_S * (fault == "hang")
        assert wait_until(lambda: self._first_after(generation) > 0, PATIENCE_S, 0.001), self.node.log
        assert wait_until(lambda: end.at_s > 0, PATIENCE_S, 0.001), "the executor did not end"
        times = self._times(generation, before, zero_s) | {
            "told_ms": told_s - zero_s,
            "exiting_ms": end.exiting_s - zero_s,
            "ended_ms": end.at_s - zero_s,
            "right_ms": self._first_after(generation) - zero_s,
            "recovered_ms": max(0.0, self._first_after(generation) - told_s),
        }
        known = {"standby": self._standby, "fault": fault, "generation": generation}
        return known | {name: round(1e3 * seconds, 2) for name, seconds in times.items()} | self.counts()

    def _times(self, generation: int, before: int, zero_s: float) -> dict[str, float]:
        """What the node's log says since `before`, in seconds: when it knew, when a process of the next generation was
        started, spoke of its first model, and was ready. With a standby only the first and the last."""
        lost = f"(generation {generation}) "
        assert wait_until(lambda: lost in self.node.log[before:], PATIENCE_S), self.node.log
        lines = self.node.log[before:].splitlines()
        found = {"seen_ms": written_s(lines, lost) - zero_s}
        (line,) = [each for each in lines if "goes on as generation" in each or "works as generation" in each][-1:]
        found["ready_ms"] = written_s([line], "") - zero_s
        if started := _STARTED.search(line):
            found["started_ms"] = found["ready_ms"] - float(started[1])
            found["first_model_ms"] = found["started_ms"] + float(started[2])
        return found

    def _first_after(self, generation: int) -> float:
        return min((at for caller in self.callers for at, found in caller.answers if found > generation), default=0.0)

    def counts(self) -> dict[str, Any]:
        """What the callers saw since the last time."""
        before, callers = self._counted, self.callers
        self._counted = {
            "answers": sum(len(caller.answers) for caller in callers),
            "retried": sum(caller.retried for caller in callers),
            "wrong": sum(caller.wrong for caller in callers),
        }
        since = {name: now - before[name] for name, now in self._counted.items()}
        return since | {"lost": [failure for caller in callers for failure in caller.new_failures()]}

    def close(self) -> dict[str, Any]:
        """Ends all; gives what the callers saw since the last trial."""
        for caller in self.callers:
            caller.stop.set()
        for caller in self.callers:
            caller.join(PATIENCE_S + 5)
        self.router.close()
        self.node.end()
        return self.counts() | {"standby": self._standby, "standby_bytes": self.standby_bytes}


def written_s(lines: list[str], what: str) -> float:
    """When the node wrote the first of these lines with that in it, on the monotonic clock: they have milliseconds."""
    line = next((each for each in lines if what in each), "")
    written = _WRITTEN.match(line)
    assert written is not None, (what, lines)
    wall_s = dt.datetime.strptime(written[1], "%Y-%m-%d %H:%M:%S").astimezone().timestamp() + int(written[2]) / 1e3
    return wall_s - time.time() + time.monotonic()


def run(
    device: str, standby: str, faults: tuple[str, ...], trials: int, until_s: float = float("inf"), log: str = ""
) -> Iterator[dict[str, Any]]:
    """So many trials of each kind on one node, as they come, none begun after `until_s`; the last has no `fault`. The
    node's log is added to the file `log`, if there is one."""
    with tempfile.TemporaryDirectory(prefix="osp-hw-") as folder:
        bench = Bench(Path(folder), device, standby, faults)
        try:
            for fault in [fault for _ in range(trials) for fault in faults]:
                if time.monotonic() < until_s:
                    yield bench.trial(fault)
        except AssertionError:
            sys.stderr.write(bench.node.log)
            raise
        finally:
            last = bench.close()
            if log:
                with Path(log).open("a") as file:
                    file.write(bench.node.log)
        yield last


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw.fault_trials", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--standby", default="off", choices=("off", "context", "full"))
    parser.add_argument("--faults", default="illegal_address,trap,assert,hang,kill")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after these")
    parser.add_argument("--log", default="", metavar="FILE", help="add the node's log to it")
    given = parser.parse_args()
    sys.setswitchinterval(0.0005)  # a caller that computes would keep another from seeing its answer for 5 ms
    until_s = time.monotonic() + given.seconds
    for line in run(given.device, given.standby, tuple(given.faults.split(",")), given.trials, until_s, given.log):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
