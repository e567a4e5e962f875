"""What the front door tells and changes besides inference, free of any protocol: names, repository, memory, settings.

Both protocols ask here, so that they cannot differ. What a client may change (models, log settings) is the operator's
to allow. This module never runs a request. Read `frontdoor/grpc_facts.py` and `frontdoor/http_facts.py` next.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fabric.errors import InvalidArgument, OverspillError, Unavailable
from frontdoor.cuda_regions import CudaRegion
from frontdoor.failures import Refusal, Status
from frontdoor.regions import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fabric.control import ModelStatistics
    from frontdoor.cuda_regions import CudaStatus
    from frontdoor.door import Caller, Door
    from frontdoor.engine import Model
    from frontdoor.regions import RegionStatus

EXTENSIONS = (
    "classification", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "schedule_policy", "sequence", "statistics", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data",
    "parameters", "trace", "logging",
)  # fmt: skip
HANDLE_BYTES = 64  # sizeof(cudaIpcMemHandle_t), cuda_runtime_api.h
Setting = bool | int | str
_KINDS = {bool: "true or false", int: "a whole number", str: "a text"}
FACTS_BYTES_MAX = 1 << 20
"""Of a request that is no inference: a configuration is the longest of them, and has some kilobytes."""


@dataclass(frozen=True, slots=True)
class Permits:
    """What clients may do beside asking: load and unload models and change log settings (`control`)."""

    control: bool = False


class Facts:  # mutable: remembers log settings
    """Everything but inference, over one door."""

    def __init__(self, door: Door, permits: Permits, name: str) -> None:
        self._door = door
        self._engine = door.engine
        self._permits = permits
        self._log: dict[str, Setting] = {
            "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
            "log_format": "default",
        }  # fmt: skip
        self.name = name
        self.draining = False
        self.version = own_version()

    # Health and metadata.

    def ready(self) -> bool:
        """Whether the server takes requests."""
        return self._engine.ready and not self.draining

    def model_ready(self, name: str, version: str) -> bool:
        """Whether a model takes requests, as far as is known; one that is not there does not. Raises
        INVALID_ARGUMENT."""
        try:
            return self.ready() and self._door.model(name, version, ready=False).ready
        except Refusal as error:
            if error.status is Status.NOT_FOUND:
                return False
            raise

    async def model_ready_now(self, name: str, version: str) -> bool:
        """The same; the engine is asked anew before the answer is no."""
        if not self.model_ready(name, version):
            await self._engine.fresh()
        return self.model_ready(name, version)

    def knows(self, name: str) -> bool:
        """Whether there is a model of that name, ready or not."""
        return any(model.name == name for model in self._engine.models())

    async def metadata(self, name: str, version: str) -> tuple[Model, tuple[str, ...]]:
        """A model as it is now, and all its versions that serve. Raises NOT_FOUND or UNAVAILABLE."""
        model = await self._engine.refreshed(await self._door.found(name, version))
        return model, tuple(each.version for each in self._door.versions(name) if each.ready)

    async def config(self, name: str, version: str) -> str:
        """A model's configuration as JSON of Triton's message."""
        return await self._engine.config(await self._door.found(name, version))

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        """Figures of one model, or of all. Raises INVALID_ARGUMENT for one that is not there, as Triton does."""
        if name:
            try:
                await self._door.found(name, version, ready=False)
            except Refusal as error:
                raise InvalidArgument(str(error)) from None
        return await self._engine.statistics(name, version)

    # Repository.

    async def index(self, repository: str, *, ready: bool) -> tuple[Model, ...]:
        """All models, or those that are ready."""
        if repository:
            raise Refusal(Status.NOT_FOUND, f"there is no repository {repository[:80]!r}; leave the name out")
        await self._engine.fresh()
        return tuple(model for model in self._engine.models() if model.ready or not ready)

    async def load(self, name: str, parameters: Mapping[str, Setting | bytes]) -> None:
        """Loads a model. `config` is the only parameter: files come with the node's repository."""
        self._check_control()
        config = parameters.get("config", "")
        for key in parameters:
            if key.startswith("file:"):
                told = "models are not sent here; put their files into the node's repository, then load"
                raise Refusal(Status.UNIMPLEMENTED, told)
            if key != "config":
                raise InvalidArgument(f"parameter {key[:80]!r} of a load is unknown; give config, or none")
        if not isinstance(config, str):
            raise InvalidArgument("parameter 'config' of a load is no text; give a configuration as JSON")
        await self._engine.load(name, config)

    async def unload(self, name: str, parameters: Mapping[str, Setting | bytes]) -> None:
        """Takes a model out of service; with `unload_dependents` an ensemble's steps too, but for those that another
        ensemble runs."""
        self._check_control()
        for key, value in parameters.items():
            if key != "unload_dependents" or not isinstance(value, bool):
                raise InvalidArgument(
                    f"parameter {key[:80]!r} of an unload is {value!r}; give unload_dependents, a bool"
                )
        steps = self._steps(lambda model: model.name == name) if parameters.get("unload_dependents") else ()
        await self._engine.unload(name)
        for step in steps:
            if step not in self._steps(lambda model: model.name != name):
                await self._engine.unload(step)

    def _steps(self, which: Callable[[Model], bool]) -> tuple[str, ...]:
        """The models that some ensembles run, each once."""
        ready = (model for model in self._engine.models() if model.ready and which(model))
        return tuple(dict.fromkeys(step for model in ready for step in model.steps))

    def _check_control(self) -> None:
        if not self._permits.control:
            told = "clients may not change models or settings here; ask a node that runs with --model-control explicit"
            raise Unavailable(told)

    # Shared memory.

    async def register(self, caller: Caller, name: str, key: str, offset: int, nbytes: int) -> None:
        """Registers system shared memory."""
        self._door.regions.register(await self._door.owner(caller), name, key, offset, nbytes)

    async def unregister(self, caller: Caller, name: str) -> None:
        """Forgets system shared memory; without a name all of this client's."""
        self._door.regions.unregister(await self._door.owner(caller), name)

    async def regions(self, caller: Caller, name: str) -> tuple[RegionStatus, ...]:
        """System shared memory that this client can use."""
        return tuple(each.status for each in self._door.regions.of_kind(await self._door.owner(caller), name, Region))

    async def register_cuda(self, caller: Caller, name: str, handle: bytes, device_id: int, nbytes: int) -> None:
        """Registers CUDA shared memory: an executor of that device has opened it when this returns. Raises what is
        wrong with the request, with the handle, or UNIMPLEMENTED where no executor has a device."""
        if len(handle) != HANDLE_BYTES or device_id < 0 or not name or not nbytes:
            raise InvalidArgument(f"CUDA region {name[:80]!r} needs a handle of {HANDLE_BYTES} bytes, a device, a size")
        regions, owner = self._door.regions, await self._door.owner(caller)
        regions.check_new(owner, name, nbytes)
        number = await self._engine.open_memory(handle, device_id, nbytes)
        region = CudaRegion(name, owner, nbytes, device_id, number, self._engine.close_memory)
        try:
            regions.add(region)
        except OverspillError:  # the name was taken meanwhile
            region.end()
            raise

    async def unregister_cuda(self, caller: Caller, name: str) -> None:
        """Forgets CUDA shared memory; without a name all of this client's."""
        self._door.regions.unregister(await self._door.owner(caller), name, CudaRegion)

    async def cuda_regions(self, caller: Caller, name: str) -> tuple[CudaStatus, ...]:
        """CUDA shared memory that this client can use. Raises NOT_FOUND for a name."""
        found = self._door.regions.of_kind(await self._door.owner(caller), name, CudaRegion)
        return tuple(region.status for region in found)

    # Settings.

    def trace(self, model: str, changes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Trace settings of all models, or of one, changed if the operator allows it. Raises UNIMPLEMENTED where there
        is no place for traces."""
        if model:
            self._door.versions(model)
        traces = self._door.traces
        if changes and traces.taken:
            self._check_control()
        traces.change(model, changes)
        return traces.told(model)

    def logging(self, changes: Mapping[str, Setting]) -> tuple[tuple[str, Setting], ...]:
        """Log settings of the front door's process, changed if the operator allows it."""
        if changes:
            self._check_control()
        for key, value in changes.items():
            if key not in self._log:
                raise InvalidArgument(f"log setting {key[:80]!r} is unknown; known are {', '.join(self._log)}")
            if type(value) is not type(self._log[key]):
                raise InvalidArgument(f"log setting {key!r} is {value!r}; give {_KINDS[type(self._log[key])]}")
            if key in {"log_file", "log_format"} and value != self._log[key]:
                raise Refusal(Status.UNIMPLEMENTED, f"{key} is the operator's to choose; leave it out")
        self._log.update(changes)
        logging.getLogger().setLevel(self._level())
        return tuple(self._log.items())

    def _level(self) -> int:
        if self._log["log_verbose_level"]:
            return logging.DEBUG
        for key, level in (("log_info", logging.INFO), ("log_warning", logging.WARNING), ("log_error", logging.ERROR)):
            if self._log[key]:
                return level
        return logging.CRITICAL


def own_version() -> str:
    """The version of this package."""
    try:
        return version("overspill")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0+checkout"


def check_size(nbytes: int) -> None:
    """Raises RESOURCE_EXHAUSTED for a request that is no inference and is as long as one."""
    if nbytes > FACTS_BYTES_MAX:
        told_max = f"a request that is no inference has {nbytes} bytes, at most {FACTS_BYTES_MAX}; shorten it"
        raise Refusal(Status.RESOURCE_EXHAUSTED, told_max)


def told(error: BaseException) -> OverspillError:
    """What a client reads of an error that is none of ours: a bug, whose traceback is in the log."""
    if isinstance(error, OverspillError):
        return error
    logging.getLogger(__name__).error("the front door failed on a request", exc_info=error)
    return Refusal(Status.INTERNAL, "the front door failed on this request; its log says why, tell its operator")
