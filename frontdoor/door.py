"""One inference, whichever protocol asked for it: inputs gathered where the engine wants them, outputs put where asked.

An input is copied once, from the message or from shared memory to its place, and so is an output. A large copy runs
elsewhere, so that no other client waits for it. The region of a request stays open until the request has ended, however
it ends. This module speaks no protocol and runs no model. Read `frontdoor/over_node.py` next.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from fabric.control import LOADING, UNLOADING
from fabric.deadline import Deadline
from fabric.errors import DeadlineExceeded, Fate, InvalidArgument, OverspillError, Unavailable
from frontdoor.aside import TEXT_INLINE_BYTES, aside
from frontdoor.checks import check_wanted, spec_of, strange
from frontdoor.classes import classified
from frontdoor.copies import Copies, move
from frontdoor.counters import Counters
from frontdoor.cuda_regions import CudaRegion, check_outputs, specs_on_cards
from frontdoor.failures import Refusal, Status, late
from frontdoor.traces import Traces
from frontdoor.values import Done, Output, Place, Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fabric.layout import TensorSpec
    from fabric.memory.arena import Arena
    from frontdoor.clients import Owner
    from frontdoor.engine import Answered, Engine, Model, Staged
    from frontdoor.held import Held
    from frontdoor.leases import Leases
    from frontdoor.regions import Regions
    from frontdoor.trace_context import Context
    from frontdoor.traces import Trace
    from frontdoor.values import Asked

_WHY = {
    LOADING: "it is being loaded; wait",
    UNLOADING: "it is being unloaded; load it again",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the address of the client's end, which of our ports it came to, and the trace it is a part of."""

    peer: str
    port: int
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Bounds of one front door. `timeout_s` is for requests that bring no time of their own."""

    timeout_s: float = 300.0
    running_max: int = 1024


class Door:  # mutable: counts what is going on
    """Inference over one engine. `leases` is None where shared memory is off, `traces` where none are taken."""

    def __init__(
        self, engine: Engine, regions: Regions, leases: Leases | None, limits: DoorLimits, traces: Traces | None = None
    ) -> None:
        self.engine = engine
        self.regions = regions
        self.leases = leases
        self.traces = traces or Traces()
        self.counters = Counters()
        self._limits = limits
        self._models: tuple[Model, ...] = ()
        self._by_name: dict[str, tuple[Model, ...]] = {}
        self.copies = Copies()

    def close(self) -> None:
        """Lets go of threads and regions."""
        self.copies.close()
        self.regions.close()

    # What is there.

    def versions(self, name: str) -> tuple[Model, ...]:
        """All versions of a model. Raises NOT_FOUND."""
        models = self.engine.models()
        if models is not self._models:  # it is another tuple after each change
            self._models, self._by_name = models, {}
            for model in models:
                self._by_name[model.name] = (*self._by_name.get(model.name, ()), model)
        found = self._by_name.get(name, ())
        if not found and (untold := self.engine.untold(name)) is not None:
            return (untold,)
        if not found:
            known = sorted(self._by_name)
            close = get_close_matches(name[:80], known, n=1) or known[:8]
            raise Refusal(Status.NOT_FOUND, f"there is no model {name[:80]!r}; there is {', '.join(close) or 'none'}")
        return found

    async def is_decoupled(self, asked: Asked) -> bool:
        """Whether a request is for a model that answers in a stream. Raises as `model` does."""
        return (await self.found(asked.model, asked.version)).decoupled

    async def found(self, name: str, version: str, *, ready: bool = True) -> Model:
        """The same as `model`; the engine is asked anew before a request is refused for what is not there or not ready:
        it may be by now."""
        try:
            return self.model(name, version, ready=ready)
        except (Refusal, Unavailable):
            await self.engine.fresh()
        return self.model(name, version, ready=ready)

    def model(self, name: str, version: str = "", *, ready: bool = True) -> Model:
        """A model; without a version the highest one. Raises NOT_FOUND, and UNAVAILABLE unless it takes requests
        (which `ready` asks for)."""
        versions = self.versions(name)
        if version and not (version.isascii() and version.isdigit()):
            raise InvalidArgument(f"version {version[:40]!r} is no number; give one, or leave it out")
        if version:
            versions = tuple(model for model in versions if model.version == version)
            if not versions:
                raise Refusal(
                    Status.NOT_FOUND, f"model {name!r} has no version {version[:40]!r}; leave the version out"
                )
        serving = [model for model in versions if model.ready]
        if ready and not serving:
            why = versions[-1].reason or _WHY.get(versions[-1].state, "it was unloaded; load it again")
            raise Unavailable(f"model {name!r} is not ready: {why}")
        return max(serving or versions, key=lambda model: (len(model.version), model.version))

    async def owner(self, caller: Caller) -> Owner:
        """The caller as an owner of shared memory. Raises UNIMPLEMENTED where that is switched off."""
        if self.leases is None:
            told = 'shared memory is switched off here; send tensors raw, or have it set to "copy"'
            raise Refusal(Status.UNIMPLEMENTED, told)
        return await self.leases.owner(caller.peer, caller.port)

    # One inference.

    async def infer(self, asked: Asked, caller: Caller, deadline: Deadline | None) -> Done:
        """Runs a request. `deadline` is the client's, if it told one. Raises OverspillError; cancelling it cancels the
        request wherever it is. Whoever gets a reply releases it."""
        if not self.traces.taken or (trace := self.traces.begin(asked.model, caller.context)) is None:
            return await self._infer(asked, caller, deadline, None)
        with self.traces.ending(trace):
            return await self._infer(asked, caller, deadline, trace)

    async def _infer(self, asked: Asked, caller: Caller, deadline: Deadline | None, trace: Trace | None) -> Done:
        until = self._begin(asked, deadline)
        try:
            model = await self._checked_model(asked)
            if model.decoupled:
                told = f"model {model.name!r} is decoupled and answers in a stream; send it over ModelStreamInfer"
                raise Refusal(Status.UNIMPLEMENTED, told)
            with ExitStack() as held:
                staged, regions = await self._stage(model, asked, caller, until, held)
                answered = await staged.run(until, asked.options.priority, trace)
                return await self._done(model, asked, answered, regions)
        except DeadlineExceeded as error:
            raise late(error, limited=asked.options.timeout_us > 0 and until != deadline) from None
        finally:
            self.counters.running -= 1

    async def stream(self, asked: Asked, caller: Caller, deadline: Deadline | None) -> AsyncGenerator[Done, None]:
        """The same for a decoupled model, answer by answer: the model goes on when the next one is asked for."""
        trace = self.traces.begin(asked.model, caller.context) if self.traces.taken else None
        with self.traces.ending(trace):
            async with aclosing(self._stream(asked, caller, deadline, trace)) as answers:
                async for done in answers:
                    yield done

    async def _stream(
        self, asked: Asked, caller: Caller, deadline: Deadline | None, trace: Trace | None
    ) -> AsyncGenerator[Done, None]:
        until = self._begin(asked, deadline)
        try:
            model = await self._checked_model(asked)
            with ExitStack() as held:
                staged, regions = await self._stage(model, asked, caller, until, held)
                async with aclosing(staged.stream(until, asked.options.priority, trace)) as answers:
                    async for answered in answers:
                        yield await self._done(model, asked, answered, regions)
        except DeadlineExceeded as error:
            raise late(error, limited=asked.options.timeout_us > 0 and until != deadline) from None
        finally:
            self.counters.running -= 1

    def _begin(self, asked: Asked, deadline: Deadline | None) -> Deadline:
        if self.counters.running >= self._limits.running_max:
            raise Unavailable(f"{self.counters.running} requests are running here; try again later")
        until = self._until(asked, deadline)
        self.counters.running += 1
        return until

    def _until(self, asked: Asked, given: Deadline | None) -> Deadline:
        now = time.monotonic()
        until = given or Deadline(now + self._limits.timeout_s)
        if asked.options.timeout_us:
            until = until.earlier(Deadline(now + asked.options.timeout_us / 1e6))
        if until.expired(now):
            raise DeadlineExceeded("the time was over when the request arrived; give it more", Fate.NEVER_RAN)
        return until

    async def _checked_model(self, asked: Asked) -> Model:
        model = await self.found(asked.model, asked.version)
        if strange(model, asked):
            model = await self.engine.refreshed(model)  # a reload may have brought outputs that were not known
        check_wanted(model, asked)
        return model

    async def _stage(
        self, model: Model, asked: Asked, caller: Caller, deadline: Deadline, held: ExitStack
    ) -> tuple[Staged, dict[str, Held]]:
        """The request's inputs, where the engine wants them; they and their regions are held until `held` ends."""
        specs = tuple(spec_of(given) for given in asked.inputs)
        regions = await self._hold_regions(asked, caller, held)
        if any(isinstance(region, CudaRegion) for region in regions.values()):
            check_outputs(model, asked, regions)
            specs = specs_on_cards(asked, specs, regions)
        staged = await self.engine.stage(model, specs, deadline)
        held.callback(staged.release)
        await self._fill(asked, staged, regions)
        return staged, regions

    async def _done(self, model: Model, asked: Asked, answered: Answered, regions: dict[str, Held]) -> Done:
        try:
            outputs = await self._hand_out(model, asked, answered, regions)
        except BaseException as error:  # whatever it was: the memory goes back
            answered.release()
            if isinstance(error, OverspillError):
                error.fate = Fate.RAN  # the model did, whatever is wrong with its answer
            raise
        return Done(model.name, model.version, asked.id, outputs, answered.release)

    async def _hold_regions(self, asked: Asked, caller: Caller, held: ExitStack) -> dict[str, Held]:
        """Opens no region that another request could close meanwhile. Raises before anything runs."""
        places = [given.data for given in asked.inputs if isinstance(given.data, Place)]
        places += [wanted.place for wanted in asked.outputs if wanted.place is not None]
        if not places:
            return {}
        owner = await self.owner(caller)
        found: dict[str, Held] = {}
        for place in places:
            if place.region not in found:
                region = found[place.region] = self.regions.find(owner, place.region)
                region.hold()
                held.callback(region.let_go)
            found[place.region].check(place)
        return found

    async def _fill(self, asked: Asked, staged: Staged, regions: dict[str, Held]) -> None:
        for given, view in zip(asked.inputs, staged.views, strict=True):
            if isinstance(given.data, Place):
                region, offset = regions[given.data.region], given.data.offset
                self.counters.bytes_in[region.way] += len(view)
                await self.copies.take(region, offset, view[: len(view) * region.is_copied], staged.arena)
            else:
                self.counters.bytes_in["raw"] += len(view)
                await self.copies.run(len(view), partial(move, given.data, view))

    async def _hand_out(
        self, model: Model, asked: Asked, answered: Answered, regions: dict[str, Held]
    ) -> tuple[Output, ...]:
        found = {spec.name: (spec, view) for spec, view in answered.outputs}
        outputs = []
        everything = tuple(Wanted(name, binary=asked.options.binary_output) for name in found)
        for wanted in asked.outputs or everything:
            if wanted.name not in found:
                raise InvalidArgument(f"model {model.name!r} has no output {wanted.name!r}; it has {', '.join(found)}")
            spec, view = found[wanted.name]
            if wanted.classes:
                work = partial(classified, spec, view, wanted.classes, batched=model.max_batch_size > 0)
                spec, view = work() if spec.nbytes <= TEXT_INLINE_BYTES else await aside(work)
            if wanted.place is not None:
                await self._put(spec, view, wanted.place, regions[wanted.place.region], answered.arena)
                outputs.append(Output(spec, None, Place(wanted.place.region, wanted.place.offset, spec.nbytes), wanted))
            else:
                self.counters.bytes_out["raw"] += spec.nbytes
                outputs.append(Output(spec, view, None, wanted))
        return tuple(outputs)

    async def _put(self, spec: TensorSpec, view: memoryview, place: Place, region: Held, arena: Arena | None) -> None:
        if spec.nbytes > place.nbytes:
            raise Refusal(
                Status.INTERNAL,
                f"output {spec.name!r} has {spec.nbytes} bytes and its place in region {place.region!r}"
                f" {place.nbytes}; give it more",
            )
        self.counters.bytes_out[region.way] += spec.nbytes
        await self.copies.put(region, place.offset, view[: spec.nbytes * region.is_copied], arena)
