"""A stream of the current context with named buffers on the card: what a backend needs that brings no library for it.

Buffers grow by more than asked, so that rounds of rising size do not allocate each time. It never waits except in
`settle`. Read `workers/cuda/driver.py` for the interface it uses.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from workers.cuda.driver import Driver
from workers.device import CODE_OUT_OF_MEMORY, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

GROW: Final = 1.5
_NON_BLOCKING: Final = 1
_OWN_THREAD: Final = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may do what a recording one may not."""


class CudaQueue:  # mutable: owns a stream and buffers
    """One stream and its buffers, for one thread at a time. Raises DeviceError; MemoryError where the card has no more
    room."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._driver.use_context()
        stream = ctypes.c_void_p()
        self._driver.call("making a stream", "cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        self._stream = stream
        self._buffers: dict[str, tuple[int, int]] = {}
        self._graphs: list[int] = []

    @property
    def stream(self) -> int:
        """CUDA's handle of it."""
        return self._stream.value or 0

    def room(self, name: str, nbytes: int) -> int:
        """The address of a buffer of at least so many bytes; what it held is lost when it grows."""
        at, size = self._buffers.get(name, (0, 0))
        if size >= nbytes and at:
            return at
        if at:
            self.settle()
            self._driver.call("freeing a buffer", "cuMemFree_v2", ctypes.c_uint64(at))
            del self._buffers[name]
        wanted = max(256, int(nbytes * GROW))
        place = ctypes.c_uint64()
        try:
            self._driver.call("allocating a buffer", "cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(wanted))
        except DeviceError as error:
            if error.code == CODE_OUT_OF_MEMORY:
                raise MemoryError(str(error)) from None
            raise
        self._buffers[name] = (place.value, wanted)
        return place.value

    def bring(self, name: str, array: np.ndarray[Any, Any]) -> int:
        """Puts a contiguous array on its way to the card; gives its address there. The array must stay until
        `settle`."""
        at = self.room(name, array.nbytes)
        source = ctypes.c_void_p(array.ctypes.data)
        size = ctypes.c_size_t(array.nbytes)
        self._driver.call(
            "copying to the card", "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), source, size, self._stream
        )
        return at

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Puts a copy on the card on its way, such as from or to memory that a client has there."""
        size = ctypes.c_size_t(nbytes)
        self._driver.call(
            "copying on the card", "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), size,
            self._stream,
        )  # fmt: skip

    def fetch(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Puts a buffer on its way into a contiguous array, which it has reached after `settle`."""
        at, _ = self._buffers[name]
        target = ctypes.c_void_p(array.ctypes.data)
        size = ctypes.c_size_t(array.nbytes)
        self._driver.call(
            "copying from the card", "cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(at), size, self._stream
        )

    def record(self, work: Callable[[], None]) -> int:
        """What `work` puts on the stream, as a graph, without running it; gives its handle, for `replay`. Raises
        DeviceError for what cannot be recorded."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        call = self._driver.call
        call("recording a graph", "cuStreamBeginCapture_v2", self._stream, ctypes.c_uint(_OWN_THREAD))
        try:
            work()
        finally:
            call("recording a graph", "cuStreamEndCapture", self._stream, ctypes.byref(graph))
        try:
            call("making a graph", "cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        finally:
            call("letting a graph go", "cuGraphDestroy", graph)
        self._graphs.append(ready.value or 0)
        return ready.value or 0

    def replay(self, graph: int) -> None:
        """Puts a recorded graph on the stream."""
        self._driver.call("starting a graph", "cuGraphLaunch", ctypes.c_void_p(graph), self._stream)

    def forget(self, graph: int) -> None:
        """Lets a recorded graph go."""
        self.settle()
        self._graphs.remove(graph)
        self._driver.call("letting a graph go", "cuGraphExecDestroy", ctypes.c_void_p(graph))

    def settle(self) -> None:
        """Waits for all of it."""
        self._driver.call("waiting for the stream", "cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Frees everything."""
        self.settle()
        for graph in tuple(self._graphs):
            self.forget(graph)
        for at, _ in self._buffers.values():
            self._driver.call("freeing a buffer", "cuMemFree_v2", ctypes.c_uint64(at))
        self._buffers.clear()
        self._driver.call("ending a stream", "cuStreamDestroy_v2", self._stream)


def card_words() -> tuple[str, ...]:
    """What an engine depends on beside itself: the card's compute capability and the driver's release."""
    driver = Driver()
    device = driver.use_context()
    major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    for place, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        driver.call("asking the card", "cuDeviceGetAttribute", ctypes.byref(place), ctypes.c_int(attribute), device)
    driver.call("asking the driver", "cuDriverGetVersion", ctypes.byref(version))
    return (f"sm_{major.value}{minor.value}", str(version.value))
