"""One executor over all its lives: started, handed tasks, seen to die or break, and what it had in hand settled.

What follows from an event stands in the sentinel's table; here it is seen and carried out. A life that is replaced by
its standby waits apart until it is reaped, for until then it may write to its tasks' slots. This module never answers a
caller: `workers/reception.py` does, told by `Settlement`. Read that next.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from fabric.errors import ProtocolError
from workers.handover import CONTROL_MAGIC, DONE_BYTES, MAGIC_BYTES, Control, decode_control, unpack_done
from workers.hearing import COMING, ModelTalk
from workers.lending import Lending
from workers.life import Life
from workers.parted import Parted
from workers.pauses import Pauses
from workers.seat import CPU_SEAT, Seat
from workers.sentinel import START_TIMEOUT_S, Command, ExecutorEvent, ExecutorMachine, ExecutorState
from workers.standby import Standby, Ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Load
    from fabric.local.reactor import Reactor
    from workers.child import Settings
    from workers.desks import ExecutorDesk
    from workers.job import Job
    from workers.repository import ModelSource
    from workers.settlement import Settlement, Shelves

_log = logging.getLogger(__name__)
_ENDING: Final = frozenset({*map(ExecutorState, ("stopping", "gone", "fencing", "barring"))})


class ExecutorShell:  # mutable: a process, then the next one
    """One executor over all its generations."""

    def __init__(
        self, reactor: Reactor, desk: ExecutorDesk, settings: Settings, models: Callable[[], tuple[ModelSource, ...]],
        settlement: Settlement, shelves: Shelves, seat: Seat = CPU_SEAT,
    ) -> None:  # fmt: skip
        self.desk, self.seat = desk, seat
        self.name = f"executor {desk.number}"
        self.machine = ExecutorMachine(seat.quarantine_faults)
        self._reactor, self._settings = reactor, settings
        self._models, self._settlement, self._shelves = models, settlement, shelves
        self._life: Life | None = None
        self._parted = Parted(settlement, seat, self.bar_device, self._room_again)
        self._last_pid = self._task_no = 0
        self._talk = ModelTalk(desk.number, self.machine, models, settlement, shelves, self.handle)
        self.pauses = Pauses(reactor, seat, self.name, self.machine, self.handle)
        ways = Ways(
            self.name, lambda: self._new_life(self.machine.next_generation()), models, lambda: self._talk.libraries,
            lambda: self.machine.state is ExecutorState.READY, lambda: self.pid, settlement.executors_changed,
        )  # fmt: skip
        self.standby = Standby(reactor, seat, ways)

    @property
    def pid(self) -> int:
        """The process at work, 0 while there is none."""
        return self._life.child.pid if self._life is not None else 0

    @property
    def lives(self) -> tuple[Life, ...]:
        """Its processes: the one at work, its standby, those that were replaced and are not reaped yet."""
        return tuple(filter(None, (self._life, self.standby.life, *self._parted.lives)))

    @property
    def holder(self) -> tuple[int, int]:
        """What a kept reply remembers: the executor and its generation."""
        return self.desk.number, self.machine.generation

    @property
    def gone(self) -> bool:
        """Whether no process of it is left, and none will come."""
        return self.machine.state is ExecutorState.GONE and not self._parted.lives and self.standby.life is None

    def handle(self, event: ExecutorEvent) -> None:
        """Carries out what the table says."""
        for command in self.machine.handle(event, monotonic()):
            _CARRY_OUT[command](self)
        if event in {ExecutorEvent.STOP_ASKED, ExecutorEvent.DEVICE_BAD}:
            self.standby.stop()
        elif event is ExecutorEvent.WARM_STANDBY:
            self._settlement.executor_opened()  # what waits may run now

    def hand_over(self, job: Job, load: Load, now: float, *, more: bool = False) -> None:
        """Gives a task to the process, which runs it with those that follow where there are `more` of its batch."""
        assert self._life is not None, "a desk is open only while there is a process"
        self._task_no += 1
        self.desk.give(self._task_no, job, now)
        self._life.hand_over(self._task_no, job, load, more=more)

    @property
    def lending(self) -> Lending:
        """The residents that the process at work knows."""
        return self._life.lending if self._life is not None else Lending()

    def tell(self, control: Control, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a word, if there is a process."""
        if self._life is not None:
            self._life.tell(control, descriptors)

    def load_all(self) -> None:
        """Has it hold exactly the models of now, whatever it is at."""
        if self._life is not None:
            self._life.load(self._models())

    def hang_up(self, socket_no: int) -> None:
        """A tenant's socket is closed."""
        if self._life is not None:
            self._life.hang_up(socket_no)

    def forget(self, tenant_no: int) -> None:
        """A tenant is gone."""
        if self._life is not None:
            self._life.forget(tenant_no)

    def kill(self) -> None:
        """Ends whatever process of it still lives; what follows stands in the table."""
        self.standby.stop()
        if self._life is not None:
            self.stuck("was ended, for its node could not wait for it")

    def look(self, now: float) -> None:
        """Looks for a process that stopped, hangs, or does not come up."""
        self.standby.look(now)
        if self._life is not None and self.machine.state is not ExecutorState.FENCING:
            ready = self.machine.state not in COMING
            if why := self._life.look(now, self.desk.in_hand, ready=ready, start_timeout_s=START_TIMEOUT_S):
                self.stuck(why)

    def bar_device(self, why: str) -> None:
        """Takes the device out of use: accepted tasks are finished, and nothing new is started there."""
        if self.machine.state not in {ExecutorState.STOPPING, ExecutorState.GONE}:
            self.pauses.barred = why
            self.handle(ExecutorEvent.DEVICE_BAD)

    def stuck(self, why: str) -> None:
        """The process at work must not go on."""
        if self._life is not None:
            self._life.why = why  # told at once: before the node says that it is degraded
        _log.warning("%s (generation %d) %s", self.name, self.machine.generation, why)
        self.handle(self._loss(ExecutorEvent.FOUND_STUCK))

    def _loss(self, event: ExecutorEvent) -> ExecutorEvent:
        """The event for a process that is lost: another one where a standby may follow it at once."""
        standby = self.standby.life if self.standby.ready else None
        may = self.machine.state is ExecutorState.READY and self.machine.may_promote(monotonic())
        if standby is None or not may:
            return event
        warm = standby.warm and standby.to_load == self._models()
        return ExecutorEvent.WARM_STANDBY if warm else ExecutorEvent.BARE_STANDBY

    def _message(self, life: Life, message: bytes) -> bool:
        try:
            return self._take(life, message)
        except ProtocolError as garbled:  # the node must outlive whatever its executors do
            life.why = life.why or str(garbled)
            if life is self._life:
                self.stuck(life.why)
            life.child.kill()
            return False

    def _take(self, life: Life, message: bytes) -> bool:
        if message[:MAGIC_BYTES] != CONTROL_MAGIC:
            flags, task_no, spent = unpack_done(message)
            job = self.desk.take_back(task_no, monotonic()) if life is self._life else life.in_hand.pop(task_no, None)
            more = bool(self.desk.in_hand)
            if job is not None:
                self._settlement.done(job, flags, spent, message[DONE_BYTES:], (self.desk.number, life.generation))
            return more
        control = decode_control(message)
        if control.word in {"filled", "opened"}:
            return life.lending.heard(control)
        if control.word == "fault":
            self._faulted(life, control.number)
        elif life is self.standby.life:
            life.check_told(control)
            self.standby.hear(control)
        elif life is self._life:
            self._talk.hear(life, control)
        return False

    def _faulted(self, life: Life, code: int) -> None:
        why = f"met CUDA error {code} ({self.seat.fault_name(code)}), which ends its context"
        if life is self._life and self.machine.state is not ExecutorState.FENCING:
            self.stuck(why)
        life.why = life.why or why
        life.give_up(self.desk, self._settlement)

    def _ending(self, life: Life) -> None:
        if life is self._life and self.machine.state is ExecutorState.READY:
            self.stuck(life.why)
        life.give_up(self.desk, self._settlement)

    def _exited(self, life: Life) -> None:
        self._last_pid = life.child.pid
        if life is self.standby.life:
            self.standby.ended()
        elif life in self._parted.lives:
            self._parted.ended(life)
            self._shelves.executor_ended(self.desk.number, life.why, "")
        else:
            self._active_exited(life)

    def _active_exited(self, life: Life) -> None:
        told = self.machine.state in _ENDING
        self.handle(self._loss(ExecutorEvent.PROCESS_REAPED))
        self._shelves.executor_ended(self.desk.number, life.why, life.loading)
        if not told:  # last, because who waits for an answer should not wait for a log
            _log.warning("%s (generation %d) %s", self.name, life.generation, life.why)

    def _new_life(self, generation: int) -> Life | None:
        settings = replace(self._settings, generation=generation, device=self.seat.word, ahead=self._talk.libraries)
        try:
            return Life(self._reactor, settings, monotonic(), self._message, self._ending, self._exited)
        except OSError as error:
            _log.warning("%s cannot be started and is tried again: %s", self.name, error.strerror)
        return None

    def _spawn(self) -> None:
        self._life = life = self._new_life(self.machine.generation)
        if life is None:
            self._reactor.call_later(0.0, partial(self.handle, ExecutorEvent.PROCESS_REAPED))
        else:
            self.load_all()

    def _open(self) -> None:
        self.desk.open = True
        if self._parted.clear:
            self.standby.start_soon(self.machine.backoff_s)

    def _room_again(self) -> None:
        """Nothing is left of those that were replaced: what waited for their memory, or for the driver, goes on."""
        self.tell(Control("pin", 1))
        self.standby.start_soon(self.machine.backoff_s)

    def _shut(self) -> None:
        self.desk.open = False
        self._settlement.executors_changed()

    def _kill(self) -> None:
        if self._life is not None:
            self._parted.end(self.desk, self._life)

    def _fence(self) -> None:
        life, self._life = self._life, None
        if life is not None:  # else it could not be started
            self._parted.fence(self.desk, life)

    def _clear(self) -> None:
        self.pauses.clear(self._last_pid)

    def _part(self) -> None:
        life, self._life = self._life, None
        assert life is not None, "an executor that is ready has a process"
        self._parted.add(self.desk, life)

    def _promote(self) -> None:
        self._life = life = self.standby.take()
        self.machine.generation = life.generation
        if not self._parted.clear:
            life.tell(Control("pin", 0))
        life.spawned_s = monotonic()  # what it has not loaded yet is given the time of a start from here
        _log.warning("%s goes on as generation %d, its standby", self.name, life.generation)
        if self.machine.state is ExecutorState.WARMING:
            self.load_all()

    def _wait(self) -> None:
        if self.pauses.wait():
            self.standby.stop()

    def _bar(self) -> None:
        _log.error("%s: its device is out of use: %s", self.name, self.pauses.barred)
        self._settlement.executors_changed()
        self.pauses.bar()


_CARRY_OUT: dict[Command, Callable[[ExecutorShell], None]] = {
    Command.SPAWN: ExecutorShell._spawn,
    Command.OPEN: ExecutorShell._open,
    Command.SHUT: ExecutorShell._shut,
    Command.KILL: ExecutorShell._kill,
    Command.FENCE: ExecutorShell._fence,
    Command.CLEAR: ExecutorShell._clear,
    Command.PART: ExecutorShell._part,
    Command.PROMOTE: ExecutorShell._promote,
    Command.WAIT: ExecutorShell._wait,
    Command.BAR: ExecutorShell._bar,
    Command.ASK_EXIT: lambda shell: shell.tell(Control("exit")),
}
