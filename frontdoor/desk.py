"""What a front door knows of its node's models: asked on the node's control socket, each second, on news and on demand.

Asking blocks, so it is done in a thread. Between two answers the last one holds; that there may be news, and whether
the node is ready at all, is pushed by the node itself. Who asks for a model that is not known, or not ready, has the
node asked at once: it may have been loaded a moment ago. A node that hangs pushes nothing: it is felt for by a small
question several times a second. This module never runs a request. Read `fabric/local/control.py` for the questions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fabric.control import READY
from fabric.errors import DeadlineExceeded, OverspillError, Unavailable, UnknownModel
from frontdoor.engine import Model, Tensor
from frontdoor.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.control import ExecutorFacts, MemoryFacts, ModelState, ModelStatistics, TracedRun
    from fabric.local.control import NodeControl

_log = logging.getLogger(__name__)
LOOK_S = 1.0
"""A look has the node read its repository. What ends all service at once is pushed, and not looked for."""
FRESH_S = 1.0
"""How long a client's request waits for a look at most: a node that is slower is told as it was known."""
CHANGES_MAX = 8
"""Models that clients may have loaded or unloaded at the same time; a node loads four."""
PULSE_S = 0.2
PULSE_TIMEOUT_S = 0.75
"""A node that does not answer for so long takes no requests either; with `PULSE_S` it is told within a second."""


