"""What a node and its executors ask of a GPU, in two halves, and the words that name one on a command line.

`Device` is the half of the executor that owns the context: it pins memory, waits for work, and tells by number what
broke. `Overseer` is the half of the watcher, which has no context: which cards there are, who holds their memory, what
they report. Both halves exist for CUDA and as a fake that drills and tests run on. Nothing here touches a card. Read
`workers/cuda/driver.py` for the real device, `workers/cuda/fake.py` for the other.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, Protocol

from fabric.errors import ConfigError

EXECUTORS_MAX: Final = 64
CPU: Final = "cpu"
FAKE_UUID: Final = "FAKE-"
"""Before a fake card's number: its name, whatever place it has among the cards."""
CODE_NONE: Final = 0
CODE_INVALID: Final = 1
CODE_OUT_OF_MEMORY: Final = 2
HANDLE_BYTES: Final = 64
"""sizeof(CUipcMemHandle) in cuda.h."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, or one slice of it under MIG: its place among those of the machine, and what stays the same about it."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    parent: str = ""
    """The whole card's UUID where this is a slice of it: what is reported comes from the whole."""


class DeviceError(Exception):
    """A call to a device failed with `code`, a number of CUDA's; `name` is CUDA's name for it. It never reaches a
    caller: the executor says what it means for the request."""

    def __init__(self, code: int, name: str, doing: str) -> None:
        super().__init__(f"CUDA error {code} ({name}) while {doing}")
        self.code = code
        self.name = name


class DeviceFault(Enum):
    """What can be broken on purpose on a device, as `--inject` names it."""

    ILLEGAL_ADDRESS = "illegal_address"
    MISALIGNED = "misaligned"
    TRAP = "trap"
    ASSERT = "assert"
    HANG = "hang"
    OUT_OF_MEMORY = "oom"


class Shared(NamedTuple):
    """Memory of a card that other processes can be given: where it is mapped here, how long it is (more than was asked
    for), and the descriptor it is given by. It lives as long as any descriptor or mapping of it, whoever made it."""

    address: int
    nbytes: int
    fd: int


class Device(Protocol):
    """A card with a context of this process on it. Every method may raise DeviceError, from one thread only."""

    def pin(self, address: int, nbytes: int) -> None:
        """Registers memory of ours, so that copies to and from the card go straight."""

    def unpin(self, address: int) -> None:
        """Undoes `pin` of the same address; no copy may be under way."""

    def settle(self) -> None:
        """Waits for all work on the context. Raises DeviceError for whatever failed in it, now or before."""

    def probe(self) -> None:
        """Runs a kernel and checks its answer: that a card is listed says nothing about its health."""

    def memory(self) -> tuple[int, int]:
        """(free bytes, all bytes) of the card."""

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """(address, bytes) of memory of this card that another process has and exported by CUDA's IPC; `handle` are the
        HANDLE_BYTES bytes that it was given for it."""

    def close_handle(self, address: int) -> None:
        """Lets go of what `open_handle` opened; no copy may be under way."""

    def fetch(self, at: int, host: int, nbytes: int) -> None:
        """Copies from the card to memory of ours, and returns when it is there."""

    def store(self, host: int, at: int, nbytes: int) -> None:
        """Copies from memory of ours to the card, and returns when that may be written to again."""

    def cause(self, fault: DeviceFault) -> None:
        """Breaks something on purpose and returns; what follows is seen by `settle`."""

    def allocate(self, nbytes: int) -> int:
        """The address of memory of the card, for this process alone."""

    def free(self, address: int) -> None:
        """Gives back what `allocate` gave; nothing may use it any more."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies on the card, or from one that shares memory to it. It is done when `settle` has returned."""

    def share(self, nbytes: int) -> Shared:
        """Memory of the card that other processes can be given. The descriptor is the caller's."""

    def attach(self, fd: int, nbytes: int) -> int:
        """Maps what another process shares, for reading; `nbytes` as it says. The descriptor stays the caller's."""

    def detach(self, address: int, nbytes: int) -> None:
        """Unmaps what `share` or `attach` has mapped; no copy may be under way."""


class Holder(NamedTuple):
    """A process that holds memory of a card; bytes are 0 where the driver does not say."""

    pid: int
    nbytes: int


class XidEvent(NamedTuple):
    """A card reported an Xid, NVIDIA's number for what went wrong."""

    uuid: str
    xid: int


class OverseerError(Exception):
    """The driver's management library failed or is gone; the text is one sentence."""


class Overseer(Protocol):
    """The cards of this machine from outside. Every method may raise OverseerError."""

    def cards(self) -> tuple[Card, ...]:
        """All cards, in the order of their index."""

    def events(self, timeout_s: float) -> tuple[XidEvent, ...]:
        """What has been reported since the last call; waits up to `timeout_s` for the first."""

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """The processes with memory on a card."""

    def recovery_action(self, uuid: str) -> int:
        """What the driver wants done about a card: 0 for nothing."""

    def free_bytes(self, uuid: str) -> int:
        """Memory of a card that nobody holds."""


