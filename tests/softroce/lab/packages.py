"""What of the lab comes from outside: Debian packages by `tests/debian.py`, wheels through this machine's pip.

Only the tools that build and run guests are installed, by root, where they are missing. Read
`tests/softroce/lab/image.py` for what is made of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests import debian
from tests.softroce.lab.cache import OutsideError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Suite:
    """A release of Debian, and the version of its Python, for which it has pyverbs."""

    name: str
    python: str


BOOKWORM = Suite("bookworm", "3.11")
"""Debian 12, kernel 6.1, pyverbs 44: the timings in the tests are those of its rdma_rxe."""
TRIXIE = Suite("trixie", "3.13")
"""Debian 13, kernel 6.12, pyverbs 56."""
SUITES = {suite.name: suite for suite in (BOOKWORM, TRIXIE)}
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "busybox": "busybox-static",
    "mke2fs": "e2fsprogs",
}
GUEST_PACKAGES = (
    "bash,busybox-static,coreutils,ethtool,gawk,grep,hostname,ibverbs-providers,ibverbs-utils,iproute2,iputils-ping,"
    "kmod,libc-bin,libstdc++6,mount,perftest,procps,python3,python3-pyverbs,rdma-core,sed,util-linux"
)
WHEELS = ("numpy", "grpcio", "tenacity", "pytest", "pytest-timeout")
_ROOT = Path(__file__).resolve().parents[3]


def run(words: list[str], timeout_s: float, cwd: Path | None = None) -> str:
    """The output of a command. Raises OutsideError with the command and the end of what it said."""
    with _outside():
        return debian.run(words, timeout_s, cwd)


@contextmanager
def _outside() -> Iterator[None]:
    """What cannot be had makes the lab's tests skip, by an error of the lab's."""
    try:
        yield
    except debian.DebianError as error:
        raise OutsideError(str(error)) from None


def missing_tools() -> list[str]:
    """The Debian packages of the tools that this machine lacks."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def install_tools() -> None:
    """Installs what is missing. Raises OutsideError where that needs somebody else."""
    missing = missing_tools()
    if missing:
        install(missing, "the soft-RoCE lab")


def install(names: list[str], what: str) -> None:
    """Installs Debian packages that `what` needs. Raises OutsideError where that needs somebody else."""
    listed = " and ".join(names)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise OutsideError(f"{what} needs {listed}: install with `apt install {' '.join(names)}`")
    options = ["-o", "DPkg::Lock::Timeout=120"]
    try:
        run(["apt-get", *options, "update", "-qq"], debian.APT_S)
        run(["apt-get", *options, "install", "-y", "-qq", "--no-install-recommends", *names], debian.APT_S)
    except OutsideError as error:
        raise OutsideError(f"{what} needs {listed}, and apt did not bring it: {error}") from None


def sources(suite: Suite) -> str:
    """Lines for apt of the suite, from the mirrors that this machine's apt uses for Debian."""
    try:
        return debian.sources(suite.name, security=True)
    except debian.DebianError as error:
        raise OutsideError(f"the soft-RoCE lab is built from Debian's packages through apt: {error}") from None


def download(folder: Path, name: str, source_lines: str) -> None:
    """Downloads a package into `folder`, or the one that a package depends on first where `name` ends with "->"."""
    with _outside():
        debian.download([name], source_lines, folder)


def kernel_package(folder: Path, source_lines: str) -> Path:
    """Downloads the suite's kernel package into `folder`."""
    download(folder, "linux-image-amd64->", source_lines)
    return next(folder.glob("linux-image-*.deb"))


def root_tree(folder: Path, source_lines: str, suite: Suite) -> Path:
    """Unpacks the guest's packages into `folder`/root, without running their scripts, which take ten times as long."""
    root, listed = folder / "root", folder / "sources.list"
    listed.write_text(source_lines)
    words = ["mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--format=directory"]
    words += [f"--include={GUEST_PACKAGES}", "--dpkgopt=path-exclude=/usr/share/doc/*"]
    run([*words, suite.name, str(root), str(listed)], debian.APT_S)
    return root


def wheels(root: Path, suite: Suite) -> None:
    """Puts the wheels that the tests need into the guest's Python, in the versions of the development environment."""
    target = root / f"usr/local/lib/python{suite.python}/dist-packages"
    target.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:", "--no-compile"]
    words += ["--python-version", suite.python, "--target", str(target), "--constraint", str(_ROOT / "constraints.txt")]
    run([*words, *WHEELS], debian.APT_S)


def wheel_versions() -> str:
    """What of the constraints goes into the guest, for the key of the image."""
    return (_ROOT / "constraints.txt").read_text()
