"""Cards that are folders: the same interface as a real one, so that drills and tests break GPUs where there are none.

A card is a folder `card-N`, and its UUID is FAKE-N. Who drills writes into it, and reads nothing else:
`xid` (a line with a number reports that Xid), `recovery` (a number: the action that the driver wants), `lost` (its
presence makes every question of the watcher fail), `slow` (seconds that each wait for the card takes), `memory` (its
bytes), `error` (a number: contexts answer that CUDA error from now on), `held` (a pid: its memory is never free again,
until the file is removed), `teardown` (MiB that a context holds from then on and the kernel takes back when its process
ends, as a driver does with a context: 128 take some 0.1 s), `model` (its name), `place` (its number among the cards, if
not N); `allocate`, `share`, `attach`, `detach` or `copy`: the next such call of a context answers the CUDA error whose
number is in the file, or, for the word `kill` or `stop`, its process meets that signal there. Below `pids` lie what
processes hold. Beside the cards a file `visible` stands for CUDA_VISIBLE_DEVICES, and `xid` reports one of no named
card.
It computes nothing: models run on the processor. Read `workers/cuda/watcher.py` next.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from workers.cuda.fake_cards import holders, reported, whole_bytes
from workers.cuda.fake_memory import FakeMemory
from workers.cuda.faults import XidClass, read_faults
from workers.device import CODE_OUT_OF_MEMORY, DeviceError, DeviceFault, Shared

CONTEXT_BYTES: Final = 512 << 20
"""What a context takes on a real card, about."""
CODES: Final = {
    DeviceFault.ILLEGAL_ADDRESS: 700,
    DeviceFault.MISALIGNED: 716,
    DeviceFault.TRAP: 719,
    DeviceFault.ASSERT: 710,
}
_XID_CODE: Final = 719
"""What contexts of a card answer that reported an Xid of the class `restart`."""
_HANG_S: Final = 3600.0
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def make_cards(folder: str, count: int) -> None:
    """Makes the folders of `count` cards."""
    for number in range(count):
        (Path(folder) / f"card-{number}" / "pids").mkdir(parents=True, exist_ok=True)


def visible_cards(folder: str) -> str | None:
    """What CUDA_VISIBLE_DEVICES would say of these cards."""
    try:
        return (Path(folder) / "visible").read_text().strip()
    except FileNotFoundError:
        return None


def remove_cards(folder: str) -> None:
    """Removes the folders."""
    shutil.rmtree(folder, ignore_errors=True)


class FakeDevice:  # mutable: remembers what is pinned, and what broke
    """A context on a fake card: it lasts as long as the process. What CUDA refuses about pinning, it refuses too."""

    def __init__(self, folder: str, number: int) -> None:
        self._folder = Path(folder) / f"card-{number}"
        self._code = 0
        self._hangs = False
        self.pinned: dict[int, int] = {}
        self._memory = FakeMemory(number)
        self._held = CONTEXT_BYTES
        self._book = read_faults()
        self._since = self._xids()
        free, _ = self.memory()
        if free < CONTEXT_BYTES:
            raise DeviceError(CODE_OUT_OF_MEMORY, "out of memory", "making a context")
        self._hold()
        self._burden = _burden(self._folder)

    def pin(self, address: int, nbytes: int) -> None:
        """See `Device`."""
        self._check("pinning memory")
        for start, size in self.pinned.items():
            if address < start + size and start < address + nbytes:
                raise DeviceError(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "pinning memory")
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        """See `Device`."""
        self._check("letting pinned memory go")
        if self.pinned.pop(address, None) is None:
            raise DeviceError(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "letting pinned memory go")

    def settle(self) -> None:
        """See `Device`."""
        with suppress(FileNotFoundError, ValueError):
            time.sleep(float((self._folder / "slow").read_text()))
        if self._hangs:
            time.sleep(_HANG_S)
        self._check("waiting for the card")

    def probe(self) -> None:
        """See `Device`."""
        self.settle()

    def memory(self) -> tuple[int, int]:
        """See `Device`."""
        whole = whole_bytes(self._folder)
        return max(0, whole - sum(each.nbytes for each in holders(self._folder))), whole

    def cause(self, fault: DeviceFault) -> None:
        """See `Device`."""
        if fault is DeviceFault.OUT_OF_MEMORY:
            raise DeviceError(CODE_OUT_OF_MEMORY, "out of memory", "allocating")
        if fault is DeviceFault.HANG:
            self._hangs = True
        else:
            self._code = CODES[fault]

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """See `Device`."""
        self._check("opening another process's memory")
        return self._memory.open(handle)

    def close_handle(self, address: int) -> None:
        """See `Device`."""
        self._check("closing another process's memory")
        self._memory.close(address)

    def fetch(self, at: int, host: int, nbytes: int) -> None:
        """See `Device`."""
        self._copy(host, at, nbytes, at, "copying from the card")

    def store(self, host: int, at: int, nbytes: int) -> None:
        """See `Device`."""
        self._copy(at, host, nbytes, at, "copying to the card")

    def allocate(self, nbytes: int) -> int:
        """See `Device`."""
        self._meet("allocate")
        return self._memory.allocate(nbytes)

    def free(self, address: int) -> None:
        """See `Device`."""
        self._check("freeing")
        self._memory.let_go(address, "freeing")

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """See `Device`."""
        self._meet("copy")
        self._memory.check(target, nbytes, "copying")
        self._copy(target, source, nbytes, source, "copying")

    def share(self, nbytes: int) -> Shared:
        """See `Device`."""
        self._meet("share")
        return self._memory.share(nbytes)

    def attach(self, fd: int, nbytes: int) -> int:
        """See `Device`."""
        self._meet("attach")
        return self._memory.attach(fd, nbytes)

    def detach(self, address: int, nbytes: int) -> None:  # noqa: ARG002 - the contract's
        """See `Device`."""
        self._meet("detach")
        self._memory.let_go(address, "unmapping shared memory")

    def _meet(self, call: str) -> None:
        """What was laid down for this call happens, once."""
        file = self._folder / call
        self._check(call)
        with suppress(FileNotFoundError):
            what = file.read_text().strip()
            file.unlink()
            if what in _SIGNALS:
                os.kill(os.getpid(), _SIGNALS[what])
            else:
                raise DeviceError(int(what), self._book.name(int(what)), call)

    def _copy(self, target: int, source: int, nbytes: int, on_card: int, doing: str) -> None:
        self._check(doing)
        try:
            self._memory.check(on_card, nbytes, doing)
        except DeviceError as error:
            self._code = error.code  # a context that has met it answers nothing else any more
            raise
        ctypes.memmove(target, source, nbytes)

    def take(self, nbytes: int) -> None:
        """Models on a fake card say what they would have taken."""
        if nbytes > self.memory()[0]:
            raise DeviceError(CODE_OUT_OF_MEMORY, "out of memory", "allocating")
        self._held += nbytes
        self._hold()

    def _hold(self) -> None:
        (self._folder / "pids" / str(os.getpid())).write_text(str(self._held))

    def _xids(self) -> int:
        """How many Xids that break contexts the card has reported."""
        return sum(self._book.of_xid(xid) is XidClass.RESTART for xid in reported(self._folder))

    def _check(self, doing: str) -> None:
        with suppress(FileNotFoundError, ValueError):
            self._code = self._code or int((self._folder / "error").read_text())
        if not self._code and self._xids() > self._since:
            self._code = _XID_CODE
        if self._code:
            raise DeviceError(self._code, self._book.name(self._code), doing)


def _burden(folder: Path) -> int:
    """The descriptor of memory that keeps a process from ending at once; -1 for none."""
    try:
        mebibytes = int((folder / "teardown").read_text())
    except (FileNotFoundError, ValueError):
        return -1
    fd = os.memfd_create("overspill-fake-context", os.MFD_CLOEXEC)
    for _ in range(mebibytes):
        os.write(fd, bytes(1 << 20))
    return fd
