"""Where the round of `overspill demo --lab` takes place: two guests, or this machine with the RDMA device that it has.

Both offer the same few things: processes in two places, a folder for each node, and the three faults of the round. A
cable of our own is cut; that of a real card is not. Read `tests/softroce/lab/demo.py` for the story.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from overspill.demo.running import ledger_lines
from tests.softroce.lab import native, qemu
from tests.softroce.lab.cache import LabError
from tests.softroce.lab.lab import ROOT, Lab, follow
from tests.softroce.lab.own import OwnMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.softroce.lab.guest import Place, Process

NODES = ("remote-1", "remote-2")
SHELL_S = 120.0
PREPARE_S = 240.0
STEP_S, STEP_S_MAX, STEPS = 3.0, 9.0, 75
"""What the step takes that is probed, alone and at most; and what a whole round takes, in times of it. Of processor
time it is 2.6 s, and the first guest needs some 200 until the end of a round."""


class Stage(Protocol):
    """Where the round takes place."""

    places: Sequence[Place]
    slow: bool
    """Whether a ping there may take tenths of a second."""
    inside: str
    """The checkout, as processes there see it."""
    python: str
    python_path: str

    def folder(self, node: int) -> str:
        """Of that node: its registry and ledger."""

    def address(self, node: int) -> str:
        """HOST:PORT of that node's rpc wire."""

    def prepare(self, round_file: Path) -> str:
        """Brings the compiled kernels there, and makes the folders; returns where the round is seen."""

    def read(self, node: int, name: str) -> str:
        """The text of a file in that node's folder. Raises LabError."""

    def ledger(self) -> list[int]:
        """The numbers in the ledger of `remote-2`, as far as it has come."""

    def isolate(self) -> None:
        """Cuts all that leads to `remote-2`, which runs what it has and is then killed: so its ledger is read whole."""

    def do(self, what: str, node: Process) -> str:
        """Cuts, heals, or kills `remote-2`, whose process is `node`; returns what that was done to."""

    def close(self) -> None:
        """Ends everything."""


class Shell:
    """A shell that waits in a guest: to start a program by the agent takes long beside a busy node, since it forks."""

    _LOOP = "while read -r words; do $words && echo shell-done || echo shell-failed; done"

    def __init__(self, place: Place) -> None:
        self._node = place.node
        self._process = place.start(["bash", "-c", self._LOOP])

    def run(self, words: str) -> list[str]:
        """What a command wrote, in lines. Raises LabError when it fails, or does not end in time."""
        self._process.write(f"{words}\n")
        said: list[str] = []
        end_s = time.monotonic() + SHELL_S
        while (line := self._process.line(max(0.0, end_s - time.monotonic()))) is not None and line.stream != "exit":
            if line.text == "shell-done":
                return said
            if line.text == "shell-failed":
                break
            said.append(line.text)
        raise LabError(f"`{words}` failed in guest {self._node}: {' / '.join(said[-3:]) or 'it said nothing'}")


def why_emulated() -> str:
    """Why guests here would have an emulated processor; empty where they would not."""
    return "" if qemu.acceleration() == "kvm" else native.unavailable()


def too_slow(step_s: float, why: str) -> str:
    """Why a round will not end in time, where a first step took so long; else empty. `why` there is no better guest."""
    if step_s <= STEP_S_MAX:
        return ""
    return (
        f"guests are emulated here, and what takes them {STEP_S:.0f} s alone took {step_s:.0f} s, so the round"
        f" would take some {step_s * STEPS / 60:.0f} minutes; free some processors, or use a machine with KVM or an"
        f" RDMA card, or one that can have a user-mode kernel (here: {why})"
    )


def _lab() -> Lab:
    return Lab(2) if qemu.acceleration() == "kvm" or why_emulated() else native.NativeLab(2)


