"""The embedded registry `dir:PATH`: a folder of leases on one machine, no server.

A node enters itself by a file and keeps it alive by its time stamp, every 3 s; 15 s of silence end it, a dead process
ends it at once. Watching costs one `stat` of the folder every 50 ms and one full read every second, in one thread that
ends with `close` or with the program. A folder that cannot be read changes nothing: the last known good list stays.
This module never judges a lease (`discovery/lease_reader.py`) nor what to believe (`discovery/catalogue.py`). Read
`discovery/static.py` next.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.catalogue import Catalogue, CatalogueStatistics, Failed, Guards
from discovery.lease_file import LeaseFile, encode_lease, file_name, parse_lease
from discovery.lease_folder import LeaseFolder
from discovery.lease_reader import LeaseReader
from discovery.owner import this_process
from fabric.errors import ConfigError, InvalidArgument, ProtocolError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import Change, Instance

_log = logging.getLogger(__name__)
CLOSE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class DirectoryTimes:
    """The registry's periods. A missed beat or four cost nothing; a new file is seen after one poll, 50 ms."""

    heartbeat_s: float = 3.0
    ttl_s: float = 15.0
    poll_s: float = 0.05
    full_read_s: float = 1.0
    guards: Guards = field(default_factory=Guards)


@dataclass(frozen=True, slots=True)
class WatchStatistics:
    """Counts of one watch: files that were no leases, full reads, and what the catalogue counted."""

    unreadable: int
    reads: int
    catalogue: CatalogueStatistics


class DirectoryRegistry:
    """Leases in the folder `path`. Safe to use from several threads."""

    def __init__(self, path: str, times: DirectoryTimes | None = None) -> None:
        self._folder = LeaseFolder(Path(path).expanduser().absolute())
        self._times = times or DirectoryTimes()

    def read(self) -> tuple[Instance, ...]:
        """All instances now. Raises RegistryUnavailable."""
        return LeaseReader(self._folder).read(time.monotonic()).instances

    def recall(self) -> None:
        """Nothing: the folder is on this machine, and where it is away so are its nodes."""

    def watch(self, on_changes: Callable[[tuple[Change, ...]], None]) -> DirectoryWatch:
        """Calls back with the present state, then from a thread with changes. Raises RegistryUnavailable."""
        return DirectoryWatch(self._folder, self._times, on_changes)

    def register(self, instance: Instance) -> DirectoryRegistration:
        """Enters `instance` and keeps its lease alive; makes the folder if it is missing.

        Raises RegistryUnavailable, and ConfigError where everybody may write to the folder or the id cannot be a name.
        """
        return DirectoryRegistration(self._folder, self._times, instance)

    def __repr__(self) -> str:
        return f"<DirectoryRegistry {self._folder.path}>"


