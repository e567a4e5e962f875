"""Debian packages of any release, for tests: fetched through this machine's own apt, checked by apt's own signatures.

No mirror is named here: the one that this machine's apt uses for Debian is asked, with a private apt state, so that the
machine's own lists and packages stay as they are, and nothing is installed. Packages are kept in one folder outside of
the checkout. Where apt, a Debian mirror or the network is missing, `DebianError` says so in a sentence for a skip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT_S = 240.0
LOCK_S = 600.0


class DebianError(Exception):
    """A package cannot be had: one sentence that says what is missing."""


def cache_folder(*names: str) -> Path:
    """A folder under $XDG_CACHE_HOME/overspill (or ~/.cache/overspill), made when it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base, "overspill", *names)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock over processes, so that two test runs do not build one thing twice. Raises DebianError."""
    end_s = time.monotonic() + LOCK_S
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise DebianError(f"another process has held {path} for {LOCK_S:.0f} s; see what it does") from None
                time.sleep(0.2)
        yield


def run(words: Sequence[str], timeout_s: float, cwd: Path | None = None) -> str:
    """The output of a command. Raises DebianError with the command and the end of what it said."""
    try:
        done = subprocess.run(words, cwd=cwd, timeout=timeout_s, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DebianError(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DebianError(f"`{' '.join(words)[:200]}` took more than {timeout_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-400:]
        raise DebianError(f"`{' '.join(words)[:200]}` ended with {done.returncode}: {said}")
    return done.stdout


def mirror() -> str:
    """The address of the Debian archive that this machine's apt uses. Raises DebianError where there is none."""
    said = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"], 60.0)
    for line in said.splitlines():
        uri, _, label = line.partition(" ")
        if label == "Debian":
            return uri
    # The label stands in the lists, which a new machine has not fetched yet: the sources' own options tell as much.
    for line in run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(SIGNED_BY)"], 60.0).splitlines():
        uri, _, key = line.partition(" ")
        if "debian-archive-keyring" in key and "security" not in uri:
            return uri
    raise DebianError("this machine's apt knows no Debian mirror")


def sources(suite: str) -> str:
    """The line for apt of one release's main packages."""
    if not Path(KEYRING).exists():
        raise DebianError(f"{KEYRING} is missing, so packages could not be checked")
    return f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n"


def fetch(names: Sequence[str], suite: str) -> dict[str, Path]:
    """The newest packages of these names in a release, from the folder where an earlier call left them, or fetched.

    Raises DebianError where they cannot be had.
    """
    key = hashlib.sha256(" ".join([suite, *sorted(names)]).encode()).hexdigest()[:16]
    folder = cache_folder("debian") / f"{suite}-{key}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as work:
                _download(names, suite, Path(work))
                (Path(work) / "debs").rename(folder)
    return {path.name.partition("_")[0]: path for path in sorted(folder.glob("*.deb"))}


def _download(names: Sequence[str], suite: str, work: Path) -> None:
    line = sources(suite)
    for name in ("lists/partial", "archives/partial", "debs"):
        (work / name).mkdir(parents=True)
    (work / "sources.list").write_text(line)
    (work / "status").touch()
    settings = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache::archives": work / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "APT::Update::Error-Mode": "any",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    try:
        run(["apt-get", *options, "update", "-qq"], APT_S)
        run(["apt-get", *options, "download", "-qq", *names], APT_S, cwd=work / "debs")
    except DebianError as error:
        told = str(error).partition(" ended with ")[2] or str(error)
        raise DebianError(f"apt could not fetch packages of Debian {suite}: {told.splitlines()[0]}") from None


def unpack(packages: Sequence[Path], root: Path) -> None:
    """Unpacks packages into a folder, without running any of their scripts. Raises DebianError."""
    root.mkdir(parents=True, exist_ok=True)
    for package in packages:
        run(["dpkg-deb", "-x", str(package), str(root)], 120.0)


def have(*tools: str) -> None:
    """Raises DebianError unless all these commands are there."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise DebianError(f"{', '.join(missing)} is not installed")