class Guests:
    """Two guests: under QEMU where KVM carries them, else of the user-mode kernel, which is many times faster than an
    emulated processor; emulated where that cannot be had."""

    _FOLDER = "/tmp/demo"
    slow = True

    def __init__(self) -> None:
        self._lab = _lab()
        self._pulls = type(self._lab) is Lab
        self.places: Sequence[Place] = self._lab.guests
        # numba keeps compiled kernels by the path of their sources: they are seen under the same one there.
        self.inside = str(ROOT)
        self.python, self.python_path = "python3", f"{ROOT}:/site"
        self._emulated = why_emulated()
        if self._emulated:
            self.python_path = f"{ROOT}:{self._FOLDER}/site:/site"

    def folder(self, node: int) -> str:
        return self._FOLDER

    def address(self, node: int) -> str:
        return f"10.78.0.{node + 1}:7071"

    def prepare(self, round_file: Path) -> str:
        there = Path("/src", round_file.parent.relative_to(ROOT))
        script = f"mkdir -p {self._FOLDER}/ledger {self._FOLDER}/run && cp -r {there}/numba {self._FOLDER}/numba"
        if self._emulated:
            # To load 180 MB from the machine's share costs a question for each page that is touched: 18 s of processor
            # time for each process that imports numba. To copy them costs three, once.
            script += f" && mkdir -p {self._FOLDER}/site && cp -r /site/llvmlite {self._FOLDER}/site/"
        if self.inside != "/src":
            script += f" && mkdir -p {self.inside} && mount --bind /src {self.inside}"
        for node in range(2):
            code, said = self._lab.run(node, ["bash", "-c", script], PREPARE_S)
            if code:
                raise LabError(f"guest {node} could not be prepared: {said}")
        if self._emulated:
            self._probe()
        self._shells = [Shell(place) for place in self.places]
        return str(there / round_file.name)

    def _probe(self) -> None:
        """Raises LabError where the round would not end in time: what both guests take for a step of a node's start
        tells, whatever else the machine does."""
        began_s = time.monotonic()
        steps = [place.start(["python3", "-c", "import numpy"]) for place in self.places]
        for step in steps:
            follow(step, PREPARE_S)
        step_s = time.monotonic() - began_s
        if reason := too_slow(step_s, self._emulated):
            raise LabError(reason)

    def read(self, node: int, name: str) -> str:
        return str(self.places[node].ask(do="read", path=f"{self._FOLDER}/{name}"))

    def ledger(self) -> list[int]:
        return [int(line) for line in self._shells[1].run(f"cat {self._FOLDER}/ledger/ledger-*.log")]

    def do(self, what: str, node: Process) -> str:
        if what == "kill":
            self._lab.guests[1].kill()
            return NODES[1]
        self._cable(0, up=what == "heal")
        return "rxe0"

    def isolate(self) -> None:
        """Nobody reaches the second guest any more."""
        for card in range(2):
            self._cable(card, up=False)

    def _cable(self, card: int, *, up: bool) -> None:
        """Pulls or plugs what is between two cards; where nobody can, both drop all that they are to send."""
        if self._pulls:
            self._lab.guests[1].cable(card, up=up)
            return
        for shell in self._shells:
            shell.run(f"tc qdisc {'del' if up else 'replace'} dev eth{card} root netem loss 100%")

    def close(self) -> None:
        self._lab.close()


class Own:
    """This machine, with the RDMA device that it has."""

    slow = False

    def __init__(self, device: str) -> None:
        self._machine, self._device = OwnMachine(device), device
        self.places: Sequence[Place] = [*self._machine.guests, *self._machine.guests]
        self.inside, self.python, self.python_path = str(ROOT), sys.executable, str(ROOT)
        self._folder = Path(tempfile.mkdtemp(prefix="osp-"))

    def folder(self, node: int) -> str:
        return str(self._folder / f"n{node}")

    def address(self, node: int) -> str:
        return f"127.0.0.1:{7071 + node}"

    def prepare(self, round_file: Path) -> str:
        for node in range(2):
            for inner in ("ledger", "run"):
                Path(self.folder(node), inner).mkdir(parents=True, mode=0o700)
            shutil.copytree(round_file.parent / "numba", Path(self.folder(node), "numba"))
        return str(round_file)

    def read(self, node: int, name: str) -> str:
        return Path(self.folder(node), name).read_text(encoding="utf-8")

    def ledger(self) -> list[int]:
        return ledger_lines(Path(self.folder(1), "ledger"), {})

    def do(self, what: str, node: Process) -> str:
        if what == "kill":
            node.signal(9)
            return NODES[1]
        netdev = "osp-dummy"
        if not Path("/sys/class/net", netdev).exists():
            return f"nothing: {self._device} is in use"
        subprocess.run(["ip", "link", "set", netdev, "up" if what == "heal" else "down"], timeout=30, check=False)
        return self._device

    def isolate(self) -> None:
        """Its ledger is read after its end, from this machine's own disk."""

    def close(self) -> None:
        self._machine.close()
        shutil.rmtree(self._folder, ignore_errors=True)
