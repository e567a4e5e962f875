"""Breaks an executor on purpose, as `--inject` says: so that anybody can see what a fault does before one happens.

    illegal_address@route_plan:every=500      each 500th request of that model, in every generation
    kill:at=20                                the 20th request, in the first generation only
    hang@etr:flag=/tmp/now                    the next request once that file is there; the file is removed

Device faults are real ones: a kernel that breaks its context is launched beside the model's own. Nothing is broken
unless it was asked for when the node was started. Read `workers/station.py` next.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabric.errors import ConfigError
from workers.device import DeviceFault

if TYPE_CHECKING:
    from workers.device import Device

PROCESS_FAULTS: Final = ("kill", "exit", "stop", "sleep")
"""SIGKILL to itself, an end with code 0, SIGSTOP to itself, a run without an end."""
DEVICE_FAULTS: Final = tuple(fault.value for fault in DeviceFault)
_FOREVER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Injection:
    """One thing to break, and when: with the request `at` of the first generation, `every` so many, or once `flag` (a
    file) is there."""

    fault: str
    model: str
    at: int = 0
    every: int = 0
    flag: str = ""


def read_injections(text: str) -> tuple[Injection, ...]:
    """Reads `--inject`. Raises ConfigError for a word that is none."""
    return tuple(_read(item.strip()) for item in text.split(",") if item.strip())


def _read(item: str) -> Injection:
    what, _, when = item.partition(":")
    fault, _, model = what.partition("@")
    if fault not in PROCESS_FAULTS + DEVICE_FAULTS:
        raise ConfigError(f"inject {fault!r} is unknown; give one of {', '.join(PROCESS_FAULTS + DEVICE_FAULTS)}")
    word, _, value = when.partition("=")
    if word == "flag" and value:
        return Injection(fault, model, flag=value)
    if word in {"at", "every"} and value.isascii() and value.isdecimal() and int(value) > 0:
        return Injection(fault, model, at=int(value)) if word == "at" else Injection(fault, model, every=int(value))
    raise ConfigError(f"inject {item!r} does not say when; give FAULT[@MODEL]:at=N, :every=N or :flag=FILE")


class Injector:  # mutable: counts requests
    """The injections of one executor process. `device` is None on a processor, where device faults do nothing."""

    def __init__(self, injections: tuple[Injection, ...], generation: int, device: Device | None) -> None:
        self._injections = injections
        self._generation = generation
        self._device = device
        self._counts = [0] * len(injections)

    def before(self, model: str) -> None:
        """A request of a model is about to run. Raises DeviceError where the fault is one that is told at once."""
        for number, injection in enumerate(self._injections):
            if injection.model in {"", model}:
                self._counts[number] += 1
                if self._is_due(injection, self._counts[number]):
                    self._break(injection.fault)

    def _is_due(self, injection: Injection, count: int) -> bool:
        if injection.flag:
            try:
                Path(injection.flag).unlink()  # whoever removes it is the one that breaks: once, whatever follows
            except OSError:
                return False
            return True
        if injection.at:
            return count == injection.at and self._generation == 1
        return count % injection.every == 0

    def _break(self, fault: str) -> None:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "exit":
            os._exit(0)
        elif fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "sleep":
            time.sleep(_FOREVER_S)
        elif self._device is not None:
            self._device.cause(DeviceFault(fault))
