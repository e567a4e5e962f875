"""The calls of the gRPC service beside inference: each reads one message, asks `frontdoor/facts.py`, writes another.

This module decides nothing. Read `frontdoor/grpc_service.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from frontdoor.messages import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fabric.control import Duration, ModelStatistics
    from frontdoor.door import Caller
    from frontdoor.engine import Tensor
    from frontdoor.facts import Facts

    Act = Callable[[Any, Caller], Awaitable[Any]]


class GrpcFacts:
    """The calls, by name: `acts[name]` is (class of the request, what answers it)."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        own: dict[str, Act] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": self._shm_status,
            "SystemSharedMemoryRegister": self._shm_register,
            "SystemSharedMemoryUnregister": self._shm_unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
            "TraceSetting": self._trace,
            "LogSettings": self._logging,
        }
        self.acts = {name: (message(f"{name}Request"), act) for name, act in own.items()}

    async def _server_live(self, _request: Any, _caller: Caller) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _server_ready(self, _request: Any, _caller: Caller) -> Any:
        return message("ServerReadyResponse")(ready=self._facts.ready())

    async def _model_ready(self, request: Any, _caller: Caller) -> Any:
        return message("ModelReadyResponse")(ready=await self._facts.model_ready_now(request.name, request.version))

    async def _server_metadata(self, _request: Any, _caller: Caller) -> Any:
        from frontdoor.facts import EXTENSIONS

        told = message("ServerMetadataResponse")(name=self._facts.name, version=self._facts.version)
        told.extensions.extend(EXTENSIONS)
        return told

    async def _model_metadata(self, request: Any, _caller: Caller) -> Any:
        model, versions = await self._facts.metadata(request.name, request.version)
        told = message("ModelMetadataResponse")(name=model.name, versions=versions, platform=model.platform)
        for field, tensors in ((told.inputs, model.inputs), (told.outputs, model.outputs)):
            for tensor in tensors:
                _tell_tensor(field, tensor)
        return told

    async def _model_config(self, request: Any, _caller: Caller) -> Any:
        text = await self._facts.config(request.name, request.version)
        told = message("ModelConfigResponse")()
        json_format.Parse(text, told.config, ignore_unknown_fields=True)
        return told

    async def _model_statistics(self, request: Any, _caller: Caller) -> Any:
        told = message("ModelStatisticsResponse")()
        for figures in await self._facts.statistics(request.name, request.version):
            tell_statistics(told.model_stats.add(), figures)
        return told

    async def _index(self, request: Any, _caller: Caller) -> Any:
        told = message("RepositoryIndexResponse")()
        for model in await self._facts.index(request.repository_name, ready=request.ready):
            told.models.add(name=model.name, version=model.version, state=model.state, reason=model.reason)
        return told

    async def _load(self, request: Any, _caller: Caller) -> Any:
        await self._facts.load(request.model_name, _chosen(request.parameters))
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, request: Any, _caller: Caller) -> Any:
        await self._facts.unload(request.model_name, _chosen(request.parameters))
        return message("RepositoryModelUnloadResponse")()

    async def _shm_status(self, request: Any, caller: Caller) -> Any:
        told = message("SystemSharedMemoryStatusResponse")()
        for region in await self._facts.regions(caller, request.name):
            entry = told.regions[region.name]
            entry.name, entry.key, entry.offset, entry.byte_size = (
                region.name, region.key, region.offset, region.nbytes,
            )  # fmt: skip
        return told

    async def _shm_register(self, request: Any, caller: Caller) -> Any:
        await self._facts.register(caller, request.name, request.key, request.offset, request.byte_size)
        return message("SystemSharedMemoryRegisterResponse")()

    async def _shm_unregister(self, request: Any, caller: Caller) -> Any:
        await self._facts.unregister(caller, request.name)
        return message("SystemSharedMemoryUnregisterResponse")()

    async def _cuda_status(self, request: Any, caller: Caller) -> Any:
        told = message("CudaSharedMemoryStatusResponse")()
        for region in await self._facts.cuda_regions(caller, request.name):
            entry = told.regions[region.name]
            entry.name, entry.device_id, entry.byte_size = region.name, region.device_id, region.nbytes
        return told

    async def _cuda_register(self, request: Any, caller: Caller) -> Any:
        words = request.name, request.raw_handle, request.device_id, request.byte_size
        await self._facts.register_cuda(caller, *words)
        return message("CudaSharedMemoryRegisterResponse")()

    async def _cuda_unregister(self, request: Any, caller: Caller) -> Any:
        await self._facts.unregister_cuda(caller, request.name)
        return message("CudaSharedMemoryUnregisterResponse")()

    async def _trace(self, request: Any, _caller: Caller) -> Any:
        changes = {name: tuple(setting.value) for name, setting in request.settings.items()}
        told = message("TraceSettingResponse")()
        for name, values in self._facts.trace(request.model_name, changes):
            told.settings[name].value.extend(values)
        return told

    async def _logging(self, request: Any, _caller: Caller) -> Any:
        told = message("LogSettingsResponse")()
        for name, value in self._facts.logging(_chosen(request.settings)):
            kind = "bool" if isinstance(value, bool) else "uint32" if isinstance(value, int) else "string"
            setattr(told.settings[name], f"{kind}_param", value)
        return told


def _chosen(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a map of oneofs; an entry without a value is left out."""
    kinds = {name: entry.WhichOneof("parameter_choice") for name, entry in entries.items()}
    return {name: getattr(entries[name], kind) for name, kind in kinds.items() if kind is not None}


def _tell_tensor(field: Any, tensor: Tensor) -> None:
    field.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.dims)


def tell_statistics(told: Any, figures: ModelStatistics) -> None:
    """Writes a model's figures into a ModelStatistics message."""
    told.name, told.version = figures.name, figures.version
    told.last_inference = figures.last_inference_ms
    told.inference_count, told.execution_count = figures.inference_count, figures.execution_count
    for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
        _tell_duration(getattr(told.inference_stats, name), getattr(figures, name))
    for batch in figures.batches:
        entry = told.batch_stats.add(batch_size=batch.batch_size)
        for name in ("compute_input", "compute_infer", "compute_output"):
            _tell_duration(getattr(entry, name), getattr(batch, name))


def _tell_duration(told: Any, spent: Duration) -> None:
    told.count, told.ns = spent.count, spent.ns
