"""The models of a node over all their lives: what is in its repository, what serves, and who asked for a change.

It carries out what `workers/lifecycle.py` says: has executors load a new version beside the one that serves, and lets
it serve once all of them hold it warm; closes a model and waits for its requests before it goes. Everything happens in
the node's loop, except reading the repository, which may be slow. Whoever asks gets exactly one answer. Read
`workers/control.py` for who asks from outside.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fabric.errors import (
    ConfigError,
    DeadlineExceeded,
    Fate,
    ModelBroken,
    OverspillError,
    ResourceExhausted,
    Unavailable,
)
from workers.aside import read_aside
from workers.handover import Control
from workers.inventory import Inventory
from workers.lifecycle import ModelCommand, ModelEvent, ModelStage
from workers.repository import read_model
from workers.shelved import Attempt, Shelved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fabric.local.reactor import Reactor
    from workers.admission import Admission, ModelQueue
    from workers.crew import Crew
    from workers.handover import Loaded
    from workers.repository import ModelEntry

    Asked = Callable[[OverspillError | None], None]

_log = logging.getLogger(__name__)
LOADS_MAX: Final = 4
"""Loads at the same time, as in Triton: each takes memory twice over and a core."""
LOAD_TIMEOUT_S: Final = 300.0
LOAD_DEATHS_MAX: Final = 2
EMPTY_LOOK_S: Final = 0.01
_FIXED: Final = "the models of this node are fixed at its start; start it with --model-control explicit to change them"


class ModelLibrary:  # mutable: the node's models
    """All models of one life of a node. `end_waiting` ends the requests that wait for a model; `changed` hears whenever
    what the node should publish is another. `crew` is set once it is made, since its executors report here."""

    crew: Crew

    def __init__(
        self, reactor: Reactor, folder: str, admission: Admission,
        end_waiting: Callable[[OverspillError, ModelQueue], None], changed: Callable[[], None], *, explicit: bool,
    ) -> None:  # fmt: skip
        self._reactor, self._folder = reactor, folder
        self._admission = admission
        self._end_waiting = end_waiting
        self._changed = changed
        self._explicit = explicit
        self._models: dict[str, Shelved] = {}
        self.inventory = Inventory(reactor, folder, admission, self._models, may_be_none=explicit)
        self._attempts: dict[int, Attempt] = {}
        self._serial = 0

    def begin(self, entries: Iterable[ModelEntry], to_load: frozenset[str] | None) -> None:
        """What the repository holds at the node's start. Executors load it as they start: all of it, or `to_load`.
        Raises ConfigError for a name that is not there."""
        entries = tuple(entries)
        missing = (to_load or frozenset()) - {entry.name for entry in entries}
        if missing:
            raise ConfigError(f"the model repository has no {', '.join(sorted(missing))}; leave it out of load_models")
        for entry in entries:
            model = self._models[entry.name] = Shelved(entry.name, entry)
            if to_load is not None and entry.name not in to_load:
                continue
            if entry.source is None:
                self._refused(model, entry.refused)
                continue
            model.machine.handle(ModelEvent.LOAD_ASKED)
            self._serial += 1
            model.serve(replace(entry, source=replace(entry.source, serial=self._serial)))
            self._admission.models[entry.name] = model.queue

    # What is asked of it. The answer comes when there is one, to `done`: None, or why not.

    def load(self, name: str, override: str, done: Asked) -> None:
        """Has every executor load the newest version of a model, and lets it serve when it is warm on all of them;
        `override` is a whole configuration in JSON. Until then, and when it fails, what served before goes on."""
        try:
            model = self._may_change(name) or Shelved(name)
            if len(self._attempts) >= LOADS_MAX:
                raise Unavailable(f"{len(self._attempts)} models are being loaded already; ask again when one is done")
        except OverspillError as error:
            done(error)
            return
        self._serial += 1
        attempt = model.attempt = Attempt(self._serial, override, done)
        self._attempts[attempt.serial] = attempt
        attempt.timer = self._reactor.call_later(LOAD_TIMEOUT_S, partial(self._too_long, model, attempt))
        self._models[name] = model
        self._handle(model, ModelEvent.LOAD_ASKED)

    def unload(self, name: str, done: Asked) -> None:
        """Takes no new request for a model, lets those that it has end, and has the executors let it go."""
        try:
            model = self._may_change(name)
            if model is None:
                self.inventory.loaded(name, "")  # raises with the names of those that there are
        except OverspillError as error:
            done(error)
            return
        assert model is not None, "what is not there was refused"
        model.unload_asked = done
        self._handle(model, ModelEvent.UNLOAD_ASKED)

    # What executors report.

    def loaded(self, results: tuple[Loaded, ...]) -> None:
        """An executor has started and this became of the models that it should load."""
        for each in results:
            model = self._models.get(each.model)
            if model is None or model.machine.stage is ModelStage.UNLOADED:
                continue
            if each.refused:
                self.broke(each.model, each.refused)
            else:
                model.warmed(each)
                if model.attempt is None:  # else it is one more that has the version before
                    self._handle(model, ModelEvent.LOADED)

    def staged(self, number: int, serial: int, loaded: Loaded) -> None:
        """Executor `number` has loaded what was staged, or could not."""
        attempt = self._attempts.get(serial)
        model = self._models.get(loaded.model)
        if attempt is None or model is None or model.attempt is not attempt or number not in attempt.outstanding:
            return  # given up meanwhile
        attempt.outstanding.discard(number)
        if loaded.refused:
            self._fail(model, ModelBroken(loaded.refused))
            return
        attempt.held.append(number)
        attempt.warm.append(loaded)
        if not attempt.outstanding:
            self._handle(model, ModelEvent.LOADED)

    def executor_ended(self, number: int, why: str, loading: str) -> None:
        """An executor is no more: whatever it was loading counts as the cause. At its start that is one model, and the
        second time proves it."""
        guilty = self._models.get(loading)
        if guilty is not None:
            guilty.deaths[number] += 1
            if guilty.deaths[number] >= LOAD_DEATHS_MAX:
                self.broke(loading, f"the executor {why} each time that it loaded this model")
        for model in list(self._models.values()):
            attempt = model.attempt
            if attempt is not None and (number in attempt.outstanding or number in attempt.held):
                self._fail(model, ModelBroken(f"executor {number} {why} while model {model.name!r} was loaded"))

    def broke(self, name: str, why: str) -> None:
        """A model cannot be served any more: an executor that starts anew cannot load it."""
        model = self._models[name]
        if model.machine.stage is not ModelStage.UNLOADED:
            model.reason = why
            _log.warning("model %s is refused: %s", name, why)
            self._handle(model, ModelEvent.BROKE)

    # How it is done.

    def _may_change(self, name: str) -> Shelved | None:
        if not self._explicit:
            raise Unavailable(_FIXED)
        if self._admission.draining:
            raise Unavailable("the node is draining; ask another one")
        model = self._models.get(name)
        if model is not None and (model.machine.busy or model.attempt is not None):
            raise Unavailable(f"model {name!r} is {model.machine.stage.value} already; ask again when that is done")
        return model

    def _handle(self, model: Shelved, event: ModelEvent) -> None:
        for command in model.machine.handle(event):
            _CARRY_OUT[command](self, model)

    def _refused(self, model: Shelved, why: str) -> None:
        self._admission.models[model.name] = model.refuse(why)

    def _fail(self, model: Shelved, error: OverspillError) -> None:
        assert model.attempt is not None, "there is something that failed"
        model.attempt.error, model.reason = error, str(error)
        _log.warning("model %s cannot be loaded: %s", model.name, error)
        self._handle(model, ModelEvent.LOAD_FAILED)

    def _too_long(self, model: Shelved, attempt: Attempt) -> None:
        if model.attempt is attempt:
            late = f"model {model.name!r} was not loaded in {LOAD_TIMEOUT_S:.0f} s; look what it waits for"
            self._fail(model, DeadlineExceeded(late, Fate.RAN))

    # What the table's commands mean.

    def _stage(self, model: Shelved) -> None:
        attempt = model.attempt
        if attempt is None:
            return  # at the node's start executors load by themselves
        read = partial(read_model, self._folder, model.name, attempt.override)
        read_aside(self._reactor, read, partial(self._read, model, attempt))

    def _read(self, model: Shelved, attempt: Attempt, entry: ModelEntry | OverspillError) -> None:
        if model.attempt is not attempt:
            return
        if isinstance(entry, OverspillError):
            self._fail(model, entry)
            if not model.was_read:  # it never was in the repository
                del self._models[model.name], self._admission.models[model.name]
            return
        model.entry = entry
        if entry.source is None:
            self._fail(model, ModelBroken(entry.refused))
            return
        attempt.entry = replace(entry, source=replace(entry.source, serial=attempt.serial))
        try:
            attempt.outstanding = self.crew.stage(replace(entry.source, serial=attempt.serial))
        except OSError as error:
            self._fail(model, ResourceExhausted(f"no memory to hand the model over ({error.strerror}); ask again"))
            return
        if not attempt.outstanding:
            self._fail(model, Unavailable("no executor runs now; look into the node's log, then ask again"))

    def _commit(self, model: Shelved) -> None:
        attempt = model.attempt
        if attempt is None or attempt.entry is None:
            return
        model.serve(attempt.entry)
        self._admission.models[model.name] = model.queue
        for loaded in attempt.warm:
            model.warmed(loaded)
        self.crew.commit(attempt.serial, attempt.held)

    def _drop(self, model: Shelved) -> None:
        attempt = model.attempt
        if attempt is not None:
            self.crew.tell(Control("drop", attempt.serial), {*attempt.outstanding, *attempt.held})
        if not model.machine.serves:
            self._give_up(model)

    def _close(self, model: Shelved) -> None:
        self._admission.models.pop(model.name, None)
        if model.machine.stage is ModelStage.UNLOADING:
            model.reason = ""
            self._reactor.call_later(0.0, partial(self._look_empty, model))
            return
        self._give_up(model)

    def _give_up(self, model: Shelved) -> None:
        """What waits for it ends, also what came while the node's executors loaded it at their start."""
        error = ModelBroken(f"model {model.name!r} cannot be served here: {model.reason}")
        self._end_waiting(error, model.queue)
        model.let_go()
        self._refused(model, model.reason)

    def _look_empty(self, model: Shelved) -> None:
        if model.machine.stage is not ModelStage.UNLOADING:
            return
        held = any(job.model is model.queue for desk in self._admission.desks for job in desk.in_hand.values())
        if held or model.queue.waiting:
            self._reactor.call_later(EMPTY_LOOK_S, partial(self._look_empty, model))
        else:
            self._handle(model, ModelEvent.EMPTIED)

    def _remove(self, model: Shelved) -> None:
        model.let_go()
        self.crew.tell(Control("remove", models=(model.name,)))

    def _tell(self, model: Shelved) -> None:
        self._changed()
        if model.machine.stage is ModelStage.UNLOADING:
            return
        attempt, model.attempt = model.attempt, None
        if attempt is not None:
            attempt.end()
            del self._attempts[attempt.serial]
            attempt.done(attempt.error)
        asked, model.unload_asked = model.unload_asked, None
        if asked is not None:
            asked(None)


_CARRY_OUT: Final[dict[ModelCommand, Callable[[ModelLibrary, Shelved], None]]] = {
    ModelCommand.STAGE: ModelLibrary._stage,
    ModelCommand.COMMIT: ModelLibrary._commit,
    ModelCommand.DROP: ModelLibrary._drop,
    ModelCommand.CLOSE: ModelLibrary._close,
    ModelCommand.REMOVE: ModelLibrary._remove,
    ModelCommand.TELL: ModelLibrary._tell,
}
