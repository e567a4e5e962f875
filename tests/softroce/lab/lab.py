"""One guest or two, ready to run things; the faults that a test may ask for; the end of it all.

A lab belongs to one process and ends with it: its folder goes, its guests are killed. Read
`tests/softroce/lab/guest.py` for a single guest, `tests/softroce/lab/remote.py` for how tests get into one.
"""

from __future__ import annotations

import compileall
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.softroce.lab import emulated, image, packages, qemu, snapshot
from tests.softroce.lab.agent import PLAIN_NET, RDMA_NET
from tests.softroce.lab.cache import LabError, cache_folder

if TYPE_CHECKING:
    from tests.softroce.lab.guest import Guest, Process
    from tests.softroce.lab.packages import Suite

ROOT = Path(__file__).resolve().parents[3]
MEET_S = 60.0


class Lab:
    """`nodes` guests: one with two CPUs, so that something may spin in it, or two with one CPU each."""

    def __init__(self, nodes: int, suite: Suite = packages.BOOKWORM, root: Path = ROOT) -> None:
        assert nodes in (1, 2)
        self.nodes = nodes
        self._root = root
        self._image = image.build(suite)
        self._shape = qemu.shape_for(nodes)
        self._memory = snapshot.snapshot(self._image, self._shape)
        _compile(root)
        # Short, because the path of a Unix socket has 107 bytes at most (unix(7)).
        self._folder = Path(tempfile.mkdtemp(prefix="r-", dir=cache_folder()))
        self.guests: list[Guest] = []
        try:
            self.guests = [self._start(node) for node in range(nodes)]
            for each in self.guests:
                each.wait_ready()
            self.meet()
        except BaseException:  # no guest must outlive it
            self.close()
            raise

    def _start(self, node: int) -> Guest:
        return emulated.start(self._image, self._shape, self._memory, self._root, node, self.nodes, self._folder)

    def meet(self) -> None:
        """Until both guests reach each other over both cards, so that no test has to wait for a neighbour."""
        if self.nodes == 1:
            return
        end_s = time.monotonic() + MEET_S
        for node in range(self.nodes):
            for net in (RDMA_NET, PLAIN_NET):
                while self.run(node, ["ping", "-c1", "-W1", "-q", f"{net}.{2 - node}"], 20.0)[0] != 0:
                    if time.monotonic() > end_s:
                        raise LabError(f"guest {node} does not reach the other over {net}.0/24")

    def run(self, node: int, words: list[str], timeout_s: float) -> tuple[int, str]:
        """(exit code, all that it wrote) of a command. Raises LabError when it takes too long; it is killed then."""
        process = self.guests[node].start(words)
        code, said = follow(process, timeout_s)
        return code, "\n".join(said)

    def restart(self, node: int) -> None:
        """A guest that was killed comes back, as a machine after a power cut."""
        self.guests[node].kill()
        self.guests[node].forget()
        for card in range(2):
            (self._folder / f"w{card}{node}").unlink(missing_ok=True)
        self.guests[node] = self._start(node)
        self.guests[node].wait_ready()
        self.meet()

    def heal(self) -> None:
        """Undoes cables and pauses; raises LabError for a guest that is gone."""
        for each in self.guests:
            if not each.alive():
                raise LabError(f"guest {each.node} is gone: {each.last_words()}")
            each.resume()
            for card in range(2):
                each.cable(card, up=True)

    def close(self) -> None:
        """Ends the guests."""
        for each in self.guests:
            with contextlib.suppress(LabError, OSError):
                each.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compile(root: Path) -> None:
    """Compiles what the guests will import, where both Pythons are alike: emulated, it takes long."""
    if not other_python():
        for name in ("fabric", "workers", "router", "discovery", "overspill", "tests/contract", "tests/softroce"):
            compileall.compile_dir(root / name, quiet=2)


def other_python(version: tuple[int, int] = sys.version_info[:2]) -> str:
    """Why guests of Debian 12 cannot import the packages of this environment, as the demo does; empty if they can."""
    theirs = packages.BOOKWORM.python
    if version == tuple(map(int, theirs.split("."))):
        return ""
    return (
        f"its guests have Python {theirs} and import numba from .venv, which is of Python {version[0]}.{version[1]}: "
        f"take .venv away, then run `make demo PYTHON=python{theirs} ARGS=--lab`"
    )


def follow(process: Process, timeout_s: float) -> tuple[int, list[str]]:
    """The exit code and the lines of a process. Raises LabError when it takes too long; it is killed then."""
    said: list[str] = []
    end_s = time.monotonic() + timeout_s
    while process.code is None:
        line = process.line(max(0.0, end_s - time.monotonic()))
        if line is None:
            process.signal(9)
            raise LabError(f"a command in the guest took more than {timeout_s:.0f} s; it said: {' / '.join(said[-5:])}")
        if line.stream != "exit":
            said.append(line.text)
    return process.code, said


def unavailable(suite: Suite = packages.BOOKWORM) -> str:
    """Why this machine cannot have guests, as far as a glance tells; empty if it can."""
    import os
    import platform

    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return f"the soft-RoCE guests are x86-64 Linux, and this is {platform.system()} on {platform.machine()}"
    missing = packages.missing_tools()
    if missing and os.geteuid() != 0:
        return f"needs QEMU: run `apt install {' '.join(missing)}`"
    built = (cache_folder() / f"image-{image.image_key(suite)}").is_dir()
    if not built and os.geteuid() != 0:
        return "the guests' image is not built yet: run `sudo -E python -m tests.softroce.lab build` once"
    if not missing:
        version = packages.run([qemu.QEMU, "--version"], 20.0).split("version ", 1)[1].split(".")
        if (int(version[0]), int(version[1])) < (7, 2):
            return f"needs QEMU 7.2 or newer for a wire between guests, and this is {version[0]}.{version[1]}"
    return ""