class DirectoryWatch:  # mutable: owns a thread
    """A running watch of one folder."""

    def __init__(
        self, folder: LeaseFolder, times: DirectoryTimes, on_changes: Callable[[tuple[Change, ...]], None]
    ) -> None:
        self._folder, self._times, self._on_changes = folder, times, on_changes
        self._reader = LeaseReader(folder)
        self._catalogue = Catalogue(times.guards)
        self._stop = threading.Event()
        self._reads = 0
        self._trouble = ""
        self._stamp = folder.changed_ns()
        self._settling = True  # the file system's clock is coarse: one more read catches a change of the same tick
        self._full_read_at = time.monotonic() + times.full_read_s
        on_changes(self._read())
        self._thread = threading.Thread(target=self._run, name="overspill-watch", daemon=False)
        self._thread.start()

    def age_s(self) -> float:
        """Seconds since the folder was last read whole."""
        return self._catalogue.age_s(time.monotonic())

    def trouble(self) -> str:
        """Why the list may be out of date, as a sentence; nothing where it is not."""
        return self._trouble

    def statistics(self) -> WatchStatistics:
        """What was counted."""
        return WatchStatistics(self._reader.unreadable, self._reads, self._catalogue.statistics())

    def close(self) -> None:
        """Ends the watch within a second; no callback begins after it returned. Safe twice and inside a callback."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        main = threading.main_thread()
        while not self._stop.wait(self._times.poll_s) and main.is_alive():
            try:
                changes = self._poll()
            except RegistryUnavailable as error:
                if not self._trouble:  # the first failure in a row
                    _log.warning("%s; going on with the last known list", error)
                self._trouble = f"discovery is stale: {error}"
                self._catalogue.handle(Failed(str(error)), time.monotonic())
                self._stamp = 0  # whatever the folder is when it comes back, read it
                continue
            self._trouble = ""
            if changes and not self._stop.is_set():
                self._tell(changes)

    def _tell(self, changes: tuple[Change, ...]) -> None:
        try:
            self._on_changes(changes)
        except Exception:  # noqa: BLE001 - see below
            # A fault of whoever watches must not end the watch for good: it is told, with its traceback.
            _log.exception("a watcher of %s failed on %d changes", self._folder.path, len(changes))

    def _poll(self) -> tuple[Change, ...]:
        stamp = self._folder.changed_ns()
        if stamp != self._stamp:
            self._stamp, self._settling = stamp, True
        elif self._settling:
            self._settling = False
        elif time.monotonic() < self._full_read_at:
            return ()
        return self._read()

    def _read(self) -> tuple[Change, ...]:
        now = time.monotonic()
        self._full_read_at = now + self._times.full_read_s
        self._reads += 1
        return self._catalogue.handle(self._reader.read(now), now)


class DirectoryRegistration:  # mutable: owns a thread, a descriptor and a file
    """A node's own lease."""

    def __init__(self, folder: LeaseFolder, times: DirectoryTimes, instance: Instance) -> None:
        self._folder, self._times, self._instance = folder, times, instance
        try:
            self._name = file_name(instance.node_id)
        except InvalidArgument as error:
            raise ConfigError(str(error)) from None
        self._owner = this_process()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._fd = -1
        self._raw = b""
        folder.create()
        self._write()
        self._thread = threading.Thread(target=self._run, name="overspill-heartbeat", daemon=False)
        self._thread.start()

    def update(self, instance: Instance) -> None:
        """Replaces the facts under the same id and epoch. Raises RegistryUnavailable; the old facts then stay."""
        assert instance.key == self._instance.key, "another life of a node needs a registration of its own"
        with self._lock:
            if self._stop.is_set():
                raise RegistryUnavailable("the registration was closed before this update; register again")
            before, self._instance = self._instance, instance
            try:
                self._write()
            except RegistryUnavailable:
                self._instance = before
                raise

    def close(self) -> None:
        """Takes the lease away. Safe to call twice; never raises: what cannot be removed expires."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)
        self._withdraw()

    def _withdraw(self) -> None:
        with self._lock:
            if self._fd >= 0 and os.getpid() == self._owner.pid:  # a forked child must not take its parent's away
                self._folder.remove(self._name, os.fstat(self._fd).st_ino)
            self._close_fd()

    def _run(self) -> None:
        # Nodes started together must not beat together; the seed makes each node's rhythm its own.
        jitter = random.Random(self._instance.node_epoch)  # noqa: S311 - spreads load, hides nothing
        main = threading.main_thread()
        failed = False
        step_s = min(0.5, self._times.heartbeat_s)  # how soon the thread notices that the program has ended
        beat_at = time.monotonic()
        while not self._stop.wait(step_s) and main.is_alive():
            if time.monotonic() < beat_at:
                continue
            beat_at = time.monotonic() + self._times.heartbeat_s * jitter.uniform(0.8, 1.0)
            try:
                if not self._beat():
                    break
                failed = False
            except RegistryUnavailable as error:
                if not failed:
                    _log.warning("%s; trying again every %.1f s", error, self._times.heartbeat_s)
                failed = True
        if not main.is_alive():
            self._withdraw()

    def _beat(self) -> bool:
        """One heartbeat; enters the lease again if it was lost. False once another life of the node has taken over."""
        with self._lock:
            if self._stop.is_set():
                return False
            there = self._folder.read(self._name)
            if self._fd >= 0 and self._folder.beat(self._fd, time.monotonic_ns()) and there == self._raw:
                return True
            with suppress(ProtocolError):  # somebody wrote into it: then it is written again
                other = parse_lease(there or b"").instance
                if other.node_epoch != self._instance.node_epoch:
                    _log.error("another process entered itself as node %r; this one no longer does", other.node_id)
                    return False
            self._folder.create()
            self._write()
            return True

    def _write(self) -> None:
        raw = encode_lease(LeaseFile(self._owner, self._times.ttl_s, self._instance))
        fd = self._folder.write(self._name, raw, time.monotonic_ns())
        self._close_fd()
        self._fd, self._raw = fd, raw

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
