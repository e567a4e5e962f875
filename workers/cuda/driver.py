"""One NVIDIA GPU through the driver's own C interface, for the executor that owns its context.

The driver's library is part of every installed driver and its interface is stable, so nothing has to be installed for
it; CuPy, torch and the others share its primary context, so what they break is seen here. A context that has met a
sticky error answers every call with it: `settle` asks before any reply leaves. It never decides what an error means:
`workers/cuda/faults.py` does. Read `workers/cuda/kernels.py` next.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fabric.errors import MissingDependency
from workers.cuda import sharing
from workers.cuda.kernels import PROBE_COUNT, PROGRAM, expected_probe
from workers.device import CODE_INVALID, CODE_NONE, HANDLE_BYTES, DeviceError, DeviceFault, Shared

_LIBRARY = "libcuda.so.1"
_PORTABLE = 1
_WRONG_ANSWER = 999
"""What a probe with a wrong answer is told as: CUDA's number for an unknown error."""
_HANG_FLAG_BYTES = 8
_LAZY_PEERS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the one flag that opening a handle takes."""


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle of cuda.h, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class Driver:
    """The driver's library. Raises MissingDependency where there is none."""

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL(_LIBRARY)
        except OSError:
            raise MissingDependency(
                f"there is no NVIDIA driver here ({_LIBRARY} cannot be loaded); install it, or give --devices cpu:N"
            ) from None

    def call(self, doing: str, function: str, *arguments: Any) -> None:
        """Calls a function by its name. Raises DeviceError for any answer but success."""
        code = int(getattr(self._cuda, function)(*arguments))
        if code != CODE_NONE:
            raise DeviceError(code, self._name(code), doing)

    def use_context(self) -> ctypes.c_int:
        """Makes the primary context of the first card that this process may see current; gives the card's handle."""
        self.call("starting CUDA", "cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        self.call("choosing the card", "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        context = ctypes.c_void_p()
        self.call("making a context", "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("making a context", "cuCtxSetCurrent", context)
        return device

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode() if text.value else "of no known name"


class CudaDevice:  # mutable: owns a context
    """The first card that this process may see, with its primary context made current. Raises DeviceError, or
    MissingDependency where there is no driver."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._driver.use_context()
        self._call = self._driver.call
        self._module = ctypes.c_void_p()

    def pin(self, address: int, nbytes: int) -> None:
        """See `Device`."""
        self._call(
            "pinning memory",
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(_PORTABLE),
        )

    def unpin(self, address: int) -> None:
        """See `Device`."""
        self._call("letting pinned memory go", "cuMemHostUnregister", ctypes.c_void_p(address))

    def settle(self) -> None:
        """See `Device`."""
        self._call("waiting for the card", "cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """See `Device`."""
        free, whole = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("asking for free memory", "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
        return free.value, whole.value

    def probe(self) -> None:
        """See `Device`."""
        nbytes = 4 * PROBE_COUNT
        at = self._allocate(nbytes)
        try:
            self._launch("probe", PROBE_COUNT, ctypes.c_uint64(at))
            self.settle()
            answer = (ctypes.c_uint32 * PROBE_COUNT)()
            self._call(
                "reading the probe",
                "cuMemcpyDtoH_v2",
                ctypes.byref(answer),
                ctypes.c_uint64(at),
                ctypes.c_size_t(nbytes),
            )
            if list(answer) != expected_probe():
                raise DeviceError(_WRONG_ANSWER, "the card computes wrongly", "running a first kernel")
        finally:
            self._call("freeing the probe", "cuMemFree_v2", ctypes.c_uint64(at))

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """See `Device`."""
        doing = "opening another process's memory"
        if len(handle) != HANDLE_BYTES:
            raise DeviceError(CODE_INVALID, f"a handle of {len(handle)} bytes", doing)
        at, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        passed = _IpcHandle.from_buffer_copy(handle)
        self._call(doing, "cuIpcOpenMemHandle_v2", ctypes.byref(at), passed, ctypes.c_uint(_LAZY_PEERS))
        try:
            self._call(doing, "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), at)
        except DeviceError:
            self.close_handle(at.value)
            raise
        return at.value, base.value + size.value - at.value

    def close_handle(self, address: int) -> None:
        """See `Device`."""
        self._call("closing another process's memory", "cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def fetch(self, at: int, host: int, nbytes: int) -> None:
        """See `Device`."""
        target, source, size = ctypes.c_void_p(host), ctypes.c_uint64(at), ctypes.c_size_t(nbytes)
        self._call("copying from the card", "cuMemcpyDtoH_v2", target, source, size)

    def store(self, host: int, at: int, nbytes: int) -> None:
        """See `Device`."""
        target, source, size = ctypes.c_uint64(at), ctypes.c_void_p(host), ctypes.c_size_t(nbytes)
        self._call("copying to the card", "cuMemcpyHtoD_v2", target, source, size)

    def cause(self, fault: DeviceFault) -> None:
        """See `Device`."""
        if fault is DeviceFault.OUT_OF_MEMORY:
            _, whole = self.memory()
            at = self._allocate(whole)  # the whole of it is never free, for the context has its share
            self._call("freeing", "cuMemFree_v2", ctypes.c_uint64(at))
        elif fault is DeviceFault.HANG:
            self._launch("hang", 1, ctypes.c_uint64(self._allocate(_HANG_FLAG_BYTES)))
        else:
            self._launch(fault.value, 1)

    def allocate(self, nbytes: int) -> int:
        """See `Device`."""
        at = ctypes.c_uint64()
        self._call("allocating", "cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def free(self, address: int) -> None:
        """See `Device`."""
        self._call("freeing", "cuMemFree_v2", ctypes.c_uint64(address))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """See `Device`: the driver knows from the addresses on which cards they lie."""
        at, of = ctypes.c_uint64(target), ctypes.c_uint64(source)
        self._call("copying", "cuMemcpy", at, of, ctypes.c_size_t(nbytes))

    def share(self, nbytes: int) -> Shared:
        """See `Device`."""
        return sharing.share(self._driver, nbytes)

    def attach(self, fd: int, nbytes: int) -> int:
        """See `Device`."""
        return sharing.attach(self._driver, fd, nbytes)

    def detach(self, address: int, nbytes: int) -> None:
        """See `Device`."""
        sharing.detach(self._driver, address, nbytes)

    def _allocate(self, nbytes: int) -> int:
        at = self.allocate(nbytes)
        self._call("clearing", "cuMemsetD8_v2", ctypes.c_uint64(at), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        return at

    def _launch(self, name: str, threads: int, *arguments: ctypes.c_uint64) -> None:
        if not self._module:
            self._call("loading kernels", "cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(PROGRAM))
        function = ctypes.c_void_p()
        self._call("loading a kernel", "cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        places = (ctypes.c_void_p * max(1, len(arguments)))()
        for number, argument in enumerate(arguments):
            places[number] = ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p)
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        grid = (one, one, one, ctypes.c_uint(threads), one, one)
        self._call("launching", "cuLaunchKernel", function, *grid, none, None, places, None)
