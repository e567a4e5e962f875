"""An engine of the test's own: it echoes inputs as outputs, waits where told to, and counts what is given back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fabric.control import READY
from fabric.dtypes import DType
from fabric.layout import TensorSpec
from fabric.message import RequestId
from frontdoor.clients import Owner
from frontdoor.door import Door, DoorLimits
from frontdoor.engine import Model, Tensor
from frontdoor.regions import Regions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from fabric.control import ModelStatistics, TracedRun
    from fabric.deadline import Deadline
    from fabric.errors import OverspillError
    from fabric.memory.arena import Arena
    from frontdoor.engine import Gauge
    from frontdoor.traces import Trace, Traces

ECHO = Model(
    "echo", "2", READY, "", "python", 0, (Tensor("x", "UINT8", (-1,)),), (Tensor("y", "UINT8", (-1,)),)
)  # fmt: skip


@dataclass(slots=True)
class EchoEngine:  # mutable: a test's, told what to do and asked what was done
    """`fails` is raised by the next run, `waits` awaited by each."""

    known: tuple[Model, ...] = (ECHO,)
    ready: bool = True
    fails: OverspillError | None = None
    waits: asyncio.Event | None = None
    out: int = 0
    """Stagings and replies that were not given back."""
    specs: tuple[TensorSpec, ...] = ()
    """Of the last request."""
    memory: list[int] = field(default_factory=list)
    """What is open on cards."""
    loaded: list[tuple[str, str]] = field(default_factory=list)
    now: tuple[Model, ...] | None = None
    """What the models are once somebody asks anew."""
    looks: int = 0
    runs: tuple[TracedRun, ...] = ()

    def models(self) -> tuple[Model, ...]:
        return self.known

    def untold(self, name: str) -> Model | None:
        return Model(name, "1", "READY") if name == "untold" else None

    async def stage(self, model: Model, specs: tuple[TensorSpec, ...], deadline: Deadline) -> EchoStaged:
        self.out += 1
        self.specs = specs
        return EchoStaged(self, specs, deadline)

    async def fresh(self) -> None:
        self.looks += 1
        self.known = self.now or self.known

    async def traced(self) -> tuple[TracedRun, ...]:
        found, self.runs = self.runs, ()
        return found

    async def refreshed(self, model: Model) -> Model:
        self.known = self.now or self.known
        return next(each for each in self.known if each.name == model.name)

    async def config(self, model: Model) -> str:
        return "{}"

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        return ()

    async def gauges(self) -> tuple[Gauge, ...]:
        return ()

    async def load(self, name: str, config: str) -> None:
        self.loaded.append((name, config))

    async def unload(self, name: str) -> None:
        self.loaded.remove((name, ""))

    async def open_memory(self, handle: bytes, device_id: int, nbytes: int) -> int:
        if self.fails is not None:
            raise self.fails
        self.memory.append(len(self.memory) + 1)
        return self.memory[-1]

    def close_memory(self, number: int) -> None:
        self.memory.remove(number)

    def on_change(self, call: Callable[[], None]) -> None:
        call()


class EchoStaged:  # mutable: released once
    arena: Arena | None = None

    def __init__(self, engine: EchoEngine, specs: tuple[TensorSpec, ...], deadline: Deadline) -> None:
        self._engine = engine
        self._memory = tuple(bytearray(spec.nbytes) for spec in specs if not spec.referred)
        self._released = False
        self.deadline = deadline

    @property
    def views(self) -> tuple[memoryview, ...]:
        return tuple(memoryview(each) for each in self._memory)

    async def run(self, deadline: Deadline, priority: int, trace: Trace | None = None) -> EchoAnswered:
        if trace is not None:
            trace.request = RequestId(7, self._engine.out)
        if self._engine.waits is not None:
            await self._engine.waits.wait()
        if self._engine.fails is not None:
            raise self._engine.fails
        self._engine.out += 1
        outputs = tuple(
            (TensorSpec.of("y" if number == 0 else f"y{number}", DType.UINT8, (len(each),)), memoryview(bytes(each)))
            for number, each in enumerate(self._memory)
        )
        return EchoAnswered(self._engine, outputs)

    def release(self) -> None:
        self._engine.out -= not self._released
        self._released = True


class EchoAnswered:  # mutable: released once
    arena: Arena | None = None

    def __init__(self, engine: EchoEngine, outputs: tuple[tuple[TensorSpec, memoryview], ...]) -> None:
        self._engine = engine
        self._released = False
        self.outputs = outputs

    def release(self) -> None:
        self._engine.out -= not self._released
        self._released = True


class OneOwner:
    """Takes every caller for the same client."""

    owner_of_all = Owner("uid 1", None, None, ("127.0.0.1", 1))
    expired = 0

    async def owner(self, peer: str, port: int) -> Owner:
        return self.owner_of_all


def door_over(engine: EchoEngine, folder: Path, running_max: int = 8, traces: Traces | None = None) -> Door:
    """A door over the engine, with shared memory in a folder."""
    limits = DoorLimits(5.0, running_max)
    return Door(engine, Regions(folder=folder), OneOwner(), limits, traces)  # type: ignore[arg-type]
