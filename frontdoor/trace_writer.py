"""Brings traces to their place, each second: lines of a file, or a collector of OpenTelemetry (OTLP over HTTP, JSON).

What a node says of a request comes a moment after its answer, so a trace waits one second for it at most. Requests
never wait for this: where the place is full, slow or gone, traces are lost, counted, and told of once. This module
decides nothing about what is traced. Read `frontdoor/serving.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from collections import Counter, deque
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabric.errors import ConfigError, OverspillError
from frontdoor.spans import document

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.control import TracedRun
    from frontdoor.engine import Engine
    from frontdoor.traces import Trace

_log = logging.getLogger(__name__)
WRITE_S: Final = 1.0
WAITING_MAX: Final = 1024
"""Traces that wait to be written: ten seconds of all that may be taken."""
FILE_BYTES_MAX: Final = 64 << 20
"""A file that is longer becomes `FILE.1`, in the place of the one before: two are kept."""
POST_TIMEOUT_S: Final = 5.0
COLLECTOR_PATH: Final = "/v1/traces"


def is_url(where: str) -> bool:
    """Whether a place for traces is a collector's."""
    return where.startswith(("http://", "https://"))


def open_sink(where: str) -> Callable[[bytes], None]:
    """Writes one document to a file or a collector; it raises OSError. Raises ConfigError where there can be none."""
    if is_url(where):
        scheme, _, rest = where.partition("://")
        host, _, path = rest.partition("/")
        if not host:
            raise ConfigError(f"traces go to {where!r}, which names no host; give http://HOST:PORT or a file")
        return partial(_post, f"{scheme}://{host}/{path}" if path else f"{scheme}://{host}{COLLECTOR_PATH}")
    try:
        with Path(where).open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"traces cannot go to {where} ({error.strerror}); give a file that can be written") from None
    return partial(_append, Path(where))


def _append(file: Path, line: bytes) -> None:
    if file.exists() and file.stat().st_size > FILE_BYTES_MAX:
        file.replace(f"{file}.1")
    with file.open("ab") as out:
        out.write(line)


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=POST_TIMEOUT_S) as answer:  # noqa: S310 - the same
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"it answers {error.code}") from None
    except (ValueError, HTTPException) as error:  # an address that is none, and an answer that is none
        raise OSError(str(error)) from None


class TraceWriter:  # mutable: what waits to be written
    """Traces of the front door `name`, on one loop. `counts` has how many were `written`, and `lost` for want of a
    place."""

    def __init__(
        self, sink: Callable[[bytes], None], engine: Engine, name: str, version: str, bits: Callable[[int], int]
    ) -> None:
        self._sink = sink
        self._engine = engine
        self._name, self._version, self._bits = name, version, bits
        self._young: deque[Trace] = deque()
        self._old: deque[Trace] = deque()
        self._runs: dict[tuple[int, int], TracedRun] = {}
        self._well = True
        self.counts = Counter(written=0, lost=0)

    def put(self, trace: Trace) -> None:
        """Takes a trace that has ended. Never waits."""
        if len(self._young) + len(self._old) >= WAITING_MAX:
            self.counts["lost"] += 1
        else:
            self._young.append(trace)

    async def write_for_ever(self) -> None:
        """Ends by cancelling; `write` brings the rest afterwards."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()

    async def write(self, *, last: bool = False) -> None:
        """Writes what is complete, and what has waited for a second; all of it, if it is the `last` time."""
        if not self._young and not self._old:
            return
        await self._ask()
        ready: list[tuple[Trace, TracedRun | None]] = [(trace, self._run_of(trace)) for trace in self._old]
        still: deque[Trace] = deque()
        for trace in self._young:
            run = self._run_of(trace)
            if run is None and trace.request is not None and not last:
                still.append(trace)
            else:
                ready.append((trace, run))
        self._old, self._young = still, deque()
        while len(self._runs) > WAITING_MAX:  # of requests whose trace was lost; others end a moment later
            del self._runs[next(iter(self._runs))]
        if ready:
            await self._bring(ready)

    def _run_of(self, trace: Trace) -> TracedRun | None:
        return self._runs.pop(trace.request, None) if trace.request is not None else None

    async def _ask(self) -> None:
        try:
            runs = await self._engine.traced()
        except (OverspillError, OSError, RuntimeError):  # it is gone, or there is no descriptor or thread for it
            return
        self._runs.update({(run.client_id, run.request_no): run for run in runs})

    async def _bring(self, ready: list[tuple[Trace, TracedRun | None]]) -> None:
        line = document(ready, self._name, self._version, self._bits)
        try:
            await asyncio.to_thread(self._sink, line)
        except (OSError, RuntimeError) as error:
            self.counts["lost"] += len(ready)
            if self._well:
                _log.warning("traces find no place and are lost: %s", error)
            self._well = False
            return
        self._well = True
        self.counts["written"] += len(ready)
