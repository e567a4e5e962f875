"""One of several GPUs breaks under load: what became of its work, and whether the other cards answered as before.

    python -m tests.hw.several_faults --devices fake:4 --trials 3        # tries this file where there is no GPU

A real node, and callers who ask at an even pace for a quarter of what all cards can do, so that the others can carry
the whole. Where a request ran is told by its answer. A request counts as another card's where it ran there and was not
out when the fault came, nor sent in the moments when nobody could know of it: those may have waited for the broken one.
It prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from discovery.registry import open_registry
from fabric.errors import OverspillError
from fabric.local.control import NodeControl, control_path
from overspill import Router
from tests.integration.bad_node import NodeProcess, wait_until

if TYPE_CHECKING:
    from fabric.control import ExecutorFacts

HERE = Path(__file__).parent / "models"
MODEL = "gpu_where"
RUN_S = 0.005
"""What the model takes; its own file says so too."""
SHARE = 0.25
THREADS_A_CARD = 4
FLOATS = 1 << 12
PHASE_S = 2.0
UNKNOWN_S = 0.01
"""A node gives nothing to an executor that has been at one task for 5 ms (`workers/desks.py`), and twice that."""
FAULT = "illegal_address"
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: when, and by which process."""

    began_s: float
    ended_s: float
    pid: int
    attempts: int


class Pace(threading.Thread):
    """Asks at an even pace, whatever an answer takes as long as it comes within the pause."""

    def __init__(self, router: Router, at_s: float, pause_s: float, stop: threading.Event) -> None:
        super().__init__()
        self._router, self._at_s, self._pause_s, self._stop_now = router, at_s, pause_s, stop
        self.answers: list[Answer] = []
        self.lost: list[str] = []
        self.wrong = 0

    def run(self) -> None:
        x = np.random.default_rng(1).random(FLOATS, np.float32)
        while not self._stop_now.wait(max(0.0, self._at_s - time.monotonic())):
            self._at_s += self._pause_s
            began_s = time.monotonic()
            try:
                with self._router.infer(MODEL, {"x": x}, timeout_s=PATIENCE_S) as reply:
                    self.wrong += not np.array_equal(reply["y"], 2 * x)
                    answer = Answer(began_s, time.monotonic(), int(reply["pid"][0]), reply.trace.attempts)
                    self.answers.append(answer)
            except OverspillError as error:
                self.lost.append(repr(error))


class Scene:
    """One node over some cards, for all trials."""

    def __init__(self, folder: Path, devices: str, standby: str) -> None:
        self._folder = folder
        self._standby = standby
        self.flag = folder / "now"
        shutil.copytree(HERE / MODEL, folder / "models" / MODEL, ignore=shutil.ignore_patterns("__pycache__"))
        settings = folder / "node.toml"
        settings.write_text(
            f'runtime_dir = "{folder}"\nstandby = "{standby}"\nquarantine_faults = 0\n'
            f'inject = "{FAULT}@{MODEL}:flag={self.flag}"\n'
        )
        words = ("--config", str(settings))
        self.node = NodeProcess(
            folder, f"dir:{folder / 'registry'}", folder / "models", *words, devices=devices, wires="local"
        )
        self.node.wait_ready()
        self.router = Router.connect(self.node.registry)
        self.cards = len(self.executors())

    def executors(self) -> tuple[ExecutorFacts, ...]:
        return NodeControl(control_path(str(self._folder / "node.sock"))).executors()

    def settled(self) -> bool:
        """Whether every card has its executor, and its standby where there should be one."""
        (instance,) = open_registry(self.node.registry).read()
        standing = all(card.standby == self._standby for card in instance.cards)
        return standing and all(each.ready for each in self.executors())

    def trial(self) -> dict[str, Any]:
        """Breaks one card once."""
        assert wait_until(self.settled, PATIENCE_S, 0.05), self.node.log
        before = {each.pid for each in self.executors()}
        count = THREADS_A_CARD * self.cards
        pause_s = count * RUN_S / (SHARE * self.cards)
        stop, start_s = threading.Event(), time.monotonic() + 0.1
        callers = [Pace(self.router, start_s + at * pause_s / count, pause_s, stop) for at in range(count)]
        for caller in callers:
            caller.start()
        time.sleep(PHASE_S)
        self.flag.touch()
        assert wait_until(lambda: not self.flag.exists(), PATIENCE_S, 0.0005), "no request met the fault"
        broke_s = time.monotonic()
        time.sleep(PHASE_S)
        stop.set()
        for caller in callers:
            caller.join(PATIENCE_S)
        (broken,) = before - {each.pid for each in self.executors()}
        answers = [answer for caller in callers for answer in caller.answers]
        others = [answer for answer in answers if answer.pid in before - {broken} and answer.attempts == 1]
        waited = [answer for answer in answers if answer.began_s < broke_s + UNKNOWN_S and answer.ended_s > broke_s]
        return {
            "answers": len(answers),
            "wrong": sum(caller.wrong for caller in callers),
            "lost": [error for caller in callers for error in caller.lost],
            "moved": sum(answer.attempts > 1 for answer in answers),
            "moved_ms": 1e3 * max((each.ended_s - each.began_s for each in waited if each.attempts > 1), default=0.0),
            "of_broken_after": sum(answer.pid == broken and answer.began_s > broke_s + UNKNOWN_S for answer in answers),
            "before_s": [each.ended_s - each.began_s for each in others if each.ended_s < broke_s],
            "after_s": [each.ended_s - each.began_s for each in others if each.began_s > broke_s + UNKNOWN_S],
        }

    def close(self) -> None:
        self.router.close()
        self.node.end()


def run(devices: str, standby: str, trials: int) -> dict[str, Any]:
    """All trials, and the p99 of the other cards' requests over all of them."""
    with tempfile.TemporaryDirectory(prefix="osp-hw-") as folder:
        scene = Scene(Path(folder), devices, standby)
        try:
            seen = [scene.trial() for _ in range(trials)]
        except AssertionError:
            sys.stderr.write(scene.node.log)
            raise
        finally:
            scene.close()
    p99_ms = [1e3 * quantiles([s for trial in seen for s in trial[key]], n=100)[98] for key in ("before_s", "after_s")]
    return {
        "cards": scene.cards,
        "standby": standby,
        "trials": trials,
        "answers": sum(trial["answers"] for trial in seen),
        "wrong": sum(trial["wrong"] for trial in seen),
        "lost": [error for trial in seen for error in trial["lost"]],
        "moved": sum(trial["moved"] for trial in seen),
        "moved_ms_median": median(trial["moved_ms"] for trial in seen),
        "of_broken_after": sum(trial["of_broken_after"] for trial in seen),
        "others_p99_before_ms": p99_ms[0],
        "others_p99_after_ms": p99_ms[1],
    }


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw.several_faults", description=__doc__)
    parser.add_argument("--devices", default="fake:4")
    parser.add_argument("--standby", default="full", choices=("off", "context", "full"))
    parser.add_argument("--trials", type=int, default=5)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.devices, given.standby, given.trials), indent=1) + "\n")


if __name__ == "__main__":
    main()
