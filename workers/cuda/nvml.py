"""NVIDIA's management library, through nvidia-ml-py: which cards there are, who holds their memory, what they report.

Cards are named by UUID, since this library numbers them otherwise than CUDA does where CUDA_VISIBLE_DEVICES is set. A
card that is cut into slices (MIG) is a card for each slice; its events come from the whole. The driver may vanish under
it: every failure is one OverseerError. It runs in the watcher only, because a call into a broken driver may never
return. Read `workers/cuda/watcher.py` next.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import suppress
from typing import Any, Final

from fabric.errors import MissingDependency
from workers.device import Card, Holder, OverseerError, XidEvent

_log = logging.getLogger(__name__)
_RECOVERY_ACTION_FIELD: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older releases of the binding lack its name."""


class Nvml:  # mutable: holds the library open and a set of events
    """All cards of this machine. Raises MissingDependency without the binding, OverseerError without a driver."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise MissingDependency(
                "cuda devices need NVIDIA's management library; install it: pip install nvidia-ml-py"
            ) from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OverseerError(f"NVIDIA's driver does not answer ({error}); look at `nvidia-smi`") from None
        self._events: Any = None
        self._names: dict[int, str] = {}
        """UUIDs by handle, from when the cards could still be asked: one that fell off the bus has no name any more."""

    def cards(self) -> tuple[Card, ...]:
        """See `Overseer`."""
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise self._failed("listing cards", error) from None
        found: list[Card] = []
        index, failure = 0, None
        for number in range(count):
            try:
                of_one = self._cards_at(number, index)
            except self._nvml.NVMLError as error:  # it is lost: the others are not, and keep their numbers
                _log.warning("GPU number %d cannot be asked (%s) and is left out; look at `nvidia-smi`", number, error)
                index, failure = index + 1, error
                continue
            found += of_one
            index += len(of_one)
        if failure is not None and not found:
            raise self._failed("listing cards", failure) from None
        return tuple(found)

    def events(self, timeout_s: float) -> tuple[XidEvent, ...]:
        """See `Overseer`."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
                for number in range(nvml.nvmlDeviceGetCount()):
                    with suppress(nvml.NVMLError):  # a card without events is watched by its recovery action alone
                        handle = nvml.nvmlDeviceGetHandleByIndex(number)
                        self._names[_address(handle)] = _text(nvml.nvmlDeviceGetUUID(handle))
                        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            data = nvml.nvmlEventSetWait_v2(self._events, max(1, int(timeout_s * 1e3)))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return ()
            self._events = None
            raise self._failed("waiting for events", error) from None
        if not data.eventType & nvml.nvmlEventTypeXidCriticalError:
            return ()
        return (XidEvent(self._names.get(_address(data.device), ""), int(data.eventData)),)

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """See `Overseer`."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        except self._nvml.NVMLError as error:
            raise self._failed("asking who holds memory", error) from None
        return tuple(Holder(int(each.pid), int(each.usedGpuMemory or 0)) for each in found)

    def recovery_action(self, uuid: str) -> int:
        """See `Overseer`. 0 where the driver does not know the question."""
        try:
            (value,) = self._nvml.nvmlDeviceGetFieldValues(self._handle(uuid), [_RECOVERY_ACTION_FIELD])
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_INVALID_ARGUMENT):
                return 0
            raise self._failed("asking for the recovery action", error) from None
        return int(value.value.uiVal) if value.nvmlReturn == self._nvml.NVML_SUCCESS else 0

    def free_bytes(self, uuid: str) -> int:
        """See `Overseer`."""
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid)).free)
        except self._nvml.NVMLError as error:
            raise self._failed("asking for free memory", error) from None

    def _handle(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def _cards_at(self, number: int, index: int) -> list[Card]:
        """One card, or its slices, which are counted on from `index`."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        slices = self._slices(handle)
        parent = _text(nvml.nvmlDeviceGetUUID(handle)) if slices else ""
        found: list[Card] = []
        for part in slices or [handle]:
            uuid, name = _text(nvml.nvmlDeviceGetUUID(part)), _text(nvml.nvmlDeviceGetName(part))
            found.append(Card(index + len(found), uuid, name, int(nvml.nvmlDeviceGetMemoryInfo(part).total), parent))
        return found

    def _slices(self, handle: Any) -> list[Any]:
        nvml = self._nvml
        try:
            mode, _ = nvml.nvmlDeviceGetMigMode(handle)
            if mode != nvml.NVML_DEVICE_MIG_ENABLE:
                return []
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:  # a card that cannot be cut
            return []
        found = []
        for number in range(most):
            with suppress(nvml.NVMLError):  # places of slices that were not made
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        return found

    def _failed(self, doing: str, error: Any) -> OverseerError:
        return OverseerError(f"NVIDIA's driver failed {doing} ({error}); look at `nvidia-smi` and the kernel's log")


def _address(handle: Any) -> int:
    """What tells handles apart: the library gives pointers."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
