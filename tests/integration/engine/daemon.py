"""Starts Docker's engine for the length of a block, and leaves nothing of it: no process, mount, bridge or filter.

It runs in a pid, a mount and a network namespace of its own, as their first process; when that ends, however it ends,
the kernel ends and removes all the rest. It dies with the test run too, also when that is killed. Where no engine can
run, `EngineError` says why, for a skip. Read `tests/integration/engine/images.py` next.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.debian import cache_folder, locked
from tests.integration.engine.packages import engine_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

START_S = 40.0
STOP_S = 15.0
COMMAND_S = 300.0
POOL = "base=10.213.0.0/16,size=24"
"""Where its networks lie. They are in a network namespace, so they meet nothing that this machine is connected to."""
_START = """
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up 2>/dev/null || true
exec dockerd "$@"
"""


class EngineError(Exception):
    """No engine can run here, or it did not do what it was told: one sentence."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine. `folder` holds its socket and its log."""

    folder: Path
    tree: Path
    process: subprocess.Popen[bytes]

    @property
    def env(self) -> dict[str, str]:
        """What its commands find their engine by."""
        usr = self.tree / "usr"
        return {
            **os.environ,
            "PATH": f"{usr}/sbin:{usr}/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            "LD_LIBRARY_PATH": f"{usr}/lib/x86_64-linux-gnu",
            "XTABLES_LIBDIR": f"{usr}/lib/x86_64-linux-gnu/xtables",
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_CONFIG": str(self.folder),
            "DOCKER_BUILDKIT": "1",
            "PYTHONPATH": f"{usr}/lib/python3/dist-packages",
            "COMPOSE_HTTP_TIMEOUT": str(int(COMMAND_S)),
        }

    def popen(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a `docker` command, with pipes."""
        return subprocess.Popen(
            [str(self.tree / "usr/bin/docker"), *words],
            env={**self.env, **(env or {})}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def docker(self, *words: str, timeout_s: float = COMMAND_S, check: bool = True) -> str:
        """The output of a `docker` command. Raises EngineError when it fails."""
        return self._run([str(self.tree / "usr/bin/docker"), *words], self.env, timeout_s, check=check)

    def compose(self, files: Sequence[Path], *words: str, env: Mapping[str, str], check: bool = True) -> str:
        """The output of a `docker-compose` command on files, later over earlier. Raises EngineError when it fails."""
        command = [sys.executable, str(self.tree / "usr/bin/docker-compose"), "--no-ansi"]
        command += [word for file in files for word in ("--file", str(file))]
        return self._run([*command, *words], {**self.env, **env}, COMMAND_S, check=check)

    def _run(self, command: list[str], env: dict[str, str], timeout_s: float, *, check: bool) -> str:
        try:
            done = subprocess.run(
                command, env=env, timeout=timeout_s, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL, cwd=self.folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineError(f"`{' '.join(command)[:300]}` took more than {timeout_s:.0f} s") from None
        if check and done.returncode:
            raise EngineError(
                f"`{' '.join(command)[:300]}` ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        return done.stdout


@contextmanager
def running_engine() -> Iterator[Engine]:
    """An engine with the images of earlier runs and no containers. Raises EngineError or DebianError."""
    if os.geteuid() != 0:
        raise EngineError("Docker's engine needs root, and this is another user")
    for tool in ("unshare", "setpriv", "mount"):
        if shutil.which(tool) is None:
            raise EngineError(f"{tool} is not installed")
    tree = engine_tree()
    data = cache_folder("containers", "docker")
    with (
        locked(data.with_suffix(".lock")),  # two engines would spoil each other's images
        tempfile.TemporaryDirectory(prefix="osp-engine-", dir="/tmp") as name,  # short: it holds a socket
    ):
        _forget_killed_run(data, Path(name))
        engine = _start(Path(name), tree, data)
        try:
            _wait(engine)
            engine.docker("volume", "prune", "--force")
            yield engine
        finally:
            _stop(engine)


def _forget_killed_run(data: Path, folder: Path) -> None:
    """What a run leaves that was killed: its folder, empty control groups, and containers that would start again."""
    note = data.with_suffix(".folder")
    if note.exists():
        left = Path(note.read_text())
        _remove_cgroups(left)
        shutil.rmtree(left, ignore_errors=True)
    note.write_text(str(folder))
    for name in ("containers", "network"):
        shutil.rmtree(data / name, ignore_errors=True)


def _start(folder: Path, tree: Path, data: Path) -> Engine:
    unstarted = Engine(folder, tree, None)  # type: ignore[arg-type]  # only its environment is asked for
    words = ["--data-root", str(data), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")]
    words += ["--host", f"unix://{folder}/docker.sock", "--group", "root", "--bridge", "none", "--log-level", "warn"]
    words += ["--default-address-pool", POOL, "--cgroup-parent", _cgroup(folder), "--shutdown-timeout", "5"]
    # setpriv has the kernel kill unshare when we die; unshare has it kill the engine when that dies.
    inside = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-e", "-c", _START, "sh"]
    command = ["setpriv", "--pdeathsig", "KILL", *inside, *words]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=unstarted.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return Engine(folder, tree, process)


def _wait(engine: Engine) -> None:
    give_up_s = time.monotonic() + START_S
    while True:
        with suppress(EngineError):
            engine.docker("version", timeout_s=5.0)
            return
        if engine.process.poll() is not None or time.monotonic() > give_up_s:
            told = (engine.folder / "log").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise EngineError(f"Docker's engine does not start here: {told[-1][:400]}")
        time.sleep(0.2)


def _stop(engine: Engine) -> None:
    if engine.process.poll() is None:
        with suppress(EngineError):
            left = engine.docker("ps", "--all", "--quiet", timeout_s=20.0).split()
            if left:
                engine.docker("rm", "--force", "--volumes", *left, timeout_s=60.0)
        for task in Path(f"/proc/{engine.process.pid}/task").glob("*/children"):
            for pid in task.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
        try:
            engine.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            engine.process.kill()
            engine.process.wait(STOP_S)
    _remove_cgroups(engine.folder)


def _cgroup(folder: Path) -> str:
    return f"/{folder.name}"


def _remove_cgroups(folder: Path) -> None:
    """A killed engine leaves empty groups; they are no processes, but they would add up."""
    tops = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]
    give_up_s = time.monotonic() + 10.0
    while left := [top / folder.name for top in tops if (top / folder.name).is_dir()]:
        for top in left:
            for path, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):  # a process that was killed just now is still in it
                    Path(path).rmdir()
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.1)
