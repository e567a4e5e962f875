"""The models of a node over all their lives: what is in its repository, what serves, and who asked for a change.

It carries out what `workers/lifecycle.py` says: has executors load a new version beside the one that serves, and lets
it serve once all of them hold it warm; closes a model and waits for its requests before it goes. Everything happens in
the node's loop, except reading the repository, which may be slow. Whoever asks gets exactly one answer. Read
`workers/control.py` for who asks from outside.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fabric.errors import ConfigError, Fate, ModelBroken, OverspillError, Unavailable
from workers.attempts import Attempts
from workers.chains import Chains
from workers.fitting import Fit, Room, Spot, fit
from workers.handover import Control
from workers.hostmemory import SHARE, host_bytes
from workers.inventory import Inventory
from workers.legs import loaded_anew
from workers.lifecycle import ModelCommand, ModelEvent, ModelStage
from workers.shelved import Shelved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fabric.local.reactor import Reactor
    from workers.admission import Admission
    from workers.crew import Crew
    from workers.desks import ModelQueue
    from workers.handover import Loaded
    from workers.repository import ModelEntry

    Asked = Callable[[OverspillError | None], None]

_log = logging.getLogger(__name__)
LOAD_DEATHS_MAX: Final = 2
EMPTY_LOOK_S: Final = 0.01
_FIXED: Final = "the models of this node are fixed at its start; start it with --model-control explicit to change them"


class ModelLibrary:  # mutable: the node's models
    """All models of one life of a node. `end_waiting` ends the requests that wait for a model; `changed` hears whenever
    what the node should publish is another; `spots` are the executors as places for models, of which `bytes_max` of
    the host's memory may hold models, 0 for a share of it. It has executors once `use` was called: they report here."""

    crew: Crew

    def __init__(
        self, reactor: Reactor, folder: str, admission: Admission,
        end_waiting: Callable[[OverspillError, ModelQueue], None], changed: Callable[[], None],
        spots: Callable[[], tuple[Spot, ...]], *, explicit: bool, bytes_max: int = 0,
        memory: Callable[[], tuple[int, int]] = host_bytes,
    ) -> None:  # fmt: skip
        self._reactor, self._folder = reactor, folder
        self._admission = admission
        self._end_waiting = end_waiting
        self._changed = changed
        self._spots = spots
        self._explicit = explicit
        self._bytes_max = bytes_max
        self._memory = memory
        self._models: dict[str, Shelved] = {}
        self.inventory = Inventory(reactor, folder, admission, self._models, may_be_none=explicit)
        self._attempts = Attempts(reactor, folder, self._fit, self._ended)
        self._chains = Chains(self._models)
        self._serial = 0

    def use(self, crew: Crew) -> None:
        """The executors that hold the models."""
        self.crew = self._attempts.crew = crew

    def begin(self, entries: Iterable[ModelEntry], to_load: frozenset[str] | None) -> None:
        """What the repository holds at the node's start. Executors load it as they start: all of it, or `to_load`.
        Raises ConfigError for a name that is not there."""
        entries = tuple(entries)
        missing = (to_load or frozenset()) - {entry.name for entry in entries}
        if missing:
            raise ConfigError(f"the model repository has no {', '.join(sorted(missing))}; leave it out of load_models")
        # Ensembles last: what they are made of is known by then.
        for entry in sorted(entries, key=lambda each: each.config is not None and bool(each.config.steps)):
            model = self._models[entry.name] = Shelved(entry.name, entry)
            if to_load is not None and entry.name not in to_load:
                continue
            if entry.source is None:
                self._refused(model, entry.refused)
                continue
            try:
                fit = self._fit(entry, at_start=True)
            except OverspillError as error:
                self._refused(model, str(error))
                continue
            model.machine.handle(ModelEvent.LOAD_ASKED)
            self._serial += 1
            self._serve(model, replace(entry, source=replace(entry.source, serial=self._serial)), fit)

    # What is asked of it. The answer comes when there is one, to `done`: None, or why not.

    def load(self, name: str, override: str, done: Asked) -> None:
        """Has every executor load the newest version of a model, and lets it serve when it is warm on all of them;
        `override` is a whole configuration in JSON. Until then, and when it fails, what served before goes on."""
        try:
            model = self._may_change(name) or Shelved(name)
            self._serial += 1
            self._attempts.begin(model, self._serial, override, done)
        except OverspillError as error:
            done(error)
            return
        self._models[name] = model
        self._handle(model, ModelEvent.LOAD_ASKED)

    def unload(self, name: str, done: Asked) -> None:
        """Takes no new request for a model, lets those that it has end, and has the executors let it go."""
        try:
            model = self._may_change(name)
            self._chains.check_unload(name)
            if model is None:
                self.inventory.loaded(name, "")  # raises with the names of those that there are
        except OverspillError as error:
            done(error)
            return
        assert model is not None, "what is not there was refused"
        model.unload_asked = done
        self._handle(model, ModelEvent.UNLOAD_ASKED)

    # What executors report.

    def loaded(self, number: int, results: tuple[Loaded, ...]) -> None:
        """Executor `number` has started and this became of the models that it should load."""
        for each in results:
            model = self._models.get(each.model)
            if model is None or model.machine.stage is ModelStage.UNLOADED:
                continue
            if each.refused:
                self.broke(each.model, each.refused)
            else:
                model.warmed(each)
                model.deaths.pop(number, None)
                if model.attempt is None:  # else it is one more that has the version before
                    self._handle(model, ModelEvent.LOADED)

    def staged(self, number: int, serial: int, loaded: Loaded) -> None:
        """Executor `number` has loaded what was staged, or could not."""
        self._attempts.staged(number, serial, loaded)

    def stepped(self, steps: tuple[Loaded, ...]) -> None:
        """An ensemble has run. Raises ProtocolError for steps that cannot be."""
        self._chains.count(steps, time.monotonic())

    def executor_ended(self, number: int, why: str, loading: str) -> None:
        """An executor is no more: whatever it was loading counts as the cause. At its start that is one model, and the
        second time in a row proves it."""
        guilty = self._models.get(loading)
        if guilty is not None:
            guilty.deaths[number] += 1
            if guilty.deaths[number] >= LOAD_DEATHS_MAX:
                self.broke(loading, f"the executor {why} each time that it loaded this model")
        self._attempts.executor_ended(number, why)

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

    def _serve(self, model: Shelved, entry: ModelEntry, fit: Fit) -> None:
        legs = model.queue.legs
        batching = model.serve(entry, fit, len(self._admission.desks))
        for leg in legs:  # what lies between two steps was made for the version before
            self._end_waiting(Unavailable(loaded_anew(model.name), Fate.RAN), leg)
        self._admission.models[model.name] = model.queue
        self._admission.reline(model.queue, batching)

    def _refused(self, model: Shelved, why: str) -> None:
        self._admission.models[model.name] = model.refuse(why)

    def _fit(self, entry: ModelEntry, *, at_start: bool = False) -> Fit:
        """Where a model goes. Raises ModelBroken or ResourceExhausted where it does not fit."""
        config, (each, counted) = entry.config, self.inventory.held_bytes()
        assert config is not None, "what cannot be read was refused"
        total, free = self._memory()
        # What is counted at the node's start is not taken yet.
        room = Room(self._bytes_max or int(total * SHARE), counted, free - counted if at_start else free)
        spots = self._spots()
        if at_start:  # a card of which nobody knows yet what is free is not refused for it
            left = {spot.number: max(1, spot.free_bytes - each[spot.number]) for spot in spots if spot.free_bytes}
            spots = tuple(replace(spot, free_bytes=left.get(spot.number, 0)) for spot in spots)
        return self._chains.place(config, entry.file_bytes, lambda nbytes: fit(config, nbytes, spots, each, room))

    def _ended(self, model: Shelved, error: OverspillError | None) -> None:
        error = error or self._unfit(model)
        if error is None:
            self._handle(model, ModelEvent.LOADED)
            return
        assert model.attempt is not None, "there is something that failed"
        model.attempt.error, model.reason = error, str(error)
        _log.warning("model %s cannot be loaded: %s", model.name, error)
        self._handle(model, ModelEvent.LOAD_FAILED)
        if not model.was_read:  # it never was in the repository
            del self._models[model.name], self._admission.models[model.name]

    def _unfit(self, model: Shelved) -> OverspillError | None:
        attempt = model.attempt
        if attempt is not None and attempt.fit is not None and attempt.entry is not None:
            assert attempt.entry.config is not None, "what cannot be read was refused"
            try:
                self._chains.check_still(attempt.entry.config, attempt.fit)
            except OverspillError as error:
                return error
        return None

    # What the table's commands mean.

    def _stage(self, model: Shelved) -> None:
        if model.attempt is not None:  # at the node's start executors load by themselves
            self._attempts.read(model, model.attempt)

    def _commit(self, model: Shelved) -> None:
        attempt = model.attempt
        if attempt is None or attempt.entry is None or attempt.fit is None:
            return
        self._serve(model, attempt.entry, attempt.fit)
        for loaded in attempt.warm:
            model.warmed(loaded)
        self.crew.commit(attempt.serial, attempt.held)

    def _drop(self, model: Shelved) -> None:
        if model.attempt is not None:
            self._attempts.drop(model.attempt)
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
        held = any(job.model.is_of(model.queue) for desk in self._admission.desks for job in desk.in_hand.values())
        if held or model.queue.waiting or model.queue.between:
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
        self._attempts.finish(model)
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
