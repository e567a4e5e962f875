"""One conversation with a server of the protocol: each of its 20 calls, good and bad, and what is to be kept of each
answer. Triton itself held it once (`tests/integration/record_triton.py`), and our front door holds it in a test.

What is kept is what a client can rely on: codes, names, shapes, bytes, counts, states. Words of errors are each
server's own, and so are times. Only the stock client's messages are used, so that any interpreter that has it can
run this.
"""

from __future__ import annotations

import json
import mmap
import queue
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.integration.triton_requests import (
    KEY,
    LOADED,
    bad_requests,
    changed,
    config,
    floats,
    good_requests,
    metadata,
    one,
    regions,
    reply,
    shared,
    states,
    texts,
    through_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REGION_BYTES = 4096
TIMEOUT_S = 30.0
COUNTED_S = 10.0
STEADY = 8
"""Equal readings, a tenth of a second apart, are the last word."""


class Talk:  # mutable: writes down what is said
    """The conversation with the server at `address`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.said: dict[str, Any] = {}

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> tuple[str, Any]:
        """(code, the answer or None)."""
        try:
            return "OK", getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code().name, None

    def note(self, what: str, method: str, request: Any, kept: Callable[[Any], Any] = lambda _: None) -> None:
        code, answer = self.call(method, request)
        self.said[f"{method}: {what}"] = [code, kept(answer) if answer is not None else None]

    def hold(self) -> dict[str, Any]:
        """All of it."""
        self._facts()
        for what, request in (*good_requests(), *bad_requests()):
            self.note(what, "ModelInfer", request, reply)
        self._memory()
        self._stream()
        self._counts()
        self._repository()
        self._settings()
        return self.said

    def _facts(self) -> None:
        self.note("", "ServerLive", pb.ServerLiveRequest(), lambda r: r.live)
        self.note("", "ServerReady", pb.ServerReadyRequest(), lambda r: r.ready)
        for name, version in (("pair", ""), ("pair", "1"), ("pair", "7"), ("nobody", ""), ("spare", "")):
            told = f"{name} {version}".strip()
            request = pb.ModelReadyRequest(name=name, version=version)
            self.note(told, "ModelReady", request, lambda r: r.ready)
            self.note(told, "ModelMetadata", pb.ModelMetadataRequest(name=name, version=version), metadata)
            self.note(told, "ModelConfig", pb.ModelConfigRequest(name=name, version=version), config)
        self.note("batch", "ModelMetadata", pb.ModelMetadataRequest(name="batch"), metadata)
        self.note("", "ServerMetadata", pb.ServerMetadataRequest(), lambda r: sorted(r.extensions))

    def _memory(self) -> None:
        path = Path("/dev/shm") / KEY[1:]  # where shm_open puts it
        with path.open("wb+") as file:
            try:
                file.truncate(REGION_BYTES)
                with mmap.mmap(file.fileno(), REGION_BYTES) as memory:
                    self._use(memory)
            finally:
                path.unlink()

    def _use(self, memory: mmap.mmap) -> None:
        def register(name: str, key: str = KEY, nbytes: int = REGION_BYTES) -> Any:
            return pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=nbytes)

        memory[:8] = floats(1, 2)
        method = "SystemSharedMemoryRegister"
        self.note("good", method, register("r"))
        self.note("twice", method, register("r"))
        self.note("no such key", method, register("s", "/osp_nobody"))
        self.note("longer than it is", method, register("s", nbytes=2 * REGION_BYTES))
        self.note("a part of it", method, register("part", nbytes=64))
        status = "SystemSharedMemoryStatus"
        self.note("all", status, pb.SystemSharedMemoryStatusRequest(), regions)
        self.note("one", status, pb.SystemSharedMemoryStatusRequest(name="part"), regions)
        self.note("unknown", status, pb.SystemSharedMemoryStatusRequest(name="nobody"))
        self.note("through memory", "ModelInfer", through_memory(), reply)
        self.said["what lies there"] = memory[64:72].hex()
        self.note("beyond the region", "ModelInfer", through_memory(offset=REGION_BYTES))
        self.note("an output with no room", "ModelInfer", changed(lambda r: shared(r.outputs.add(name="sum"), 4)))
        unregister = "SystemSharedMemoryUnregister"
        self.note("unknown", unregister, pb.SystemSharedMemoryUnregisterRequest(name="nobody"))
        self.note("one", unregister, pb.SystemSharedMemoryUnregisterRequest(name="part"))
        self.note("all", unregister, pb.SystemSharedMemoryUnregisterRequest())
        self.note("after that", status, pb.SystemSharedMemoryStatusRequest(), regions)

    def _stream(self) -> None:
        said = []
        for what in ("raw", "the model's own failure", "unknown model", "typed"):
            request = dict((*good_requests(), *bad_requests()))[what]
            request.id = what
            asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
            asked.put(request)
            asked.put(None)
            for answer in self._stub.ModelStreamInfer(iter(asked.get, None), timeout=TIMEOUT_S):
                failed = bool(answer.error_message)
                said.append([what, failed, None if failed else reply(answer.infer_response)])
        self.said["ModelStreamInfer"] = said

    def _counts(self) -> None:
        def counts(model: str) -> list[int]:
            code, answer = self.call("ModelStatistics", pb.ModelStatisticsRequest(name=model))
            assert code == "OK", code
            (found,) = answer.model_stats
            success = found.inference_stats.success.count
            return [found.inference_count, found.execution_count, success, found.inference_stats.fail.count]

        # A server hears of a run after its client has the answer.
        give_up_s, seen = time.monotonic() + COUNTED_S, [[counts(model) for model in LOADED]]
        while seen[-STEADY:] != [seen[-1]] * STEADY and time.monotonic() < give_up_s:
            time.sleep(0.1)
            seen.append([counts(model) for model in LOADED])
        self.said["ModelStatistics"] = dict(zip(LOADED, seen[-1], strict=True))
        self.note("unknown", "ModelStatistics", pb.ModelStatisticsRequest(name="nobody"))

    def _repository(self) -> None:
        index, ready = pb.RepositoryIndexRequest(), pb.RepositoryIndexRequest(ready=True)
        self.note("ready", "RepositoryIndex", ready, states)
        self.note("spare", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="spare"))
        self.note("after a load", "RepositoryIndex", index, states)
        self.note("spare", "ModelInfer", one("spare", "BYTES", [1], texts(b"a")), reply)
        self.note("unknown", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nobody"))
        self.note("spare", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="spare"))
        give_up_s = time.monotonic() + COUNTED_S
        while self._is_ready("spare") and time.monotonic() < give_up_s:
            time.sleep(0.1)
        self.note("after an unload", "RepositoryIndex", ready, states)

    def _is_ready(self, model: str) -> bool:
        _, answer = self.call("ModelReady", pb.ModelReadyRequest(name=model))
        return answer is not None and bool(answer.ready)

    def _settings(self) -> None:
        self.note("", "TraceSetting", pb.TraceSettingRequest(), lambda r: list(r.settings["trace_level"].value))
        self.note("", "LogSettings", pb.LogSettingsRequest(), lambda r: r.settings["log_info"].bool_param)
        for kind in ("Status", "Register", "Unregister"):
            request = getattr(pb, f"CudaSharedMemory{kind}Request")()
            if kind == "Register":
                request.name, request.raw_handle, request.byte_size = "c", bytes(64), 64
            self.note("without a GPU", f"CudaSharedMemory{kind}", request)


def hold(address: str) -> dict[str, Any]:
    """Holds the conversation with the server at `address`; what was said, as JSON has it."""
    talk = Talk(address)
    try:
        said: dict[str, Any] = json.loads(json.dumps(talk.hold()))
        return said
    finally:
        talk.close()
