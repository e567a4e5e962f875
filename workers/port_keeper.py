"""Starts a port's process, learns its address, and starts it again when it ends: meanwhile the node serves locally.

The first start decides about the node (a port in use is the operator's to mend); later ones are tried with growing
pauses, always on the port that was had first, so that callers find it again. A process that is there and stands still
serves nobody either: it is asked each second, and ended. This module never speaks gRPC. Read `workers/port.py` for the
process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict, replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from fabric.errors import OverspillError, Unavailable, from_wire
from workers.beats import Beat, Beats
from workers.child import child_environment, python_module
from workers.port_settings import PROGRAMS, FrontSettings

if TYPE_CHECKING:
    from fabric.local.reactor import Reactor, Timer
    from workers.port_settings import Settings

_log = logging.getLogger(__name__)
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
STABLE_S = 30.0
START_TIMEOUT_S = 180.0
BEAT_S = 1.0


class PortOwner(Protocol):
    """Who is told of the port."""

    def port_changed(self) -> None:
        """It came up (`PortKeeper.port`) or went down."""

    def port_failed(self, error: OverspillError) -> None:
        """The first start failed: the node cannot offer what it was asked to."""


class PortKeeper:  # mutable: owns the process
    """A port of one node. `port` is its number while it serves, else 0; `name` is what an rdma port serves on, empty
    while it has no device; `http_port` is what a front door has beside; `answered` says that it has told once."""

    def __init__(self, reactor: Reactor, settings: Settings, owner: PortOwner) -> None:
        self.port = self.http_port = 0
        self.name = ""
        self._program = PROGRAMS[type(settings)]
        self._reactor = reactor
        self._settings = settings
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._heard = b""
        self._had_port = False
        self.answered = False
        self._crashes = 0
        self._started_s = self._up_since_s = 0.0
        self._stopping = False
        self._timer: Timer | None = None
        self._beats: Beats | None = None
        self._beat_timer: Timer | None = None

    @property
    def gone(self) -> bool:
        """Whether there is no process."""
        return self._process is None

    def start(self) -> None:
        """Starts the process. Raises OSError when the system cannot give another one."""
        process = subprocess.Popen(  # noqa: S603 - our own module
            python_module(self._program.module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
        )
        assert process.stdin is not None, "asked for above"
        assert process.stdout is not None, "asked for above"
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.communicate()
            raise
        self._process = process
        self._started_s = monotonic()
        self._heard = b""
        os.set_blocking(process.stdout.fileno(), False)
        self._reactor.add(process.stdout.fileno(), self._hear)
        self._reactor.add(self._pidfd, self._exited)
        self._tell(json.dumps(asdict(replace(self._settings, parent_pid=os.getpid()))))
        self._timer = self._reactor.call_later(START_TIMEOUT_S, self.kill)

    def tell_ready(self, *, ready: bool) -> None:
        """What the port's health service says of the node; a port that is started again says it from the start."""
        if ready is not self._settings.ready:
            self._settings = replace(self._settings, ready=ready)
            self._tell("ready" if ready else "not ready")

    def tell_news(self) -> None:
        """The node's models may be others now; for a front door alone."""
        self._tell("news")

    def drain(self) -> None:
        """New callers are refused."""
        self._stopping = True
        self._tell("drain")

    def stop(self) -> None:
        """Asks the process to end after the calls that it is answering."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_beats()
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Ends the process now."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(OSError):  # it is gone: its pidfd tells
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def _hear(self, _events: int) -> None:
        assert self._process is not None, "its output is watched only while it lives"
        assert self._process.stdout is not None, "it was asked for"
        part = self._process.stdout.read(65536)
        if not part:
            if part is not None:
                self._reactor.remove(self._process.stdout.fileno())
            return
        self._heard += part
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._understand(json.loads(line))

    def _understand(self, answer: dict[str, object]) -> None:
        if "beat" in answer:
            if self._beats is not None:
                self._beats.heard()
            return
        if self._timer is not None:
            self._timer.cancel()
        self.name, self.answered = str(answer.get("name", "")), True
        if "port" in answer:
            self.port = int(str(answer["port"]))
            self._up_since_s = monotonic()
            self._had_port = True
            self._begin_beats()
            self._settings = replace(self._settings, port=self.port)
            if isinstance(self._settings, FrontSettings):
                self.http_port = int(str(answer["http_port"]))
                self._settings = replace(self._settings, http_port=self.http_port)
            self._owner.port_changed()
        elif not self._had_port:
            self._stopping = True
            self._owner.port_failed(from_wire(int(str(answer["code"])), 0, str(answer["error"])))
        else:
            _log.warning("the %s cannot listen again: %s", self._program.kind, answer["error"])

    def _begin_beats(self) -> None:
        """From its first word on. Where it took long to start, all takes long: an emulated machine, mostly."""
        if self._beats is None and not self._stopping:
            start_beats = int((self._up_since_s - self._started_s) / BEAT_S)
            self._beats = Beats(max(self._program.missed_max, start_beats))
            self._beat_timer = self._reactor.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        assert self._beats is not None, "its timer ends with it"
        due = self._beats.beat()
        if due is Beat.REPLACE:
            _log.warning("the %s stands still and is replaced", self._program.kind)
            self.kill()
            return
        if due is Beat.ASK:
            self._tell("beat")
        self._beat_timer = self._reactor.call_later(BEAT_S, self._beat)

    def _end_beats(self) -> None:
        self._beats = None
        if self._beat_timer is not None:
            self._beat_timer.cancel()

    def _exited(self, _events: int) -> None:
        process = self._process
        assert process is not None, "its pidfd is watched only while it lives"
        self._hear_rest(process)
        code = process.wait()
        self._release(process)
        was_up, self.port, self.name = bool(self.port), 0, ""
        self.answered = True  # it has nothing to say any more
        if self._timer is not None:
            self._timer.cancel()
        if self._stopping:
            if was_up:
                self._owner.port_changed()
            return
        if not self._had_port:
            self._owner.port_failed(
                Unavailable(f"the {self._program.kind} ended with code {code} before it listened; see its log")
            )
            return
        if was_up and monotonic() - self._up_since_s >= STABLE_S:
            self._crashes = 0
        self._crashes += 1
        pause_s = min(BACKOFF_FIRST_S * 2 ** (self._crashes - 1), BACKOFF_MAX_S)
        _log.warning("the %s ended with code %d and is started again in %.1f s", self._program.kind, code, pause_s)
        if was_up:
            self._owner.port_changed()  # after the reason: the node now says that it is degraded
        self._timer = self._reactor.call_later(pause_s, self._start_again)

    def _start_again(self) -> None:
        if self._stopping:
            return
        try:
            self.start()
        except OSError as error:
            _log.warning("the %s cannot be started and is tried again: %s", self._program.kind, error.strerror)
            self._timer = self._reactor.call_later(BACKOFF_MAX_S, self._start_again)

    def _hear_rest(self, process: subprocess.Popen[bytes]) -> None:
        """What it said just before it ended, most likely why."""
        if process.stdout is not None:
            self._hear(0)

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        self._end_beats()
        self._reactor.remove(self._pidfd)
        os.close(self._pidfd)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                self._reactor.remove(stream.fileno()) if not stream.closed else None
                with suppress(OSError):
                    stream.close()
        self._process = None