class Desk:  # mutable: the last answers
    """The models behind `control`. `ready` and `draining` are set by whoever hears the node."""

    def __init__(self, control: NodeControl) -> None:
        self.models: tuple[Model, ...] = ()
        self.draining = False
        self._ready = False
        self._control = control
        self._calls: list[Callable[[], None]] = []
        self._mute = False
        self._answers = True
        self._turns = Turns()
        self._looks = Turns()
        self._due = asyncio.Event()
        # Of its own: whatever else is asked (a load may take minutes) holds up neither pulse nor look.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="overspill-desk")
        self._slow = ThreadPoolExecutor(CHANGES_MAX, thread_name_prefix="overspill-change")
        self._changing = 0

    def close(self) -> None:
        """Asks nothing more; what is being asked ends by itself."""
        for threads in (self._threads, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def ready(self) -> bool:
        """Whether the node takes requests."""
        return self._ready and self._answers and not self.draining

    def tell_ready(self, *, ready: bool) -> None:
        """The node's own word."""
        self._ready = ready
        self._news()

    def drain(self) -> None:
        """The node takes no more work."""
        self.draining = True
        self._news()

    def on_news(self, call: Callable[[], None]) -> None:
        """Has `call` called whenever readiness or models have changed."""
        self._calls.append(call)

    async def look_for_ever(self) -> None:
        """Asks again and again; ends by cancelling."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._feel_for_ever())
            while True:
                self._due.clear()
                await self.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._due.wait()

    def look_soon(self) -> None:
        """There may be news of the models."""
        self._due.set()

    async def fresh(self) -> None:
        """Has `models` be as the node has them now, if it answers soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FRESH_S if self._answers else 0.0):
                await self.look()

    async def _feel_for_ever(self) -> None:
        """Notices a node that hangs, or that is back."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                answers = await loop.run_in_executor(self._threads, self._feel)
            except (OSError, RuntimeError):  # no thread left here, which says nothing of the node
                answers = self._answers
            if answers is not self._answers:
                _log.warning("the node %s", "answers again" if answers else "does not answer; it is told as not ready")
                self._answers = answers
                self._news()
            await asyncio.sleep(PULSE_S)

    def _feel(self) -> bool:
        """Whether the node answers a question of no weight; an error is an answer too."""
        try:
            self._control.statistics(self.models[0].name if self.models else "", timeout_s=PULSE_TIMEOUT_S)
        except (DeadlineExceeded, Unavailable):
            return False
        except OverspillError:
            return True
        return True

    async def look(self) -> None:
        """Asks what models there are. A node that does not answer leaves what was known."""
        await self._looks.ask("models", self._look)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            models = await loop.run_in_executor(self._threads, self._read, self.models)
        except (
            OverspillError,
            OSError,
            RuntimeError,
        ) as error:  # of the last two: no descriptor or thread left, for now
            if not self._mute:
                _log.warning("the node does not say what models it has: %s", error)
            self._mute = True
            return
        self._mute = False
        if models != self.models:
            self.models = models
            self._news()

    async def refreshed(self, model: Model) -> Model:
        """The model with its configuration as it is now."""
        fresh = _described(model, await self.config(model))
        if fresh != model:
            same = (model.name, model.version)
            self.models = tuple(fresh if (each.name, each.version) == same else each for each in self.models)
        return fresh

    async def config(self, model: Model) -> str:
        """The model's configuration as Triton's JSON."""
        question = partial(asyncio.to_thread, self._control.config, model.name, model.version)
        return await self._turns.ask(("config", model.name, model.version), question)

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        """The figures of one model, or of all."""
        question = partial(asyncio.to_thread, self._control.statistics, name, version)
        return await self._turns.ask(("statistics", name, version), question)

    async def traced(self) -> tuple[TracedRun, ...]:
        """What traced requests took at the node, each told once."""
        return await self._turns.ask("traced", partial(asyncio.to_thread, self._control.traced))

    async def executors(self) -> tuple[ExecutorFacts, ...]:
        """The node's executors as they are now."""
        return await self._turns.ask("executors", partial(asyncio.to_thread, self._control.executors))

    async def open_memory(self, memory: MemoryFacts) -> int:
        """Has memory on a card opened; gives its number."""
        return await asyncio.to_thread(self._control.open_memory, memory)

    def close_memory(self, memory: MemoryFacts) -> None:
        """Has it let go of; nobody waits for that."""
        with suppress(RuntimeError):  # this desk is closed, and the node sees that we are gone
            self._threads.submit(self._close_memory, memory)

    def _close_memory(self, memory: MemoryFacts) -> None:
        try:
            self._control.close_memory(memory)
        except OverspillError as error:
            _log.warning("the node keeps memory of a client's on its card: %s", error)

    async def load(self, name: str, config: str) -> None:
        """Has a model loaded, and knows of it when it returns."""
        try:
            await self._change(partial(self._control.load, name, config))
        finally:
            await self.look()

    async def unload(self, name: str) -> None:
        """Has a model unloaded, and knows of it when it returns."""
        try:
            await self._change(partial(self._control.unload, name))
        finally:
            await self.look()

    async def _change(self, work: Callable[[], None]) -> None:
        """Has models changed, which may take minutes, in threads that nobody else waits for."""
        if self._changing >= CHANGES_MAX:
            raise Unavailable(f"{self._changing} models are being loaded or unloaded already; ask again later")
        self._changing += 1
        running = asyncio.get_running_loop().run_in_executor(self._slow, work)
        running.add_done_callback(self._changed)
        await asyncio.shield(running)  # whoever gives up waiting does not end it, and it counts until it ends

    def _changed(self, done: asyncio.Future[None]) -> None:
        self._changing -= 1
        if not done.cancelled():
            done.exception()  # told to whoever waits, if anybody does

    def _read(self, before: tuple[Model, ...]) -> tuple[Model, ...]:
        known = {(model.name, model.version, model.serial): model for model in before if model.ready}
        states = self._control.index()
        return tuple(self._model(state, known.get((state.name, state.version, state.serial))) for state in states)

    def _model(self, state: ModelState, known: Model | None) -> Model:
        model = Model(state.name, state.version, state.state, state.reason, serial=state.serial)
        if not model.ready:
            return model
        if known is not None:
            return replace(known, state=state.state, reason=state.reason)
        try:
            return _described(model, self._control.config(state.name, state.version))
        except UnknownModel:  # it went between two questions
            return model

    def _news(self) -> None:
        for call in self._calls:
            call()


def _described(model: Model, config: str) -> Model:
    """The model with what its configuration says of it."""
    facts: dict[str, Any] = json.loads(config)
    batched = facts.get("max_batch_size", 0) > 0
    return replace(
        model,
        state=READY,
        platform=facts.get("platform") or facts.get("backend", ""),
        max_batch_size=int(facts.get("max_batch_size", 0)),
        inputs=tuple(_tensor(each, batched=batched) for each in facts.get("input", ())),
        outputs=tuple(_tensor(each, batched=batched) for each in facts.get("output", ())),
        decoupled=bool(facts.get("model_transaction_policy", {}).get("decoupled")),
        steps=tuple(each["model_name"] for each in facts.get("ensemble_scheduling", {}).get("step", ())),
    )


def _tensor(facts: dict[str, Any], *, batched: bool) -> Tensor:
    dtype = facts["data_type"].removeprefix("TYPE_")
    dims = tuple(int(dim) for dim in facts["dims"])
    return Tensor(facts["name"], "BYTES" if dtype == "STRING" else dtype, (-1, *dims) if batched else dims)
