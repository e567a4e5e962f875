"""One QEMU process: its command line, its monitor, and whether this machine can run guests on its own CPU.

A guest has two network cards. The first carries RDMA and is the one whose cable tests pull; the second stays up, so
that a wire without RDMA has a way of its own. Both end in the other guest: nothing reaches the machine's network.
Read `tests/softroce/lab/snapshot.py` next.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.softroce.lab.cache import LabError, cache_folder

if TYPE_CHECKING:
    from tests.softroce.lab.image import Image

QEMU = "qemu-system-x86_64"
TCG_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdrand"
"""What numpy needs, and no more: under emulation the CRC with PCLMUL and long `rep movsb` copies cost half of a WRITE's
speed (41 MB/s with `max`, 113 to 118 without)."""
MONITOR_S = 30.0
KERNEL_WORDS = (
    "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on "
    "apparmor=0 selinux=0 audit=0 nowatchdog rcupdate.rcu_expedited=1"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a snapshot depends on."""

    cpus: int
    memory_mb: int


def shape_for(nodes: int) -> Shape:
    """One guest holds both ends, and may have something spinning; memory that is not touched costs nothing."""
    return Shape(2, 2560) if nodes == 1 else Shape(1, 1536)


class Monitor:
    """QEMU's machine protocol over its Unix socket. Every wait has a deadline."""

    def __init__(self, path: Path) -> None:
        self._socket = connect(path)
        self._socket.settimeout(MONITOR_S)
        self._file = self._socket.makefile("rwb")
        self._file.readline()
        self.ask("qmp_capabilities")

    def ask(self, name: str, /, **arguments: object) -> Any:
        """The answer to one command. Raises LabError when QEMU refuses, is gone or is silent."""
        try:
            self._file.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
            self._file.flush()
            while True:
                line = self._file.readline()
                if not line:
                    raise LabError(f"QEMU ended before it answered {name}: its own words are in its log")
                said = json.loads(line)
                if "error" in said:
                    raise LabError(f"QEMU refused {name}: {said['error']['desc']}")
                if "return" in said:
                    return said["return"]
        except OSError as error:
            raise LabError(f"QEMU did not answer {name}: {error}") from None

    def close(self) -> None:
        """Leaves the monitor; the guest goes on."""
        self._file.close()
        self._socket.close()


def connect(path: Path, timeout_s: float = MONITOR_S) -> socket.socket:
    """A connection to a socket that QEMU makes as it starts. Raises LabError."""
    end_s = time.monotonic() + timeout_s
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
        except OSError:
            made.close()
            if time.monotonic() > end_s:
                raise LabError(
                    f"QEMU did not open {path.name} within {timeout_s:.0f} s: the machine is too busy"
                ) from None
            time.sleep(0.02)
        else:
            return made


@functools.cache
def acceleration() -> str:
    """`kvm` where guests really run on this machine's CPU, else `tcg`, which emulates one.

    A device node that can be opened proves nothing: a guest of four instructions is run, which must report its end.
    That was seen to succeed where no kernel boots, so a snapshot that cannot be made is remembered (`distrust_kvm`).
    """
    if _distrust().exists() or not os.access("/dev/kvm", os.R_OK | os.W_OK) or shutil.which(QEMU) is None:
        return "tcg"
    image = bytearray(b"\xf4" * 65_536)
    image[0xFFF0:0xFFF5] = b"\xb0\x10\xe6\xf4\xf4"  # at the reset vector: mov al,0x10; out 0xf4,al; hlt
    words = [
        QEMU,
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-M",
        "q35",
        "-m",
        "16",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
    ]
    with tempfile.NamedTemporaryFile(suffix=".bin") as firmware:
        firmware.write(image)
        firmware.flush()
        words += ["-bios", firmware.name, "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
        try:
            done = subprocess.run(words, timeout=10, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return "tcg"
    return "kvm" if done.returncode == (0x10 << 1) | 1 else "tcg"  # isa-debug-exit's own rule for the exit code


def distrust_kvm() -> None:
    """From now on this machine's guests are emulated; `python -m tests.softroce.lab clean` forgets it."""
    _distrust().touch()
    acceleration.cache_clear()


def _distrust() -> Path:
    return Path(cache_folder(), "kvm-does-not-boot")


def command(image: Image, shape: Shape, folder: Path, shares: tuple[Path, Path], wires: tuple[str, str]) -> list[str]:
    """QEMU's words for one guest. `shares`: checkout and site-packages; `wires`: the two cards' other ends."""
    kvm = acceleration() == "kvm"
    words = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35"]
    words += [
        "-accel",
        "kvm" if kvm else "tcg,thread=multi,tb-size=256",
        "-cpu",
        "host,migratable=on" if kvm else TCG_CPU,
    ]
    words += ["-smp", str(shape.cpus), "-m", str(shape.memory_mb)]
    words += ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", KERNEL_WORDS]
    words += ["-drive", f"file={image.root},if=none,id=d0,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=d0"]
    words += ["-serial", f"file:{folder}/console"]
    words += ["-chardev", f"socket,id=go,path={folder}/go,server=on,wait=off", "-serial", "chardev:go"]
    words += ["-qmp", f"unix:{folder}/qmp,server=on,wait=off", "-device", "virtio-serial-pci"]
    words += ["-chardev", f"socket,id=talk,path={folder}/talk,server=on,wait=off"]
    words += ["-device", "virtserialport,chardev=talk,name=lab.talk"]
    for tag, path in zip(("src", "site"), shares, strict=True):
        words += ["-fsdev", f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"]
        words += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    for number, wire in enumerate(wires):
        words += ["-netdev", f"{wire},id=net{number}"]
        words += ["-device", f"virtio-net-pci,netdev=net{number},mac=52:54:00:12:3{number}:00,romfile=,host_mtu=9000"]
    return words
