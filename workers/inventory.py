"""What can be seen of a node's models without changing anything: for discovery, for executors that start, for clients.

It looks at the same table that `workers/library.py` changes, and adds to it only what it finds new in the repository's
folder. Read `workers/shelved.py` for one entry of it.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from fabric.errors import OverspillError, UnknownModel
from workers.aside import read_aside
from workers.configjson import json_of_config
from workers.lifecycle import ModelStage
from workers.repository import read_repository
from workers.shelved import Shelved

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import ModelFacts
    from fabric.control import ModelState, ModelStatistics
    from fabric.local.reactor import Reactor
    from workers.admission import Admission
    from workers.desks import ModelQueue
    from workers.repository import ModelEntry, ModelSource


class Inventory:  # mutable: shares its library's table
    """The views of a node's models. `may_be_none` says that a node without models is as it should be."""

    def __init__(
        self, reactor: Reactor, folder: str, admission: Admission, models: dict[str, Shelved], *, may_be_none: bool
    ) -> None:
        self._reactor = reactor
        self._folder = folder
        self._admission = admission
        self._models = models
        self._may_be_none = may_be_none

    @property
    def facts(self) -> tuple[ModelFacts, ...]:
        """What discovery is told of each model."""
        return tuple(model.facts() for _, model in sorted(self._models.items()) if model.was_read)

    @property
    def any_model(self) -> bool:
        """Whether there is a model to serve, or none was asked for."""
        return self._may_be_none or any(model.machine.serves for model in self._models.values())

    def sources(self, number: int) -> tuple[ModelSource, ...]:
        """What an executor that starts now must load."""
        found = []
        for model in self._models.values():
            placed = model.fit is not None and number in model.fit.numbers
            if placed and model.source is not None and model.machine.stage is not ModelStage.UNLOADED:
                found.append(model.source)
        return tuple(found)

    def held_bytes(self) -> tuple[Counter[int], int]:
        """What each executor has of models, by number, and what the host's memory has, loads under way included."""
        each, host = Counter[int](), 0
        for model in self._models.values():
            for fit in (model.fit, model.attempt.fit if model.attempt is not None else None):
                if fit is not None:
                    each.update(dict.fromkeys(fit.numbers, fit.need_bytes))
                    host += fit.need_bytes * fit.hosted
        return each, host

    def index(self) -> tuple[ModelState, ...]:
        """Every version of every model, with its state and why it is not ready."""
        return tuple(state for _, model in sorted(self._models.items()) if model.was_read for state in model.states())

    def scan(self, done: Callable[[OverspillError | None], None]) -> None:
        """Looks for folders that are new in the repository, so that `index` has them."""

        read = partial(read_repository, self._folder, may_be_empty=True)
        read_aside(self._reactor, read, partial(self._scanned, done=done))

    def statistics(self, name: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """The statistics of one model that is loaded, or of all. Raises UnknownModel."""
        epoch_s = time.time() - time.monotonic()
        wanted = [self.loaded(name, version)] if name else [each for each in self._models.values() if each.is_loaded]
        jobs = (job for desk in self._admission.desks for job in desk.in_hand.values() if not job.resend)
        in_hand = [job.model for job in jobs if job.model.whole is None]  # later legs are counted as between
        return tuple(
            model.queue.tally.value(model.name, _pending(model.queue, in_hand), epoch_s)
            for model in sorted(wanted, key=lambda each: each.name)
        )

    def config(self, name: str, version: str = "") -> str:
        """The configuration of a model that is loaded, as Triton's JSON. Raises UnknownModel."""
        config = self.loaded(name, version).config
        assert config is not None, "a loaded model was read"
        return json_of_config(config)

    def loaded(self, name: str, version: str) -> Shelved:
        """A model that is loaded. Raises UnknownModel."""
        model = self._models.get(name)
        if model is None or not model.is_loaded:
            self._admission.model(name)  # its error names the models that there are
        if model is None or not model.is_loaded or version not in {"", model.version}:
            known = f"; version {model.version} serves" if model is not None and model.is_loaded else ""
            raise UnknownModel(f"this node has no version {version!r} of model {name[:80]!r}{known}")
        return model

    def _scanned(
        self, found: tuple[ModelEntry, ...] | OverspillError, done: Callable[[OverspillError | None], None]
    ) -> None:
        if isinstance(found, OverspillError):
            done(found)
            return
        for entry in found:
            model = self._models.setdefault(entry.name, Shelved(entry.name))
            if model.entry is None:
                model.entry = entry
        names = {entry.name for entry in found}
        for name in [name for name, model in self._models.items() if not model.is_known and name not in names]:
            del self._models[name]
        done(None)


def _pending(queue: ModelQueue, in_hand: list[ModelQueue]) -> int:
    return queue.waiting + in_hand.count(queue) + queue.between
