"""`overspill demo --lab`: one dispatch round over rdma, with a node in each of two soft-RoCE guests.

The client and the node `remote-1` are in the first guest, `remote-2` in the second. The cable of the RDMA cards is
pulled and plugged in again under the round, then the second guest loses its power. A machine with an RDMA device, or
one that can make a soft one, is used in place of the guests: both nodes are processes there, and the link is cut only
where it is one of our own. Whatever happens, no guest outlives the command. Read `tests/softroce/lab/scene.py` for the
places, `dispatch.py` for the client, `making.py` for the round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from fabric.errors import Unavailable
from tests.softroce.lab.cache import LabError
from tests.softroce.lab.dispatch import LEASE
from tests.softroce.lab.lab import ROOT, other_python, unavailable
from tests.softroce.lab.own import own_device
from tests.softroce.lab.scene import NODES, Guests, Own, Stage, why_emulated

if TYPE_CHECKING:
    from pathlib import Path

    from tests.softroce.lab.guest import Process

WHOLE_S = 900.0
"""From the guests to the report; on two quiet cores without KVM it takes about a third of that."""
MAKE_S = 300.0
ROUNDS, ROUNDS_EMULATED = 3, 1
"""Of about 47 shards each: together a dozen seconds of work for two guests of the user-mode kernel. On emulated
processors a third of it takes minutes."""
SETTLE_S = 0.5
"""A node that nobody reaches any more has soon run what it held: when its ledger has not grown for so long."""
MODELS = "examples/dispatch/models"
LOADED = ("route_plan", "etr", "ledger")


def show(seed: int, report: Path, *, faults: bool) -> int:
    """Runs it; returns 0, or 1 when something was lost, wrong or duplicated. Raises Unavailable, in one sentence, where
    there is no lab."""
    try:
        emulated = not own_device() and bool(why_emulated())
        round_file = _made(seed, ROUNDS_EMULATED if emulated else ROUNDS)
        try:
            with closing(_stage()) as stage:
                return Story(stage, seed, report, faults=faults).run(round_file)
        finally:
            round_file.unlink(missing_ok=True)
            round_file.with_suffix(LEASE).unlink(missing_ok=True)
    except LabError as error:
        raise Unavailable(f"the lab failed: {error}") from None


def _made(seed: int, rounds: int) -> Path:
    """The round and its routes, made in a process of its own: compiled kernels depend on settings of numba that must be
    there before it is imported."""
    _tell("making the round, and the routes that must come out")
    folder = ROOT / ".cache" / "lab-demo"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{os.getpid()}.npz"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(folder / "numba")}
    words = [sys.executable, "-m", "tests.softroce.lab.making", str(path), str(seed), str(rounds)]
    try:
        done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=MAKE_S, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"the round was not made within {MAKE_S:.0f} s; the machine is too busy") from None
    if done.returncode:
        raise LabError(f"the round could not be made: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return path


def _stage() -> Stage:
    if device := own_device():
        _tell(f"using this machine's RDMA device {device} in place of guests")
        return Own(device)
    if reason := unavailable() or other_python():
        raise LabError(reason)
    _tell("starting two guests (the first time they are built, which takes some minutes)")
    return Guests()


class Story:  # mutable: one round
    """Starts the nodes and the client, and does what the client asks for."""

    def __init__(self, stage: Stage, seed: int, report: Path, *, faults: bool) -> None:
        self._stage, self._seed, self._report, self._faults = stage, seed, report, faults
        self._end_s = time.monotonic() + WHOLE_S
        self._nodes: list[Process] = []
        self._said: dict[int, list[str]] = {}
        self._kept: list[int] | None = None

    def run(self, round_file: Path) -> int:
        """The whole of it."""
        stage = self._stage
        path = stage.prepare(round_file)
        _tell(f"starting nodes: {' and '.join(NODES)} (rdma, and rpc beside it), and their client")
        self._nodes = [self._start_node(node) for node in range(2)]
        words = [stage.folder(0), path]
        client = stage.places[0].start(words, "tests.softroce.lab.dispatch", self._env(0))
        ready = self._await_ready(client)
        _tell(f"{ready['ready']} jobs are sent")
        round_file.with_suffix(LEASE).write_text(stage.read(1, f"registry/{NODES[1]}.lease"), encoding="utf-8")
        order = {"seed": self._seed, "faults": self._faults, "slow": stage.slow}
        client.write(json.dumps(order) + "\n")
        while "clean" not in (said := self._next(client)):
            if "tell" in said:
                _tell(said["tell"])
            else:
                client.write(json.dumps(self._answer(said["ask"])) + "\n")
        sys.stdout.write(f"{said['text']}\n\nreport: {self._report}\n")
        self._report.write_text(stage.read(0, "report.html"), encoding="utf-8")
        return 0 if said["clean"] else 1

    def _env(self, node: int) -> dict[str, str]:
        folder, stage = self._stage.folder(node), self._stage
        return {
            "PYTHONPATH": stage.python_path,
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CACHE_DIR": f"{folder}/numba",
            "OVERSPILL_LEDGER_DIR": f"{folder}/ledger",
            "XDG_RUNTIME_DIR": f"{folder}/run",
        }

    def _start_node(self, node: int) -> Process:
        stage = self._stage
        # A program of its own, and no fork of the guest's agent: executors import from where their node did.
        words = [stage.python, "-P", "-m", "overspill", "node", "--registry", f"dir:{stage.folder(node)}/registry"]
        words += ["--node-id", NODES[node], "--models", f"{stage.inside}/{MODELS}", "--listen", stage.address(node)]
        words += ["--wires", "rdma,rpc", "--devices", "cpu:1", "--model-control", "explicit"]
        words += [word for model in LOADED for word in ("--load-model", model)]
        return stage.places[node].start(words, env=self._env(node))

    def _await_ready(self, client: Process) -> dict[str, Any]:
        """Until both nodes serve and the client has what must come out; returns the client's word."""
        waiting, word = list(self._nodes), dict[str, Any]()
        while waiting or not word:
            for node in tuple(waiting):
                if any("is ready at" in line for line in self._heard(node)):
                    waiting.remove(node)
            if not word:
                word = self._word(client) or {}
        return word

    def _next(self, client: Process) -> dict[str, Any]:
        while (word := self._word(client)) is None:
            for node in self._nodes:
                self._heard(node, must_live=False)
        return word

    def _word(self, client: Process) -> dict[str, Any] | None:
        """The client's next word, if it says one soon."""
        for line in self._heard(client):
            if line.startswith("{"):
                return dict(json.loads(line))
        return None

    def _heard(self, process: Process, *, must_live: bool = True) -> list[str]:
        """A line that the process says soon. Raises LabError when it has ended, or all is taking too long."""
        if time.monotonic() > self._end_s:
            raise LabError(
                f"the round did not end within {WHOLE_S:.0f} s; free some processors, or use a machine with KVM"
            )
        said = self._said.setdefault(id(process), [])
        line = process.line(0.1) if process.code is None else None
        if process.code is not None:
            if must_live:
                raise LabError(f"a process of the round ended with {process.code}: {' / '.join(said[-3:])}")
            return []
        if line is None:
            return []
        said.append(line.text)
        del said[:-20]
        return [line.text]

    def _answer(self, what: str) -> dict[str, Any]:
        stage = self._stage
        if what == "ledger":
            return {"lines": self._kept if self._kept is not None else self._ledger()}
        if what == "kill":
            stage.isolate()
            self._kept = self._ledger()
        return {"done": stage.do(what, self._nodes[1])}

    def _ledger(self) -> list[int]:
        """The numbers in the second node's ledger, once it does not grow any more."""
        before: list[int] = []
        while True:
            time.sleep(SETTLE_S)
            lines = self._stage.ledger()
            if lines == before or time.monotonic() > self._end_s:
                return lines
            before = lines


def _tell(line: str) -> None:
    sys.stderr.write(f"· {line}\n")
    sys.stderr.flush()
