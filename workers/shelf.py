"""The models that an executor holds: loaded at its start, staged beside them while they serve, and let go.

A new version is loaded and warmed by a thread of its own, so that requests go on meanwhile; it serves from the node's
word on, and until then the old one does. This module decides neither what is loaded nor when it serves: the node does,
in `workers/library.py`. Read that next.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from fabric.errors import ModelBroken, OverspillError
from workers.batch_run import Scratch
from workers.execution import LoadedModel
from workers.faults import told
from workers.handover import Control, Loaded
from workers.heap import give_back
from workers.parcel import unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.card_rooms import CardRooms
    from workers.faults import Tracebacks
    from workers.repository import ModelSource

GC_THRESHOLD: Final = 50_000
"""New containers before the collector looks at them, 700 by default: a request makes about ten."""
SWITCH_LOADING_S: Final = 0.0005
"""While a model loads beside requests its thread gives the interpreter up this often; Python's own 5 ms would be added
to every request."""


class Shelf:  # mutable: models come and go
    """The models of one executor. `tell` sends a word to the node, from any thread."""

    def __init__(
        self, threads: int, tell: Callable[[Control], None], tracebacks: Tracebacks, *, on_gpu: bool = False,
        rooms: CardRooms | None = None,
    ) -> None:  # fmt: skip
        self.models: dict[str, LoadedModel] = {}
        self._threads = threads
        self._on_gpu = on_gpu
        self._rooms = rooms
        self._tell = tell
        self._tracebacks = tracebacks
        self._serials: dict[str, int] = {}
        self._scratch: dict[str, Scratch] = {}
        self._lock = threading.Lock()
        self._staged: dict[int, LoadedModel] = {}
        self._wanted: set[int] = set()
        self._switch_s = sys.getswitchinterval()

    def take(self, control: Control, descriptors: tuple[int, ...]) -> None:
        """Carries out a word of the node about models."""
        if control.word == "load":
            self._have(unpack(descriptors[0]))
        elif control.word == "stage":
            (source,) = unpack(descriptors[0])
            with self._lock:
                self._wanted.add(source.serial)
                sys.setswitchinterval(SWITCH_LOADING_S)
            threading.Thread(target=self._stage, args=(source,), name=f"loading {source.name}", daemon=True).start()
        elif control.word == "commit":
            self._commit(control.number)
        elif control.word == "drop":
            self._drop(control.number)
        elif control.word == "remove":
            for name in control.models:
                self._remove(name)

    def scratch(self, name: str) -> Scratch:
        """Memory for batches of a model that is held."""
        scratch = self._scratch.get(name)
        if scratch is None:
            scratch = self._scratch[name] = Scratch()
        return scratch

    def _have(self, sources: tuple[ModelSource, ...]) -> None:
        """Holds exactly these from now on; nothing else is done meanwhile."""
        results = []
        for name in self._serials.keys() - {source.name for source in sources}:
            self._remove(name)
        for source in sources:
            if self._serials.get(source.name) == source.serial:
                continue
            self._tell(Control("loading", models=(source.name,)))
            model, loaded = self._load(source)
            results.append(loaded)
            if model is not None:
                self.models[source.name], self._serials[source.name] = model, source.serial
        # Libraries and models stay, so the collector need not look at them again, and requests leave no cycles of ours.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        self._tell(Control("ready", loaded=tuple(results)))

    def _load(self, source: ModelSource) -> tuple[LoadedModel | None, Loaded]:
        try:
            model = LoadedModel(
                source.read(), self._threads, on_gpu=self._on_gpu, find=self.models.get, rooms=self._rooms
            )
            return model, Loaded(source.name, model.warm_up())
        except OverspillError as error:
            if error.__cause__ is not None:
                self._tracebacks.write(source.name, "to load", error.__cause__, time.monotonic())
            return None, Loaded(source.name, refused=str(error))

    def _stage(self, source: ModelSource) -> None:
        """The loading thread."""
        try:
            model, loaded = self._load(source)
        except BaseException as error:  # noqa: BLE001 - a model may raise SystemExit; the node waits for a word
            model, loaded = None, Loaded(source.name, refused=str(ModelBroken(f"model {source.name!r}: {told(error)}")))
        with self._lock:
            wanted = source.serial in self._wanted
            self._wanted.discard(source.serial)
            if wanted and model is not None:
                self._staged[source.serial] = model
            if not self._wanted:
                sys.setswitchinterval(self._switch_s)
        if not wanted and model is not None:
            model.close()
        del model  # this frame must not hold what is about to serve, and to be let go one day
        self._tell(Control("staged", source.serial, loaded=(loaded,)))

    def _commit(self, serial: int) -> None:
        with self._lock:
            model = self._staged.pop(serial)
        name = model.config.name
        old = self.models.get(name)
        self.models[name], self._serials[name] = model, serial
        if old is not None:
            old.close()
            del old
            _tidy()

    def _drop(self, serial: int) -> None:
        with self._lock:
            self._wanted.discard(serial)
            model = self._staged.pop(serial, None)
        if model is not None:
            model.close()
        del model
        _tidy()

    def _remove(self, name: str) -> None:
        self._serials.pop(name, None)
        self._scratch.pop(name, None)
        model = self.models.pop(name, None)
        if model is not None:
            model.close()
            del model
            _tidy()


def _tidy() -> None:
    """Gives the memory of a model that was let go back to the system: its cycles, which were frozen with everything
    else, and what the allocator keeps. It takes some 20 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back()