class Asked(NamedTuple):
    """One item of `--devices`: `cpu:2`, `cuda:all`, `cuda:0`, `cuda:GPU-…`, `fake:2`."""

    kind: str
    which: str


def asked_devices(text: str) -> tuple[Asked, ...]:
    """Reads `--devices`. Raises ConfigError for a word that is none, and where CUDA and fakes are mixed."""
    asked = []
    for item in text.split(","):
        kind, _, which = item.strip().partition(":")
        number = int(which) if which.isascii() and which.isdecimal() else -1
        good = {
            CPU: 1 <= number <= EXECUTORS_MAX,
            "fake": 1 <= number <= EXECUTORS_MAX,
            "cuda": number >= 0 or which == "all" or which.startswith(("GPU-", "MIG-")),
        }
        if not good.get(kind, False):
            raise ConfigError(
                f"device {item.strip()!r} is unknown; give cpu:N with N from 1 to {EXECUTORS_MAX}, cuda:all,"
                " cuda:INDEX, cuda:UUID, or fake:N for drills"
            )
        asked.append(Asked(kind, which))
    kinds = {each.kind for each in asked}
    if {"cuda", "fake"} <= kinds:
        raise ConfigError("devices mix cuda and fake; give one of them, so that a drill is never taken for a GPU")
    at_least = sum(int(each.which) if each.kind in {CPU, "fake"} else 1 for each in asked)
    if at_least > EXECUTORS_MAX:
        raise ConfigError(f"devices ask for {at_least} executors; at most {EXECUTORS_MAX} fit a node")
    return tuple(asked)


def chosen_cards(
    asked: tuple[Asked, ...], cards: tuple[Card, ...], shown: tuple[Card, ...] | None = None
) -> tuple[Card | None, ...]:
    """One entry for each executor: its card, None for a processor. A card that is named twice gets two executors.

    `shown` are the cards that CUDA_VISIBLE_DEVICES leaves; None for all. Raises ConfigError for a card that is not
    there, or not among those.
    """
    shown = cards if shown is None else shown
    chosen: list[Card | None] = []
    fakes = iter(cards)
    for kind, which in asked:
        if kind == CPU:
            chosen += [None] * int(which)
        elif kind == "fake":  # each item is so many cards of its own
            chosen += [card for card in islice(fakes, int(which)) if card in shown]
        elif which == "all":
            if not cards:
                raise ConfigError("devices ask for cuda:all and no GPU is here; look at `nvidia-smi`, or give cpu:N")
            if not shown:
                raise ConfigError(
                    f"CUDA_VISIBLE_DEVICES hides all {len(cards)} GPUs from this node; set it otherwise, or give cpu:N"
                )
            chosen += shown
        else:
            found = [card for card in cards if which in (card.uuid, str(card.index))]
            if not found:
                raise ConfigError(f"there is no GPU {which!r} here; GPUs are {_told(cards)}")
            if found[0] not in shown:
                raise ConfigError(
                    f"GPU {which!r} is hidden by CUDA_VISIBLE_DEVICES, which leaves {_told(shown)}; name one of those"
                )
            chosen += found
    if len(chosen) > EXECUTORS_MAX:
        raise ConfigError(f"devices ask for {len(chosen)} executors; at most {EXECUTORS_MAX} fit a node")
    return tuple(chosen)


def _told(cards: tuple[Card, ...]) -> str:
    return ", ".join(f"{card.index} ({card.uuid})" for card in cards) or "none"


def device_word(kind: str, card: Card | None, folder: str) -> str:
    """How an executor is told its device; `folder` is where the fakes live."""
    if card is None:
        return CPU
    return f"cuda:{card.uuid}" if kind == "cuda" else f"fake:{card.uuid.removeprefix(FAKE_UUID)}:{folder}"


def open_device(word: str) -> Device | None:
    """The device of an executor, with a context of this process; None for a processor.

    Raises DeviceError, or MissingDependency where there is no driver.
    """
    kind, _, rest = word.partition(":")
    if kind == "cuda":
        from workers.cuda.driver import CudaDevice

        return CudaDevice()  # the environment shows this process one card only
    if kind == "fake":
        from workers.cuda.fake import FakeDevice

        number, _, folder = rest.partition(":")
        return FakeDevice(folder, int(number))
    return None


def open_overseer(kind: str, where: str) -> Overseer:
    """The cards of this machine: of NVIDIA's driver, or `where` (a folder) of the fakes.

    Raises OverseerError or MissingDependency.
    """
    if kind == "cuda":
        from workers.cuda.nvml import Nvml

        return Nvml()
    from workers.cuda.fake_cards import FakeOverseer

    return FakeOverseer(where)
