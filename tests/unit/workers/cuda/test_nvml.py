"""Who reported an Xid, told from the library's handles, over a stand-in for the library: no driver is needed."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from workers.cuda.nvml import Nvml
from workers.device import OverseerError, XidEvent


class Struct(ctypes.Structure):
    """What handles point to: nobody may look inside."""


Handle = ctypes.POINTER(Struct)
XID = 8


class Lost(Exception):
    """What the library raises."""

    value = 15


class Cards:
    """Cards by UUID, with the addresses of their handles. One that is `lost` cannot be asked."""

    def __init__(self) -> None:
        self.at = {f"GPU-{name}": 0x1000 * number for number, name in enumerate("abc", 1)}
        self.lost: set[str] = set()
        self.reported: list[tuple[str, int]] = []

    def handle(self, uuid: str) -> Any:
        return ctypes.cast(self.at[uuid], Handle)  # a new object each time, as from the library

    def name(self, handle: Any) -> str:
        (uuid,) = [each for each, at in self.at.items() if at == ctypes.cast(handle, ctypes.c_void_p).value]
        if uuid in self.lost:
            raise Lost("GPU is lost")
        return uuid

    def wait(self, _events: object, _timeout_ms: int) -> Any:
        uuid, xid = self.reported.pop(0)
        return SimpleNamespace(device=self.handle(uuid), eventType=XID, eventData=xid)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """They stand in for the library."""
    cards, library = Cards(), ModuleType("pynvml")
    for name, value in {
        "NVMLError": Lost,
        "NVML_ERROR_TIMEOUT": 10,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "nvmlEventTypeXidCriticalError": XID,
        "nvmlInit": lambda: None,
        "nvmlEventSetCreate": object,
        "nvmlEventSetWait_v2": cards.wait,
        "nvmlDeviceGetCount": lambda: len(cards.at),
        "nvmlDeviceGetHandleByIndex": lambda number: cards.handle(list(cards.at)[number]),
        "nvmlDeviceGetUUID": cards.name,
        "nvmlDeviceGetName": lambda _: "H200",
        "nvmlDeviceGetMigMode": lambda _: (0, 0),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=141 << 30),
        "nvmlDeviceRegisterEvents": lambda *_: None,
    }.items():
        setattr(library, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return cards


def test_a_card_that_fell_off_the_bus_is_still_named(cards: Cards) -> None:
    nvml = Nvml()
    cards.reported = [("GPU-c", 31), ("GPU-b", 79)]
    assert nvml.events(0.01) == (XidEvent("GPU-c", 31),)
    cards.lost.add("GPU-b")
    assert nvml.events(0.01) == (XidEvent("GPU-b", 79),)


def test_a_lost_card_leaves_the_others_and_their_numbers(cards: Cards) -> None:
    cards.lost.add("GPU-b")
    nvml = Nvml()
    assert [(card.index, card.uuid) for card in nvml.cards()] == [(0, "GPU-a"), (2, "GPU-c")]
    cards.reported = [("GPU-c", 31)]
    assert nvml.events(0.01) == (XidEvent("GPU-c", 31),)
    cards.lost |= set(cards.at)
    with pytest.raises(OverseerError, match="failed listing cards"):
        nvml.cards()
