"""Loads that are under way: read aside, handed to every executor, and waited for until all hold the model warm.

Whatever goes wrong, be it an executor's end or time, ends the attempt, once, and nothing that serves is touched. What
follows from its end is decided in `workers/lifecycle.py` and done in `workers/library.py`. Read the second next.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fabric.errors import DeadlineExceeded, Fate, ModelBroken, OverspillError, ResourceExhausted, Unavailable
from workers.aside import read_aside
from workers.handover import Control
from workers.repository import read_model
from workers.shelved import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor
    from workers.crew import Crew
    from workers.fitting import Fit
    from workers.handover import Loaded
    from workers.repository import ModelEntry
    from workers.shelved import Shelved

_log = logging.getLogger(__name__)
LOADS_MAX: Final = 4
"""Loads at the same time, as in Triton: each takes memory twice over and a core."""
LOAD_TIMEOUT_S: Final = 300.0


class Attempts:  # mutable: loads come and go
    """The loads of one node. `admit` says where a model goes, or raises OverspillError for one that does not fit, and
    `ended` hears of each attempt's end, with the error where it failed. `crew` is set once it is made."""

    crew: Crew

    def __init__(
        self, reactor: Reactor, folder: str, admit: Callable[[ModelEntry], Fit],
        ended: Callable[[Shelved, OverspillError | None], None],
    ) -> None:  # fmt: skip
        self._reactor = reactor
        self._folder = folder
        self._admit = admit
        self._ended = ended
        self._running: dict[int, Shelved] = {}

    def begin(self, model: Shelved, serial: int, override: str, done: Callable[[OverspillError | None], None]) -> None:
        """A load was asked for. Raises Unavailable when there are too many already."""
        if len(self._running) >= LOADS_MAX:
            raise Unavailable(f"{len(self._running)} models are being loaded already; ask again when one is done")
        attempt = model.attempt = Attempt(serial, override, done)
        self._running[serial] = model
        attempt.timer = self._reactor.call_later(LOAD_TIMEOUT_S, partial(self._too_long, model, attempt))

    def read(self, model: Shelved, attempt: Attempt) -> None:
        """Reads the model's folder aside, then has the executors load it."""
        read = partial(read_model, self._folder, model.name, attempt.override)
        read_aside(self._reactor, read, partial(self._read, model, attempt))

    def staged(self, number: int, serial: int, loaded: Loaded) -> None:
        """Executor `number` has loaded what was staged, or could not."""
        model = self._running.get(serial)
        attempt = model.attempt if model is not None else None
        if model is None or attempt is None or loaded.model != model.name or number not in attempt.outstanding:
            return  # given up meanwhile
        attempt.outstanding.discard(number)
        attempt.held.append(number)  # one that failed, too: what its attempt left behind is to be dropped
        if loaded.refused:
            self._ended(model, ModelBroken(loaded.refused))
            return
        attempt.warm.append(loaded)
        if not attempt.outstanding:
            self._ended(model, None)

    def executor_ended(self, number: int, why: str) -> None:
        """An executor is no more: whatever it was loading counts as the cause."""
        for model in list(self._running.values()):
            attempt = model.attempt
            if attempt is not None and (number in attempt.outstanding or number in attempt.held):
                self._ended(model, ModelBroken(f"executor {number} {why} while model {model.name!r} was loaded"))

    def drop(self, attempt: Attempt) -> None:
        """Executors let go what they loaded for it."""
        self.crew.tell(Control("drop", attempt.serial), {*attempt.outstanding, *attempt.held})

    def finish(self, model: Shelved) -> None:
        """Answers whoever asked for the attempt that has ended, if there was one."""
        attempt, model.attempt = model.attempt, None
        if attempt is not None:
            attempt.end()
            del self._running[attempt.serial]
            attempt.done(attempt.error)

    def _read(self, model: Shelved, attempt: Attempt, entry: ModelEntry | OverspillError) -> None:
        if model.attempt is not attempt:
            return
        if isinstance(entry, OverspillError):
            self._ended(model, entry)
            return
        model.entry = entry
        for warning in entry.config.warnings if entry.config else ():
            _log.warning("%s", warning)
        if entry.source is None:
            self._ended(model, ModelBroken(entry.refused))
            return
        attempt.entry = replace(entry, source=replace(entry.source, serial=attempt.serial))
        try:
            attempt.fit = self._admit(attempt.entry)
            attempt.outstanding = self.crew.stage(replace(entry.source, serial=attempt.serial), attempt.fit.numbers)
        except OverspillError as error:
            self._ended(model, error)
        except OSError as error:
            self._ended(model, ResourceExhausted(f"no memory to hand the model over ({error.strerror}); ask again"))
        else:
            if not attempt.outstanding:
                self._ended(model, Unavailable("no executor for it runs now; look into the node's log, then ask again"))

    def _too_long(self, model: Shelved, attempt: Attempt) -> None:
        if model.attempt is attempt:
            late = f"model {model.name!r} was not loaded in {LOAD_TIMEOUT_S:.0f} s; look what it waits for"
            self._ended(model, DeadlineExceeded(late, Fate.RAN))
