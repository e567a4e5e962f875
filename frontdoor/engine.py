"""What the front door asks of anything that can infer, and the values that pass between them.

There are two engines: a node (`frontdoor/over_node.py`) and a router, which makes a gateway. An engine knows models and
runs requests; it knows nothing of gRPC, HTTP or the shared memory of clients. Inputs are written where the engine wants
them, once (`Staged.views`), and outputs are read where they lie. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fabric.control import READY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fabric.control import ModelStatistics, TracedRun
    from fabric.deadline import Deadline
    from fabric.layout import TensorSpec
    from fabric.memory.arena import Arena
    from frontdoor.traces import Trace


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declared input or output. `dims` are as sent, -1 where any size goes."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """One version of a model, as its engine tells of it. `state` is a word of `fabric/control.py`, `reason` why it is
    not ready. `max_batch_size` is 0 where the first dimension is no batch, or that is not known."""

    name: str
    version: str
    state: str
    reason: str = ""
    platform: str = ""
    max_batch_size: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    decoupled: bool = False
    """It gives none, one or many answers to a request."""
    steps: tuple[str, ...] = ()
    """The models that an ensemble runs."""
    serial: int = 0
    """Another one after each load, where the engine tells."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.state == READY


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure of the engine's own, for the metrics page: a value for each set of labels. `counts`: it only grows."""

    name: str
    tells: str
    counts: bool
    samples: tuple[tuple[tuple[tuple[str, str], ...], float], ...]


class Answered(Protocol):
    """A reply: its outputs lie in the engine's memory until `release`."""

    @property
    def outputs(self) -> tuple[tuple[TensorSpec, memoryview], ...]:
        """Each output's spec and its bytes; BYTES in the protocol's serialised form."""

    @property
    def arena(self) -> Arena | None:
        """The memory that they lie in, where another process can map it."""

    def release(self) -> None:
        """Gives the memory back; no view of it may be read afterwards. Safe to call twice."""


class Staged(Protocol):
    """Memory for the inputs of one request."""

    @property
    def views(self) -> tuple[memoryview, ...]:
        """Where each input is to be written, in the order of the specs given, each of exactly its `nbytes`; none for
        those that are only referred to."""

    @property
    def arena(self) -> Arena | None:
        """The memory that they lie in, where another process can map it."""

    async def run(self, deadline: Deadline, priority: int, trace: Trace | None = None) -> Answered:
        """Runs the request. Cancelling it cancels the request; a `trace` is told of it. Raises OverspillError."""

    def stream(self, deadline: Deadline, priority: int, trace: Trace | None = None) -> AsyncGenerator[Answered, None]:
        """Runs the request of a decoupled model; each answer is awaited when it is asked for. Raises OverspillError."""

    def release(self) -> None:
        """Gives the memory back, when whatever still reads it has ended. Safe to call twice."""


class Engine(Protocol):
    """Anything that can infer. Everything but the coroutines answers at once, from what is known."""

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""

    def models(self) -> tuple[Model, ...]:
        """All models, those that are refused too: the same tuple until something changes."""

    def untold(self, name: str) -> Model | None:
        """A model that `models` does not tell of, and that may be there all the same; None where it tells of all."""

    async def stage(self, model: Model, specs: tuple[TensorSpec, ...], deadline: Deadline) -> Staged:
        """Memory for the inputs of one request. Raises OverspillError: what the model does not take, or no room."""

    async def fresh(self) -> None:
        """Has `models` tell what there is now, not what there was a moment ago. Never raises."""

    async def traced(self) -> tuple[TracedRun, ...]:
        """What traced requests took, told once each, where the engine does not tell their trace. Raises
        OverspillError."""

    async def refreshed(self, model: Model) -> Model:
        """The model as it is now, asked for anew: metadata may have changed with a reload. Raises OverspillError."""

    async def config(self, model: Model) -> str:
        """The model's configuration, as the JSON of Triton's message. Raises OverspillError."""

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        """The figures of one model, or of all. Raises UnknownModel, or Unavailable when they cannot be had."""

    async def gauges(self) -> tuple[Gauge, ...]:
        """Figures of its own for the metrics page."""

    async def load(self, name: str, config: str) -> None:
        """Loads a model or loads it again, with another configuration if `config` is not empty. Raises OverspillError;
        a version that served until now goes on then."""

    async def unload(self, name: str) -> None:
        """Takes a model out of service. Raises OverspillError."""

    async def open_memory(self, handle: bytes, device_id: int, nbytes: int) -> int:
        """Opens memory on a card that a client made, by CUDA's IPC; gives the number that `fabric/card_place.py` names
        places in it by. Raises OverspillError: what cannot be opened, or no card."""

    def close_memory(self, number: int) -> None:
        """Lets go of it, soon."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Has `call` called, on the engine's loop, whenever readiness or models change."""
