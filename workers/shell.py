"""One executor over all its lives: started, handed tasks, seen to die, and what it had in hand settled.

What follows from an event stands in the sentinel's table; here it is seen and carried out. An executor learns of a
tenant's arena and sockets with the first task that needs them. This module never answers a caller:
`workers/reception.py` does, told by `Settlement`. Read `workers/settlement.py` next.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from fabric.errors import ProtocolError
from workers.child import Child, Settings
from workers.handover import (
    CONTROL_MAGIC,
    DONE_BYTES,
    MAGIC_BYTES,
    RESEND,
    Control,
    Task,
    decode_control,
    encode_control,
    pack_task,
    unpack_done,
)
from workers.lending import Lending
from workers.parcel import packed
from workers.sentinel import (
    START_TIMEOUT_S,
    Command,
    ExecutorEvent,
    ExecutorMachine,
    ExecutorState,
    Vitals,
    Watch,
    hang_at_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Load
    from fabric.local.reactor import Reactor, Timer
    from workers.admission import ExecutorDesk
    from workers.job import Job
    from workers.repository import ModelSource
    from workers.settlement import Settlement, Shelves

_log = logging.getLogger(__name__)
DEAF_MAX_S: Final = 0.25
"""A process that ends closes its socket first, and an interpreter takes some time to end."""


class ExecutorShell:  # mutable: a process, then the next one
    """One executor over all its generations."""

    def __init__(
        self, reactor: Reactor, desk: ExecutorDesk, settings: Settings, models: Callable[[], tuple[ModelSource, ...]],
        settlement: Settlement, shelves: Shelves,
    ) -> None:  # fmt: skip
        self.desk = desk
        self.machine = ExecutorMachine()
        self._reactor = reactor
        self._settings = settings
        self._models = models
        self._settlement = settlement
        self._shelves = shelves
        self._child: Child | None = None
        self._known_tenants: set[int] = set()
        self._known_sockets: set[int] = set()
        self.lending = Lending()
        self._task_no = 0
        self._why = ""
        self._watch = Watch(0.0)
        self._spawned_s = 0.0
        self._loading = ""
        self._to_load: tuple[ModelSource, ...] = ()
        self._anew = False
        self._backoff: Timer | None = None

    @property
    def pid(self) -> int:
        """The process, 0 while there is none."""
        return self._child.pid if self._child is not None else 0

    @property
    def holder(self) -> tuple[int, int]:
        """What a kept reply remembers: the executor and its generation."""
        return self.desk.number, self.machine.generation

    def handle(self, event: ExecutorEvent) -> None:
        """Carries out what the table says."""
        for command in self.machine.handle(event, monotonic()):
            _CARRY_OUT[command](self)

    def hand_over(self, job: Job, load: Load, now: float) -> None:
        """Gives a task to the process."""
        assert self._child is not None, "a desk is open only while there is a process"
        self._task_no += 1
        self.desk.give(self._task_no, job, now)
        tenant, socket = job.asked.tenant, job.asked.socket
        if tenant.tenant_no not in self._known_tenants:
            self._known_tenants.add(tenant.tenant_no)
            self._child.send(encode_control(Control("arena", tenant.tenant_no)), (tenant.arena.fd,))
        if socket.socket_no not in self._known_sockets and not socket.closed:
            self._known_sockets.add(socket.socket_no)
            self._child.send(encode_control(Control("socket", socket.socket_no)), (socket.fileno(),))
        if job.uses:
            self.lending.tell(job.uses, self.tell)
        times = int(job.arrived_s * 1e9), int(job.deadline_s * 1e9)
        task = Task(RESEND if job.resend else 0, self._task_no, tenant.tenant_no, socket.socket_no, *times, load)
        self._child.send(pack_task(task) + job.asked.frame)

    def tell(self, control: Control, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a word, if there is a process."""
        if self._child is not None:
            self._child.send(encode_control(control), descriptors)

    def load_all(self) -> None:
        """Has it hold exactly the models of now, whatever it is at. One that cannot be told so must not live on."""
        self._to_load, self._anew = self._models(), True
        try:
            with packed(self._to_load) as fd:
                self.tell(Control("load"), (fd,))
        except OSError:
            self._kill()

    def hang_up(self, socket_no: int) -> None:
        """A tenant's socket is closed."""
        if socket_no in self._known_sockets and self._child is not None:
            self._known_sockets.discard(socket_no)
            self._child.send(encode_control(Control("hang_up", socket_no)))

    def forget(self, tenant_no: int) -> None:
        """A tenant is gone."""
        if tenant_no in self._known_tenants and self._child is not None:
            self._known_tenants.discard(tenant_no)
            self._child.send(encode_control(Control("forget", tenant_no)))

    def look(self, now: float) -> None:
        """Looks for a process that stopped, hangs, or does not come up."""
        if self._child is None or self.machine.state is ExecutorState.FENCING:
            return
        starting = self.machine.state in {ExecutorState.STARTING, ExecutorState.WARMING}
        if starting and now - self._spawned_s >= START_TIMEOUT_S:
            self._stuck(f"was not ready after {START_TIMEOUT_S:.0f} s")
            return
        if self._child.deaf_since_s is not None and now - self._child.deaf_since_s >= DEAF_MAX_S:
            self._stuck("closed its way to the node")
            return
        page = self._child.page
        task_no, began_ns = page.running
        job = self.desk.in_hand.get(task_no)
        if job is not None:
            model = job.model
            limit_s = hang_at_s(began_ns / 1e9, job.deadline_s, model.speed.slowest_us, model.execution_timeout_s)
            if now >= limit_s:
                self._stuck(f"ran {now - began_ns / 1e9:.2f} s on one request, past its limit")
                return
        # Before it is ready it loads models, which may hold the interpreter for long: the start's own limit counts.
        busy = task_no != 0 or self.machine.state is not ExecutorState.READY
        why = self._watch.look(Vitals(page.heartbeat, self._child.is_stopped(), busy), now)
        if why:
            self._stuck(why)

    def _stuck(self, why: str) -> None:
        self._why = why  # told at once: before the node says that it is degraded
        _log.warning("executor %d (generation %d) %s", self.desk.number, self.machine.generation, why)
        self.handle(ExecutorEvent.FOUND_STUCK)

    def _message(self, message: bytes) -> bool:
        try:
            return self._take(message)
        except ProtocolError as garbled:  # the node must outlive whatever its executors do
            self._stuck(str(garbled))
            return False

    def _take(self, message: bytes) -> bool:
        if message[:MAGIC_BYTES] != CONTROL_MAGIC:
            flags, task_no, spent = unpack_done(message)
            job = self.desk.take_back(task_no, monotonic())
            more = bool(self.desk.in_hand)
            if job is not None:
                self._settlement.done(job, flags, spent, message[DONE_BYTES:], self.holder)
            return more
        control = decode_control(message)
        if control.word == "filled":
            return self.lending.filled(control.number)
        if control.word == "staged":
            if len(control.loaded) != 1:
                raise ProtocolError("told of a staged model without a result; look which model writes to its node")
            self._shelves.staged(self.desk.number, control.number, control.loaded[0])
            return False
        expected = {ExecutorState.STARTING, ExecutorState.WARMING, *((ExecutorState.READY,) if self._anew else ())}
        if self.machine.state not in expected:
            return False  # it is ending, or some model repeats what was said long ago
        told = {*control.models, *(each.model for each in control.loaded)}
        if not told.issubset({source.name for source in self._to_load}):
            raise ProtocolError("told of models that it was not to load; look which of its models writes to its node")
        if control.word == "loading" and control.models:
            self._loading = control.models[0]
            self._spoke(ExecutorEvent.PROCESS_SPOKE)
        elif control.word == "ready":
            self._loading, self._anew = "", False
            self._shelves.loaded(control.loaded)
            if self._to_load == self._models():
                self._spoke(ExecutorEvent.PROCESS_SPOKE)
                self._spoke(ExecutorEvent.MODELS_WARM)
                self._settlement.executor_opened()
            else:
                self.load_all()  # they changed while it loaded: only what is new is loaded now
        return False

    def _spoke(self, event: ExecutorEvent) -> None:
        if self.machine.state is not ExecutorState.READY:
            self.handle(event)

    def _exited(self, _events: int) -> None:
        assert self._child is not None, "its pidfd is watched only while there is a process"
        how = self._child.reap()
        self._reactor.remove(self._child.pidfd)
        told = bool(self._why) or self.machine.state in {ExecutorState.STOPPING, ExecutorState.GONE}
        self._why = self._why or how
        self.handle(ExecutorEvent.PROCESS_REAPED)
        self._shelves.executor_ended(self.desk.number, self._why, self._loading)
        self._loading = ""
        if not told:  # last, because who waits for an answer should not wait for a log
            _log.warning("executor %d (generation %d) %s", self.desk.number, self.machine.generation, how)

    # What the table's commands mean.

    def _spawn(self) -> None:
        now = monotonic()
        self._why = ""
        self._spawned_s = now
        self._watch = Watch(now)
        self._known_tenants.clear()
        self._known_sockets.clear()
        self.lending = Lending()
        settings = replace(self._settings, generation=self.machine.generation)
        try:
            self._child = child = Child(self._reactor, settings, self._message)
        except OSError as error:
            _log.warning("executor %d cannot be started and is tried again: %s", self.desk.number, error.strerror)
            self._reactor.call_later(0.0, partial(self.handle, ExecutorEvent.PROCESS_REAPED))
            return
        self._reactor.add(child.pidfd, self._exited)
        self.load_all()

    def _open(self) -> None:
        self.desk.open = True

    def _shut(self) -> None:
        self.desk.open = False
        self._settlement.executors_changed()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _fence(self) -> None:
        """The process is gone, so nobody writes for these tasks any more: one is lost, the others never ran."""
        child, self._child = self._child, None
        if child is None:
            return  # it could not be started
        begun_no = child.page.begun_no
        answered_no = child.page.answered_no
        child.close()
        for task_no in list(self.desk.in_hand):
            job = self.desk.take_back(task_no, monotonic())
            assert job is not None, "it was just listed"
            if job.resend and task_no == answered_no:
                continue
            if task_no <= begun_no or job.resend:
                self._settlement.lost(job, self._why, answered=task_no == answered_no)
            else:
                self._settlement.came_back(job)

    def _wait(self) -> None:
        again = partial(self.handle, ExecutorEvent.BACKOFF_OVER)
        self._backoff = self._reactor.call_later(self.machine.backoff_s, again)

    def _ask_exit(self) -> None:
        self.tell(Control("exit"))


_CARRY_OUT: dict[Command, Callable[[ExecutorShell], None]] = {
    Command.SPAWN: ExecutorShell._spawn,
    Command.OPEN: ExecutorShell._open,
    Command.SHUT: ExecutorShell._shut,
    Command.KILL: ExecutorShell._kill,
    Command.FENCE: ExecutorShell._fence,
    Command.WAIT: ExecutorShell._wait,
    Command.ASK_EXIT: ExecutorShell._ask_exit,
}
