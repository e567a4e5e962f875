"""What happens to a model in its node: it is loaded, serves, is loaded anew while the old one serves, and is unloaded.

A version that serves is given up for nothing but a new one that is warm on every executor; whatever goes wrong before
that leaves it serving. This module loads nothing and answers nobody: `workers/library.py` carries its commands out.
Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from enum import Enum

from fabric.errors import IllegalTransition

STORY_EDGES = 16


class ModelStage(Enum):
    """Where a model is."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    SERVING = "serving"
    RELOADING = "reloading"
    UNLOADING = "unloading"


class ModelEvent(Enum):
    """What was asked of a model, or became of it."""

    LOAD_ASKED = "load asked"
    LOADED = "loaded"
    LOAD_FAILED = "load failed"
    UNLOAD_ASKED = "unload asked"
    EMPTIED = "emptied"
    BROKE = "broke"


class ModelCommand(Enum):
    """What the library must do."""

    STAGE = "have every executor load it beside what serves"
    COMMIT = "from the next request on, the new one serves"
    DROP = "executors let go what they loaded for this attempt"
    CLOSE = "take no new request"
    REMOVE = "executors let go what served"
    TELL = "answer whoever asked, and publish"


_S, _E, _C = ModelStage, ModelEvent, ModelCommand
TABLE: dict[ModelStage, dict[ModelEvent, tuple[ModelStage, tuple[ModelCommand, ...]]]] = {
    _S.UNLOADED: {
        _E.LOAD_ASKED: (_S.LOADING, (_C.STAGE,)),
        _E.UNLOAD_ASKED: (_S.UNLOADED, (_C.TELL,)),
        _E.BROKE: (_S.UNLOADED, ()),
    },
    _S.LOADING: {
        _E.LOADED: (_S.SERVING, (_C.COMMIT, _C.TELL)),
        _E.LOAD_FAILED: (_S.UNLOADED, (_C.DROP, _C.TELL)),
        _E.BROKE: (_S.UNLOADED, (_C.DROP, _C.TELL)),
    },
    _S.SERVING: {
        _E.LOADED: (_S.SERVING, ()),  # by one more executor, or by a new generation of one
        _E.LOAD_ASKED: (_S.RELOADING, (_C.STAGE,)),
        _E.UNLOAD_ASKED: (_S.UNLOADING, (_C.CLOSE, _C.TELL)),
        _E.BROKE: (_S.UNLOADED, (_C.CLOSE, _C.REMOVE, _C.TELL)),
    },
    _S.RELOADING: {
        _E.LOADED: (_S.SERVING, (_C.COMMIT, _C.TELL)),
        _E.LOAD_FAILED: (_S.SERVING, (_C.DROP, _C.TELL)),
        _E.BROKE: (_S.UNLOADED, (_C.DROP, _C.CLOSE, _C.REMOVE, _C.TELL)),
    },
    _S.UNLOADING: {
        _E.LOADED: (_S.UNLOADING, ()),
        _E.EMPTIED: (_S.UNLOADED, (_C.REMOVE, _C.TELL)),
        _E.BROKE: (_S.UNLOADED, (_C.REMOVE, _C.TELL)),
    },
}


class ModelMachine:  # mutable: one model's place in the table
    """One model over all its versions."""

    __slots__ = ("stage", "story")

    def __init__(self) -> None:
        self.stage = ModelStage.UNLOADED
        self.story: deque[str] = deque(maxlen=STORY_EDGES)

    @property
    def busy(self) -> bool:
        """Whether it is on its way, so that nothing else can be asked of it now."""
        return self.stage in {ModelStage.LOADING, ModelStage.RELOADING, ModelStage.UNLOADING}

    @property
    def serves(self) -> bool:
        """Whether requests are taken."""
        return self.stage in {ModelStage.SERVING, ModelStage.RELOADING}

    def handle(self, event: ModelEvent) -> tuple[ModelCommand, ...]:
        """The commands that follow from an event. Raises IllegalTransition, and stays as it is, where there is none."""
        edge = TABLE[self.stage].get(event)
        if edge is None:
            raise IllegalTransition(
                f"a model that is {self.stage.value} met {event.value!r}; before: {'; '.join(self.story) or 'nothing'}"
            )
        before, (self.stage, commands) = self.stage, edge
        self.story.append(f"{before.value}, {event.value}, {self.stage.value}")
        return commands

    def __repr__(self) -> str:
        return f"<ModelMachine {self.stage.value}>"
