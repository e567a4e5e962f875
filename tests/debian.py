"""Debian packages of any release, for tests: fetched through this machine's own apt, checked by apt's own signatures.

No mirror is named here: the one that this machine's apt uses for Debian is asked, with a private apt state, so that the
machine's own lists and packages stay as they are, and nothing is installed. What is made of them is kept in one folder
outside of the checkout. Where apt, a Debian mirror or the network is missing, `DebianError` says so in a sentence for a
skip. The engine of containers, Consul, stock clients and the soft-RoCE lab (`tests/softroce/lab/packages.py`) all come
this way.
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
APT_S = 400.0
"""Lists and some hundred megabytes of packages on a slow line."""
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
def locked(path: Path, wait_s: float = LOCK_S) -> Iterator[None]:
    """Holds a lock over processes, so that two test runs do not build one thing twice. Raises DebianError."""
    end_s = time.monotonic() + wait_s
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise DebianError(f"another process has held {path} for {wait_s:.0f} s; see what it does") from None
                time.sleep(0.2)
        yield


def run(words: Sequence[str], timeout_s: float, cwd: Path | None = None) -> str:
    """The output of a command. Raises DebianError with the command and the end of what it said."""
    try:
        done = subprocess.run(words, cwd=cwd, timeout=timeout_s, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DebianError(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DebianError(
            f"`{' '.join(words)[:200]}` took more than {timeout_s:.0f} s: look at the network and the load"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise DebianError(f"`{' '.join(words)[:200]}` ended with {done.returncode}: {said}")
    return done.stdout


def mirrors() -> dict[str, str]:
    """The archives of Debian that this machine's apt uses, by label: `Debian`, and where it has it, `Debian-Security`.

    Raises DebianError where there is none.
    """
    said = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"], 60.0)
    found = {label: uri for uri, _, label in (line.partition(" ") for line in said.splitlines())}
    if "Debian" in found:
        return found
    # The label stands in the lists, which a new machine has not fetched yet: the sources' own options tell as much.
    for line in run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(SIGNED_BY)"], 60.0).splitlines():
        uri, _, key = line.partition(" ")
        if "debian-archive-keyring" in key and "security" not in uri:
            return {"Debian": uri}
    raise DebianError("this machine's apt knows no Debian mirror")


def sources(suite: str, *, security: bool = False) -> str:
    """The lines for apt of one release's main packages, with those of its security updates where apt has a place."""
    if not Path(KEYRING).exists():
        raise DebianError(f"{KEYRING} is missing, so packages could not be checked")
    places = mirrors()
    lines = [f"deb [signed-by={KEYRING}] {places['Debian']} {suite} main"]
    if security and "Debian-Security" in places:
        lines.append(f"deb [signed-by={KEYRING}] {places['Debian-Security']} {suite}-security main")
    return "\n".join(lines) + "\n"


def fetch(names: Sequence[str], suite: str) -> dict[str, Path]:
    """The newest packages of these names in a release, from the folder where an earlier call left them, or fetched.

    Raises DebianError where they cannot be had.
    """
    key = hashlib.sha256(" ".join([suite, *sorted(names)]).encode()).hexdigest()[:16]
    folder = cache_folder("debian") / f"{suite}-{key}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as work:
                debs = Path(work) / "debs"
                debs.mkdir()
                try:
                    download(names, sources(suite), debs)
                except DebianError as error:
                    told = str(error).partition(" ended with ")[2] or str(error)
                    raise DebianError(
                        f"apt could not fetch packages of Debian {suite}: {told.splitlines()[0]}"
                    ) from None
                debs.rename(folder)
    return {path.name.partition("_")[0]: path for path in sorted(folder.glob("*.deb"))}


def download(names: Sequence[str], source_lines: str, folder: Path) -> None:
    """Downloads packages into `folder`, by a state of apt's that is gone afterwards. A name that ends with "->" stands
    for the package that this one depends on first. Raises DebianError."""
    with tempfile.TemporaryDirectory(prefix="apt-", dir=folder) as state:
        options = _own_state(Path(state), source_lines)
        run(["apt-get", *options, "update", "-qq"], APT_S)
        wanted = [_depends(name, options) if name.endswith("->") else name for name in names]
        run(["apt-get", *options, "download", "-qq", *wanted], APT_S, cwd=folder)


def _own_state(state: Path, source_lines: str) -> list[str]:
    """The options that make apt keep all that it knows in `state`."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "sources.list").write_text(source_lines)
    (state / "status").touch()
    settings = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache::archives": state / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "APT::Update::Error-Mode": "any",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _depends(name: str, options: list[str]) -> str:
    shown = run(["apt-cache", *options, "show", "--no-all-versions", name.removesuffix("->")], 60.0)
    depends = next((line for line in shown.splitlines() if line.startswith("Depends: ")), "")
    first = depends.removeprefix("Depends: ").split(",")[0].split(" ")[0]
    if not first:
        raise DebianError(f"apt knows no package that {name.removesuffix('->')} depends on: look at its sources")
    return first


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
