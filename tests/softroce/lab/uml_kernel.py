"""A user-mode kernel with soft-RoCE built in, made from Debian's kernel source: Linux as a process of this machine.

Debian's own `user-mode-linux` has no RDMA, since a kernel without I/O memory may not choose it; one that has PCI over
virtio may. It takes some five minutes of two processors, once, and is kept. Guests of it run user code at the speed of
this machine, which emulation does not; faults of cables and of CPUs belong to QEMU's. Read
`tests/softroce/lab/native.py` next.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.softroce.lab import packages
from tests.softroce.lab.cache import LabError, cache_folder, forget_others, key_of, locked

SOURCE = "linux-source-6.1"
"""Of Debian 12: the same kernel as that of the emulated guests."""
CONFIG = Path(__file__).resolve().parent / "guest" / "uml.config"
TOOLS = {"flex": "flex", "bison": "bison", "bc": "bc", "make": "make", "gcc": "gcc"}
_UNPACK_S, _MAKE_S = 300.0, 3000.0
_LEFT_OUT = (
    "*/drivers/gpu/drm/*.[ch]", "*/drivers/net/ethernet/*.[ch]", "*/drivers/media/*.[ch]", "*/drivers/staging/*.[ch]",
    "*/sound/*.[ch]", "*/tools/testing/*", "*/Documentation/*/*",
)  # fmt: skip
"""Most of the source, and nothing that a user-mode kernel is made of; their Makefiles stay."""
_CARD = "arch/um/drivers/vector_kern.c"
_CARD_LINE = "\tdev->mtu = get_mtu(def);"
"""Behind it a card's largest MTU is set, which the driver leaves at 1,500: RDMA wants packets of 4,096 bytes."""


def kernel_path() -> Path:
    """Where it is, or would be."""
    source = Path(__file__).read_bytes()
    return cache_folder() / f"uml-{key_of(CONFIG.read_bytes(), source, platform.machine())}"


def unavailable() -> str:
    """Why this machine cannot have it, as far as a glance tells; empty if it can."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return f"a user-mode kernel is x86-64 Linux, and this is {platform.system()} on {platform.machine()}"
    if not kernel_path().exists() and os.geteuid() != 0:
        return (
            "the user-mode kernel is not built yet: run `sudo -E python -m tests.softroce.lab build --kind native` once"
        )
    return ""


def build() -> Path:
    """The kernel, built if it is not there. Raises OutsideError where it cannot be had."""
    path = kernel_path()
    if path.exists():
        path.touch()
        return path
    with locked("uml"):
        if not path.exists():
            _install()
            with tempfile.TemporaryDirectory(prefix="building-", dir=cache_folder()) as work:
                _build(Path(work), path)
            forget_others(cache_folder(), "uml-", {path.name})
    return path


def _install() -> None:
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        packages.install(missing, "a user-mode kernel")


def _build(work: Path, path: Path) -> None:
    packages.download(work, SOURCE, packages.sources(packages.BOOKWORM))
    package = next(work.glob(f"{SOURCE}_*.deb"))
    source = work / "src"
    source.mkdir()
    unpack = ["tar", "-xJ", "-C", str(source), "--strip-components=1", "--wildcards"]
    unpack += [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as whole,
        subprocess.Popen(
            ["tar", "-xO", f"./usr/src/{SOURCE}.tar.xz"], stdin=whole.stdout, stdout=subprocess.PIPE
        ) as inner,
    ):
        subprocess.run(unpack, stdin=inner.stdout, check=True, timeout=_UNPACK_S)
    card = source / _CARD
    text = card.read_text()
    if _CARD_LINE not in text:
        raise LabError(f"{SOURCE} has another {_CARD} than the lab knows: see what sets a card's MTU there")
    card.write_text(text.replace(_CARD_LINE, f"{_CARD_LINE}\n\tdev->max_mtu = 65000;"))
    make = ["nice", "make", "-s", "-C", str(source), "ARCH=um", "SUBARCH=x86_64"]
    packages.run([*make, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig"], _UNPACK_S)
    if "CONFIG_RDMA_RXE=y" not in (source / ".config").read_text():
        raise LabError(f"{SOURCE} builds no soft-RoCE with the lab's configuration: see what it depends on now")
    packages.run([*make, f"-j{os.cpu_count() or 1}", "linux"], _MAKE_S)
    packages.run(["strip", "-o", str(work / "uml"), str(source / "linux")], 60.0)
    (work / "uml").rename(path)
