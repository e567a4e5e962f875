"""What comes from outside: Debian packages through the machine's own apt configuration, wheels through its pip.

No mirror is named here: the one that this machine's apt uses for Debian is asked, with a private apt state, so that the
machine's own lists and packages stay as they are. Only the tools that build and run guests are installed, by root,
where they are missing. Read `tests/softroce/lab/image.py` for what is made of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.softroce.lab.cache import OutsideError


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
_APT_S = 400.0


def run(words: list[str], timeout_s: float, cwd: Path | None = None) -> str:
    """The output of a command. Raises OutsideError with the command and the end of what it said."""
    try:
        done = subprocess.run(words, cwd=cwd, timeout=timeout_s, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OutsideError(f"{words[0]} is not installed: install it, or run the tests as root once") from None
    except subprocess.TimeoutExpired:
        raise OutsideError(
            f"`{' '.join(words)}` took more than {timeout_s:.0f} s: look at the network and the load"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise OutsideError(f"`{' '.join(words)[:200]}` ended with {done.returncode}: {said}")
    return done.stdout


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
        run(["apt-get", *options, "update", "-qq"], _APT_S)
        run(["apt-get", *options, "install", "-y", "-qq", "--no-install-recommends", *names], _APT_S)
    except OutsideError as error:
        raise OutsideError(f"{what} needs {listed}, and apt did not bring it: {error}") from None


def sources(suite: Suite) -> str:
    """Lines for apt of the suite, from the mirrors that this machine's apt uses for Debian."""
    template = "$(REPO_URI) $(LABEL)"
    try:
        said = run(["apt-get", "indextargets", "--format", template, "Created-By: Packages"], 60.0)
    except OutsideError as error:
        raise OutsideError(f"the soft-RoCE lab is built from Debian's packages through apt: {error}") from None
    places = {label: uri for uri, _, label in (line.partition(" ") for line in said.splitlines())}
    if "Debian" not in places:
        raise OutsideError(
            "the soft-RoCE lab is built from Debian's packages, and this machine's apt knows no Debian mirror"
        )
    lines = [f"deb {places['Debian']} {suite.name} main"]
    if "Debian-Security" in places:
        lines.append(f"deb {places['Debian-Security']} {suite.name}-security main")
    return "\n".join(lines) + "\n"


def download(folder: Path, name: str, source_lines: str) -> None:
    """Downloads a package into `folder`, or the one that a package depends on first where `name` ends with "->"."""
    state = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True)
    (state / "sources").write_text(source_lines)
    (state / "status").touch()
    settings = {
        "Dir::Etc::SourceList": state / "sources",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache::archives": state / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    run(["apt-get", *options, "update", "-qq"], _APT_S)
    if name.endswith("->"):
        shown = run(["apt-cache", *options, "show", "--no-all-versions", name.removesuffix("->")], 60.0)
        depends = next((line for line in shown.splitlines() if line.startswith("Depends: ")), "")
        name = depends.removeprefix("Depends: ").split(",")[0].split(" ")[0]
        if not name:
            raise OutsideError("apt knows no kernel package for the soft-RoCE lab: look at its sources")
    run(["apt-get", *options, "download", "-qq", name], _APT_S, cwd=folder)
    shutil.rmtree(state)


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
    run([*words, suite.name, str(root), str(listed)], _APT_S)
    return root


def wheels(root: Path, suite: Suite) -> None:
    """Puts the wheels that the tests need into the guest's Python, in the versions of the development environment."""
    target = root / f"usr/local/lib/python{suite.python}/dist-packages"
    target.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:", "--no-compile"]
    words += ["--python-version", suite.python, "--target", str(target), "--constraint", str(_ROOT / "constraints.txt")]
    run([*words, *WHEELS], _APT_S)


def wheel_versions() -> str:
    """What of the constraints goes into the guest, for the key of the image."""
    return (_ROOT / "constraints.txt").read_text()
