"""What an executor at work says of models: which it is at, what became of them, what it has staged.

What follows stands in the tables of `workers/sentinel.py` and `workers/lifecycle.py`. Read those next.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from fabric.errors import ProtocolError
from workers.handover import HEAVY_LIBRARIES
from workers.sentinel import ExecutorEvent, ExecutorMachine, ExecutorState

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.handover import Control
    from workers.life import Life
    from workers.repository import ModelSource
    from workers.settlement import Settlement, Shelves

_log = logging.getLogger(__name__)
COMING: Final = frozenset({ExecutorState.STARTING, ExecutorState.WARMING})


class ModelTalk:  # mutable: remembers libraries
    """The words about models of one executor. `handle` takes what is an event of the executor's own table."""

    def __init__(
        self, number: int, machine: ExecutorMachine, models: Callable[[], tuple[ModelSource, ...]],
        settlement: Settlement, shelves: Shelves, handle: Callable[[ExecutorEvent], None],
    ) -> None:  # fmt: skip
        self._number = number
        self._machine = machine
        self._models = models
        self._settlement = settlement
        self._shelves = shelves
        self._handle = handle
        self.libraries: tuple[str, ...] = ()
        """Which the models imported: a bare standby does so ahead of time."""

    def hear(self, life: Life, control: Control) -> None:
        """The life at work says a word. Raises ProtocolError for one that it cannot mean."""
        if control.word == "staged":
            if len(control.loaded) != 1:
                raise ProtocolError("told of a staged model without a result; look which model writes to its node")
            self._shelves.staged(self._number, control.number, control.loaded[0])
            return
        if control.word in {"reached", "unreachable"}:
            self._settlement.reach(self._number, control.number, good=control.word == "reached")
            return
        if control.word == "stepped":
            self._shelves.stepped(control.loaded)
            return
        state = self._machine.state
        if state not in COMING and not (life.anew and state is ExecutorState.READY):
            return  # it is ending, or some model repeats what was said long ago
        life.check_told(control)
        if control.word == "loading" and control.models:
            life.loading = control.models[0]
            life.first_word_s = life.first_word_s or monotonic()
            self._spoke(ExecutorEvent.PROCESS_SPOKE)
        elif control.word == "libraries":
            # It goes to the next one's command line: what a model has written there must not keep that from starting.
            self.libraries = tuple(name for name in HEAVY_LIBRARIES if name in control.models)
        elif control.word == "ready":
            life.loading, life.anew = "", False
            self._shelves.loaded(self._number, control.loaded)
            if life.to_load == self._models():
                life.warm = True
                if state in COMING and self._machine.generation > 1:
                    self._tell_of_start(life)
                self._spoke(ExecutorEvent.PROCESS_SPOKE)
                self._spoke(ExecutorEvent.MODELS_WARM)
                self._settlement.executor_opened()
            else:
                life.load(self._models())  # they changed while it loaded: only what is new is loaded now

    def _tell_of_start(self, life: Life) -> None:
        """What a start after a fault took, for whoever asks why requests waited. A standby is told of elsewhere."""
        now = monotonic()
        took_s, opened_s = now - life.spawned_s, (life.first_word_s or now) - life.spawned_s
        _log.info(
            "executor %d works as generation %d, %.3f s after its start (%.3f s until its first model)",
            self._number, life.generation, took_s, opened_s,
        )  # fmt: skip

    def _spoke(self, event: ExecutorEvent) -> None:
        if self._machine.state is not ExecutorState.READY:
            self._handle(event)
