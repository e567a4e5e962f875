"""A router as an engine of the front door: callers in other languages get what `AsyncRouter` gives, over gRPC and HTTP.

What models there are is read from the registry, whether one can be had now from the router. Retries, prices and the
choice of a worker are the router's; nothing of that is here. This module speaks no protocol. Read
`overspill/commands/gateway.py` and `router/aio.py` next.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from discovery.instance import Insert
from discovery.registry import open_registry
from fabric.control import READY, UNAVAILABLE
from fabric.errors import OverspillError, Unavailable, UnknownModel
from frontdoor.engine import Gauge, Model, Tensor
from frontdoor.failures import Refusal, Status
from frontdoor.ledger import Tally
from overspill.routed import RouterStaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import Change, Instance, ModelFacts, TensorFacts
    from fabric.control import ModelStatistics, TracedRun
    from fabric.deadline import Deadline
    from fabric.layout import TensorSpec
    from router.aio import AsyncRouter

LOST_S = 0.6
"""A node that does not answer for so long is told as one that cannot be had: a short stall is the router's to bridge,
and one that lasts is told within a second."""
LOOK_S = 0.1
"""Whether a model can be had changes with links, which tell nobody; asking the router takes some microseconds."""

MODELS_MAX = 4096
"""Models that are remembered after their last node is gone."""
_VERSION = "1"
"""Of a model whose node tells none."""
_NAME_MAX = 255
_NOBODY = "no node that has it can be reached now; wait"


class RouterEngine:  # mutable: what the registry said, and figures
    """The models that `router` reaches, with what the registry at `url` tells of them. Used on one loop. Raises
    RegistryUnavailable or ConfigError."""

    def __init__(self, router: AsyncRouter, url: str) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._instances: dict[tuple[str, int], Instance] = {}
        self._models: tuple[Model, ...] = ()
        self._once: dict[tuple[str, str], Model] = {}
        self._lost_since_s: dict[str, float] = {}
        self._learned: set[str] = set()
        self._any_at_s = float("-inf")
        self._any = False
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._calls: list[Callable[[], None]] = []
        self._watch = open_registry(url).watch(self._changed)
        self._looking = asyncio.create_task(self._look_for_ever())
        self._look()

    async def close(self) -> None:
        """Ends the watch."""
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking
        await asyncio.to_thread(self._watch.close)

    @property
    def ready(self) -> bool:
        """Whether any model can be had."""
        return self._any or any(model.ready for model in self._models)

    def models(self) -> tuple[Model, ...]:
        """All models that a node told of, or that the router reaches."""
        return self._models

    def untold(self, name: str) -> Model | None:
        """Any name, where a node of a fixed list is reached: it says itself what it has, when it is asked."""
        return Model(name, _VERSION, READY, platform="overspill") if self._any and 0 < len(name) <= _NAME_MAX else None

    def on_change(self, call: Callable[[], None]) -> None:
        """Has `call` called when models come, go, or can or cannot be had."""
        self._calls.append(call)

    async def fresh(self) -> None:
        """Looks at the router once more."""
        self._look()

    async def traced(self) -> tuple[TracedRun, ...]:
        """None: what is known of a request is told to its trace with the reply."""
        return ()

    async def refreshed(self, model: Model) -> Model:
        """The model as it is known now."""
        self._look()
        return next((each for each in self._models if (each.name, each.version) == (model.name, model.version)), model)

    async def config(self, model: Model) -> str:
        """As much of a configuration as the registry tells."""
        facts = {
            "name": model.name,
            "backend": "overspill",
            "input": [_config_of(tensor) for tensor in model.inputs],
            "output": [_config_of(tensor) for tensor in model.outputs],
        }
        return json.dumps(facts)

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        """What went through this gateway."""
        wanted = [m for m in self._models if name in {"", m.name} and version in {"", m.version}]
        if name and not wanted:
            raise UnknownModel(f"there is no model {name!r}; ask for the index")
        return tuple(self.tally(model).value(model.name, model.version) for model in wanted)

    async def gauges(self) -> tuple[Gauge, ...]:
        """The router's own figures."""
        found = self._router.statistics()
        age = Gauge(
            "overspill_registry_age_seconds", "Since the registry last answered", counts=False,
            samples=(((), found.registry_age_s),),
        )  # fmt: skip
        workers = Gauge(
            "overspill_workers", "Nodes that the registry tells of", counts=False,
            samples=(((), len(self._instances)),),
        )  # fmt: skip
        return age, workers

    async def load(self, name: str, config: str) -> None:  # noqa: ARG002 - the contract's
        """Never: models are loaded at their nodes."""
        raise Unavailable(f"model {name!r} is loaded at its nodes, not at a gateway; ask their front doors")

    async def unload(self, name: str) -> None:
        """Never: models are loaded at their nodes."""
        await self.load(name, "")

    async def open_memory(self, handle: bytes, device_id: int, nbytes: int) -> int:  # noqa: ARG002 - the contract's
        """Never: memory on a card is opened where the card is."""
        told = (
            "a gateway has no CUDA device; use the front door of a node with one, system shared memory, or raw tensors"
        )
        raise Refusal(Status.UNIMPLEMENTED, told)

    def close_memory(self, number: int) -> None:
        """Nothing: none was opened."""

    async def stage(
        self, model: Model, specs: tuple[TensorSpec, ...], deadline: Deadline,  # noqa: ARG002 - the contract's
    ) -> RouterStaged:  # fmt: skip
        """Memory in the arena of the nearest node, or the router's own."""
        return RouterStaged(
            self._router, model.name, self._router.stage(model.name, specs), self.tally(model), self._learn
        )

    def tally(self, model: Model) -> Tally:
        """The figures of a model."""
        found = self._tallies.get((model.name, model.version))
        if found is None:
            found = Tally()
            if len(self._tallies) < MODELS_MAX:  # names that no node has are a client's to invent
                self._tallies[model.name, model.version] = found
        return found

    # What is known.

    def _learn(self, name: str) -> None:
        """A node answered for a model: it is there, even if nobody tells of it."""
        if name not in self._learned and len(self._learned) < MODELS_MAX:
            self._learned.add(name)
            self._look()

    def _changed(self, changes: tuple[Change, ...]) -> None:
        """In a thread of the registry's."""
        with suppress(RuntimeError):  # the loop is closed: so is the gateway
            self._loop.call_soon_threadsafe(self._take, changes)

    def _take(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, Insert):
                self._instances[change.instance.key] = change.instance
            else:
                self._instances.pop((change.node_id, change.node_epoch), None)
        self._look()

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        now, before = time.monotonic(), self._any
        try:
            reached = self._reached(now)
            self._any_at_s = now if self._router.takes_any() else self._any_at_s
        except OverspillError:  # it is being closed
            reached = frozenset()
        self._any = now - self._any_at_s < LOST_S
        reached |= self._learned if self._any else set()
        told = {(model.name, model.version): model for model in _merged(tuple(self._instances.values()), reached)}
        # A model whose last node is gone may come back: whoever asks for it should try again, not give up.
        gone = [replace(each, state=UNAVAILABLE, reason=_NOBODY) for key, each in self._once.items() if key not in told]
        if len(self._once) + len(told) <= MODELS_MAX:
            self._once.update(told)
        models = tuple(sorted((*told.values(), *gone), key=lambda model: (model.name, model.version)))
        if models != self._models or self._any is not before:
            self._models = models
            for call in self._calls:
                call()

    def _reached(self, now: float) -> frozenset[str]:
        """The models that can be had, or could be a moment ago."""
        reached = frozenset(self._router.models_reached())
        lost = frozenset(self._router.models()) - reached
        self._lost_since_s = {name: self._lost_since_s.get(name, now) for name in lost}
        return reached | {name for name, since_s in self._lost_since_s.items() if now - since_s < LOST_S}


