"""The executor's side of its device: arenas pinned, every run waited for and checked before anything is answered.

An error in a GPU is reported late, to whoever asks next. So the end of each task asks, and a context that is broken
ends its process there and then: nothing that it computed is ever sent. What an error ends stands in
`workers/cuda/faults.py`. On a processor all of this does nothing. Read `workers/executor.py` for who calls it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from fabric.errors import Fate, ModelFailed, OverspillError, ResourceExhausted
from workers.backends.pools import trim_pools
from workers.card_rooms import CardRooms
from workers.cuda.faults import CudaClass, read_faults
from workers.cuda.pinning import Pins
from workers.device import CODE_OUT_OF_MEMORY, CPU, DeviceError, open_device
from workers.handover import HEAVY_LIBRARIES, Control, encode_control
from workers.inject import Injector, read_injections

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import RequestFrame
    from fabric.memory.arena import Arena
    from workers.child import Settings
    from workers.device import Device


BROKEN_EXIT: Final = 70
"""The exit code of an executor whose device is broken; its node was told the number of the error before."""


class BrokenDevice(Exception):
    """The context is broken: the process must answer nothing more and end. `code` is CUDA's number."""

    def __init__(self, error: DeviceError) -> None:
        super().__init__(str(error))
        self.code = error.code

    def leave(self, node_fd: int) -> NoReturn:
        """Tells the node and ends this process at once, with no clean-up: every call into a broken context fails, and
        some wait first."""
        with socket.socket(fileno=os.dup(node_fd)) as node:
            node.send(encode_control(Control("fault", self.code)))
        sys.stderr.write(f"executor {os.getpid()}: {self}\n")
        sys.stderr.flush()
        os._exit(BROKEN_EXIT)


class Station:  # mutable: owns the device's context and what is pinned
    """One executor's device. Raises BrokenDevice when the device cannot be opened or fails its probe, MissingDependency
    where there is no driver."""

    def __init__(self, settings: Settings) -> None:
        self._book = read_faults(settings.faults)
        # A driver takes a fifth of a second to make a context, and keeps no interpreter meanwhile.
        libraries = settings.ahead if settings.device != CPU else ()
        ahead = threading.Thread(target=self.prepare, args=(libraries,), name="importing", daemon=True)
        ahead.start()
        try:
            self._device = open_device(settings.device)
            if self._device is not None:
                self._device.probe()
        except DeviceError as error:
            raise BrokenDevice(error) from None
        ahead.join()  # a model must not see a library half imported, and its own import tells best what is wrong
        self._pins = Pins(self._device, settings.pinned_bytes_max) if self._device is not None else None
        self.rooms = CardRooms(self._device) if self._device is not None else None
        injections = read_injections(settings.inject)
        self._injector = Injector(injections, settings.generation, self._device) if injections else None

    @property
    def device(self) -> Device | None:
        """The card; None on a processor. Errors of it are for `judge`."""
        return self._device

    @property
    def pinned(self) -> tuple[int, int]:
        """(how often memory was registered with the device, bytes that are now)."""
        return (self._pins.registered, self._pins.pinned_bytes) if self._pins is not None else (0, 0)

    def adopt(self, tenant_no: int, arena: Arena) -> None:
        """A tenant's arena is mapped."""
        if self._pins is not None:
            address = np.frombuffer(arena.view, np.uint8).ctypes.data
            self._pins.adopt(tenant_no, address, arena.nbytes)

    def forget(self, tenant_no: int) -> None:
        """A tenant is gone, and its arena is about to be unmapped. Raises BrokenDevice."""
        if self._pins is not None:
            try:
                self._pins.forget(tenant_no)
            except DeviceError as error:
                self.judge(error)

    def take(self, control: Control, tell: Callable[[Control], None]) -> bool:
        """Carries out a word of the node about the device; False for any other."""
        if control.word == "check":
            self.look()
        elif control.word == "probe":
            self.look(probe=True)
            tell(Control("probed"))
        elif control.word == "pin":
            if self._pins is not None:
                self._pins.waiting = control.number == 0
        elif control.word == "prepare":
            self.prepare(control.models)
            tell(Control("prepared"))
        else:
            return False
        return True

    def begin(self, tenant_no: int, request: RequestFrame) -> None:
        """A request is about to run. Raises BrokenDevice, ResourceExhausted or ModelFailed."""
        try:
            if self._pins is not None:
                if request.body_bytes:
                    self._pins.need(tenant_no, request.body_offset, request.body_bytes)
                if request.reply_capacity:
                    self._pins.need(tenant_no, request.reply_offset, request.reply_capacity)
            if self._injector is not None:
                self._injector.before(request.model)
        except DeviceError as error:
            raise self.judge(error) from error

    def end(self) -> None:
        """A model's code is over, well or not: nothing may be answered before this has returned. Raises BrokenDevice;
        ResourceExhausted or ModelFailed for an error that ends the request only."""
        if self._device is None:
            return
        try:
            self._device.settle()
        except DeviceError as error:
            raise self.judge(error) from error

    def look(self, *, probe: bool = False) -> None:
        """Between tasks: asks the context whether it is broken; with `probe`, by a kernel whose answer is checked.
        Raises BrokenDevice; what ends a request only ends nothing here."""
        if self._device is None:
            return
        try:
            if probe:
                self._device.probe()
            self._device.settle()
        except DeviceError as error:
            self.judge(error)

    def make_room(self) -> None:
        """A request found no memory: what libraries keep for later is given back, so that the next one that fits may
        run."""
        if self.rooms is not None:
            with suppress(MemoryError, RuntimeError):  # a context that is broken is found by whoever asks next
                self.rooms.release()
            trim_pools()

    def prepare(self, libraries: tuple[str, ...]) -> None:
        """Imports what the models will import, ahead of time; one that cannot be is left to the model that wants it."""
        for name in libraries:
            if name in HEAVY_LIBRARIES:
                try:
                    import_module(name)
                except Exception:  # noqa: BLE001, S112 - whatever it raises, the model's own import tells better
                    continue

    def libraries(self) -> tuple[str, ...]:
        """The heavy libraries that models have imported."""
        return tuple(name for name in HEAVY_LIBRARIES if name in sys.modules)

    def judge(self, error: DeviceError) -> OverspillError:
        """The request's error. Raises BrokenDevice for one that ends the context."""
        if self._book.of_cuda(error.code) is CudaClass.FATAL:
            raise BrokenDevice(error) from None
        name = self._book.name(error.code)
        if error.code == CODE_OUT_OF_MEMORY:
            return ResourceExhausted(f"the GPU is {name}; send less at once, or use another node", Fate.RAN)
        return ModelFailed(f"the GPU refused a call of the model: error {error.code} ({name}); look at its code")
