"""What a test left behind: descriptors, threads, asyncio tasks, child processes, files in the runtime folders.

A snapshot before and one after; only if they differ are a few more taken, for a bounded grace, because threads and
sockets end a moment after `close` returns. It lists and compares, and never closes or kills what it finds: a leak that
is swept away is a leak that is kept. Used by `tests/conftest.py`, tested in `tests/unit/tests/test_leaks.py`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

GRACE_S = 5.0
"""A grpc server's last thread, and its poller's descriptors, go within 0.3 s of `stop` on a quiet machine; with eight
busy neighbours on two cores more than a second was seen. Only a test that leaks waits for it."""

_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the process holds at one moment."""

    descriptors: frozenset[tuple[int, str]]
    """(number, target) of each open descriptor; a socket's target holds its inode, so a reused number shows."""
    threads: frozenset[tuple[int, str]]
    """(ident, name) of each Python thread."""
    tasks: tuple[tuple[str, int], ...]
    """(coroutine, count) of the pending asyncio tasks of all loops: a service that renews its task leaks nothing."""
    children: frozenset[int]
    """Pids of the children, dead ones nobody waited for included."""
    files: frozenset[str]
    """What lies in the runtime folders."""


def take(folders: tuple[Path, ...] = ()) -> Snapshot:
    """The process as it is now, with what lies in `folders`. About 60 µs for 20 descriptors."""
    return Snapshot(_descriptors(), _threads(), _tasks(), _children(), _files(folders))


def compare(before: Snapshot, after: Snapshot) -> list[str]:
    """One sentence for each thing that `after` has and `before` had not; empty if nothing leaked."""
    found = [
        f"descriptor {number} is open: {target}" for number, target in sorted(after.descriptors - before.descriptors)
    ]
    found += [f"thread {name!r} runs" for _, name in sorted(after.threads - before.threads)]
    more = Counter(dict(after.tasks)) - Counter(dict(before.tasks))
    found += [f"{count} asyncio task(s) of {name} pend" for name, count in sorted(more.items())]
    found += [f"child process {pid} is there: {_command(pid)}" for pid in sorted(after.children - before.children)]
    found += [f"file {path} lies there" for path in sorted(after.files - before.files)]
    return found


def _only_grpc(before: Snapshot, after: Snapshot) -> bool:
    """grpc's library opens pollers for itself (an epoll and an eventfd each) when it likes, and keeps them.

    A loop of ours that leaks shows all the same: asyncio's has a pair of sockets besides, a node's is a process.
    """
    more = Counter(target for _, target in after.descriptors - before.descriptors)
    pollers = more.pop("anon_inode:[eventpoll]", 0), more.pop("anon_inode:[eventfd]", 0)
    return "grpc" in sys.modules and not more and pollers[0] == pollers[1]


def wait_none(before: Snapshot, folders: tuple[Path, ...] = (), grace_s: float = GRACE_S) -> list[str]:
    """What leaked since `before`, once it has had `grace_s` to go away. Returns at once if nothing did."""
    end_s = time.monotonic() + grace_s
    while True:
        after = take(folders)
        leaked = compare(before, after)
        if not leaked:
            return leaked
        if time.monotonic() >= end_s:
            others = compare(replace(before, descriptors=after.descriptors), after)
            return others if _only_grpc(before, after) else leaked
        time.sleep(_STEP_S)


def _descriptors() -> frozenset[tuple[int, str]]:
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - twice a test: Path objects would double its cost
        try:
            found.append((int(number), os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115 - the same
        except FileNotFoundError:
            continue  # the listing's own descriptor, or one that another thread closed meanwhile
    helper = _tracker_descriptor()
    return frozenset(pair for pair in found if pair[0] != helper)


def _threads() -> frozenset[tuple[int, str]]:
    return frozenset((thread.ident or 0, thread.name) for thread in threading.enumerate())


def _tasks() -> tuple[tuple[str, int], ...]:
    """asyncio offers the tasks of one loop only; a leaked loop is not at hand, so its own register is read."""
    module = sys.modules.get("asyncio.tasks")
    if module is None:
        return ()
    register = getattr(module, "_scheduled_tasks", None) or getattr(module, "_all_tasks", None)
    if not register:
        return ()
    for _ in range(100):  # other threads may add tasks while the set is read
        try:
            pending = [task for task in list(register) if not task.done()]
            break
        except RuntimeError:
            continue
    else:
        return ()
    return tuple(sorted(Counter(getattr(task.get_coro(), "__qualname__", "?") for task in pending).items()))


def _children() -> frozenset[int]:
    try:
        # Asks only whether there is a child at all: WNOWAIT leaves a dead one for the test that started it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    pids: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            pids.update(int(pid) for pid in (thread / "children").read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended since the listing
    pids.discard(_tracker_pid())
    return frozenset(pids)


def _files(folders: tuple[Path, ...]) -> frozenset[str]:
    found: set[str] = set()
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Our own runtime folder may stay, as long as it is empty.
                found.update(
                    _files((Path(entry.path),)) if entry.name == "overspill" and entry.is_dir() else [entry.path]
                )
    return frozenset(found)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone since"
    return b" ".join(words).decode("utf-8", "replace").strip() or "dead, and nobody waited for it"


def _tracker_pid() -> int:
    """multiprocessing keeps one resource tracker for the life of the process: it is no test's."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return (getattr(module._resource_tracker, "_pid", None) or 0) if module else 0


def _tracker_descriptor() -> int:
    module = sys.modules.get("multiprocessing.resource_tracker")
    found = getattr(module._resource_tracker, "_fd", None) if module else None
    return -1 if found is None else int(found)
