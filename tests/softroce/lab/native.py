"""Guests of a user-mode kernel: user code at this machine's own speed, for volume and for what things cost.

Each is a process of this machine with one processor, no QEMU and no snapshot: it boots in a second. What two of them
send each other goes through pairs of sockets. A page fault and a switch of threads are dear there, so figures compare
within one run only; cables cannot be pulled and CPUs not be stopped. Read `tests/softroce/lab/uml_kernel.py` for the
kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.softroce.lab import image, kernel, uml_kernel
from tests.softroce.lab.cache import LabError, cache_folder
from tests.softroce.lab.emulated import shares
from tests.softroce.lab.guest import Guest
from tests.softroce.lab.lab import ROOT, Lab

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY_MB = 2048
"""What is not touched costs nothing."""
PACKET_BYTES = 4300
"""What a card takes: the agent's MTU, and what stands before it."""
SOCKET_BYTES = 8 << 20
"""Room for what the other guest has not read: the default of 208 KiB drops packets of a large write."""
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
LEASH_OF_ALL = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--")
"""The kernel's own processes end with it, however it ends: it is the first of their process space, which root makes."""
MEMORY_FOLDER = "/dev/shm"
"""A user-mode kernel wants its memory in a file; this one lies in memory."""


class NativeGuest(Guest):
    """One guest. `cards` are this guest's ends of the two wires, none for a single guest."""

    def __init__(self, node: int, nodes: int, folder: Path, words: list[str], cards: Sequence[socket.socket]) -> None:
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), *(card.fileno() for card in cards))
        words = [*words, f"con1=fd:{theirs.fileno()}", f"lab.node={node}", f"lab.nodes={nodes}", f"uml_dir={folder}/"]
        for number, card in enumerate(cards):
            mac = f"52:54:00:12:3{number}:0{node + 1}"
            words.append(f"vec{number}:transport=fd,fd={card.fileno()},mtu={PACKET_BYTES},depth=128,mac={mac}")
        super().__init__(node, folder, words, fds)
        theirs.close()
        self._listen(ours)


def _words(kernel_file: Path, initrd: Path, root_image: Path, root: Path) -> list[str]:
    source, site = shares(root)
    return [
        *(LEASH_OF_ALL if os.geteuid() == 0 else ()),
        "env", f"TMPDIR={MEMORY_FOLDER}", str(kernel_file), f"mem={MEMORY_MB}M", f"initrd={initrd}",
        f"ubd0r={root_image}", "con=null", "con0=null,fd:1", "quiet", "random.trust_cpu=on",
        f"lab.src={source}", f"lab.site={site}",
    ]  # fmt: skip


def _kept(node: int, nodes: int) -> tuple[str, ...]:
    """Keeps one of two guests on a processor of its own. Its kernel and its processes take turns, and a turn that goes
    to another processor costs tens of microseconds: a ping-pong through a node took 1.03 ms so, and 0.51 on one."""
    processors = sorted(os.sched_getaffinity(0))
    if nodes == 1 or len(processors) < nodes:
        return ()
    return ("taskset", "--cpu-list", str(processors[node]))


def initramfs(folder: Path) -> Path:
    """One busybox and the first program, written to `folder`."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabError("busybox is not installed: run `apt install busybox-static`")
    first = (Path(__file__).resolve().parent / "guest/uml_init").read_bytes()
    path = folder / "initrd"
    path.write_bytes(kernel.archive([("bin/busybox", 0o100755, Path(busybox).read_bytes()), ("init", 0o100755, first)]))
    return path


class NativeLab(Lab):
    """One guest or two."""

    def __init__(self, nodes: int, root: Path = ROOT) -> None:
        self.nodes = nodes
        self.guests = []
        self._folder = Path(tempfile.mkdtemp(prefix="u-", dir=cache_folder()))
        try:
            words = _words(uml_kernel.build(), initramfs(self._folder), image.build().root, root)
            for node, cards in enumerate(_wires(nodes)):
                own = self._folder / f"g{node}"
                own.mkdir()
                self.guests.append(NativeGuest(node, nodes, own, [*_kept(node, nodes), *words], cards))
                for card in cards:
                    card.close()
            for each in self.guests:
                each.wait_ready()
            self.meet()
        except BaseException:  # no guest must outlive it
            self.close()
            raise

    def restart(self, node: int) -> None:
        """No test may ask for it: the other guest's card would have to be another one."""
        raise LabError(f"guest {node} of a user-mode kernel does not come back")

    def heal(self) -> None:
        """Nothing can be broken but by killing."""
        for each in self.guests:
            if not each.alive():
                raise LabError(f"guest {each.node} is gone: {each.last_words()}")


def _wires(nodes: int) -> list[list[socket.socket]]:
    """Each guest's cards."""
    if nodes == 1:
        return [[]]
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for end in (end for pair in pairs for end in pair):
        for option, plain in ((SO_SNDBUFFORCE, socket.SO_SNDBUF), (SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            try:
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
            except PermissionError:  # a plain user gets what the system allows
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, plain, SOCKET_BYTES)
    return [[pair[node] for pair in pairs] for node in range(nodes)]


def unavailable() -> str:
    """Why this machine cannot have such guests, as far as a glance tells; empty if it can."""
    if not os.path.isdir(MEMORY_FOLDER):  # noqa: PTH112 - one question
        return f"there is no {MEMORY_FOLDER}"
    return uml_kernel.unavailable()