def _merged(instances: tuple[Instance, ...], reached: frozenset[str]) -> tuple[Model, ...]:
    """One model for each name and version that a node tells of; those of a fixed list tell nothing of theirs."""
    offered: dict[tuple[str, str], ModelFacts] = {}
    for instance in instances:
        for facts in instance.models:
            known = offered.get((facts.name, facts.version))
            if known is None or (known.refused and not facts.refused):
                offered[facts.name, facts.version] = facts
    found = [_model(facts, reached) for facts in offered.values()]
    untold = reached - {facts.name for facts in offered.values()}
    found += [Model(name, _VERSION, READY, platform="overspill") for name in untold]
    return tuple(found)


def _model(facts: ModelFacts, reached: frozenset[str]) -> Model:
    ready = facts.name in reached and not facts.refused
    reason = facts.refused or ("" if ready else _NOBODY)
    return Model(
        facts.name, facts.version, READY if ready else UNAVAILABLE, reason, "overspill",
        inputs=_tensors(facts.inputs), outputs=_tensors(facts.outputs),
    )  # fmt: skip


def _tensors(facts: tuple[TensorFacts, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(each.name, each.dtype, each.dims) for each in facts)


def _config_of(tensor: Tensor) -> dict[str, object]:
    kind = "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"
    return {"name": tensor.name, "data_type": kind, "dims": list(tensor.dims)}
