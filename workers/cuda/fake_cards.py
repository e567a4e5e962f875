"""The folders that fake cards are, as the watcher sees them: which there are, who holds memory, what they report.

What may be written there stands in `workers/cuda/fake.py`, which has the executor's side. Read
`workers/cuda/watcher.py` next.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from workers.device import FAKE_UUID, Card, Holder, OverseerError, XidEvent

MODEL: Final = "Overspill fake GPU"
MEMORY_BYTES: Final = 16 << 30
_LOOK_S: Final = 0.02


class FakeOverseer:  # mutable: remembers how far it has read
    """The watcher's side of the fake cards in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._read: dict[str, int] = {card.uuid: len(reported(self._of(card.uuid))) for card in self.cards()}
        self._read[""] = len(reported(self._folder))

    def cards(self) -> tuple[Card, ...]:
        """See `Overseer`."""
        folders = sorted(self._folder.glob("card-*"), key=_place)
        return tuple(
            Card(place, FAKE_UUID + folder.name[5:], _model(folder), whole_bytes(folder))
            for place, folder in enumerate(folders)
        )

    def events(self, timeout_s: float) -> tuple[XidEvent, ...]:
        """See `Overseer`."""
        end_s = time.monotonic() + timeout_s
        while True:
            found: list[XidEvent] = []
            for uuid, read in self._read.items():
                found_there = reported(self._of(uuid) if uuid else self._folder)
                found += [XidEvent(uuid, xid) for xid in found_there[read:]]
                self._read[uuid] = len(found_there)
            if found or time.monotonic() >= end_s:
                return tuple(found)
            time.sleep(min(_LOOK_S, timeout_s))

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """See `Overseer`."""
        return holders(self._here(uuid))

    def recovery_action(self, uuid: str) -> int:
        """See `Overseer`."""
        with suppress(FileNotFoundError, ValueError):
            return int((self._here(uuid) / "recovery").read_text())
        return 0

    def free_bytes(self, uuid: str) -> int:
        """See `Overseer`."""
        folder = self._here(uuid)
        return max(0, whole_bytes(folder) - sum(each.nbytes for each in holders(folder)))

    def _of(self, uuid: str) -> Path:
        return self._folder / f"card-{uuid.removeprefix(FAKE_UUID)}"

    def _here(self, uuid: str) -> Path:
        folder = self._of(uuid)
        if (folder / "lost").exists():
            raise OverseerError(f"fake card {uuid} is lost; remove {folder / 'lost'}")
        return folder


def _place(folder: Path) -> int:
    with suppress(FileNotFoundError, ValueError):
        return int((folder / "place").read_text())
    return int(folder.name[5:])


def _model(folder: Path) -> str:
    with suppress(FileNotFoundError):
        return (folder / "model").read_text().strip()
    return MODEL


def whole_bytes(folder: Path) -> int:
    """What memory a card has."""
    with suppress(FileNotFoundError, ValueError):
        return int((folder / "memory").read_text())
    return MEMORY_BYTES


def reported(folder: Path) -> list[int]:
    """The Xids that a card has reported."""
    try:
        lines = (folder / "xid").read_text().split()
    except FileNotFoundError:
        return []
    return [int(line) for line in lines if line.isdecimal()]


def holders(folder: Path) -> tuple[Holder, ...]:
    """Processes that live and hold memory, and the one that never gives its memory back."""
    held = ""
    with suppress(FileNotFoundError):
        held = (folder / "held").read_text().strip()
    found = []
    for file in (folder / "pids").iterdir():
        if file.name != held and not _lives(int(file.name)):
            file.unlink(missing_ok=True)
            continue
        with suppress(FileNotFoundError, ValueError):  # it ended, or is writing just now
            found.append(Holder(int(file.name), int(file.read_text())))
    return tuple(found)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
