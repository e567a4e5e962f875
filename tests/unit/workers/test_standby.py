"""A standby follows only while nothing is known that will end it."""

from __future__ import annotations

from typing import Any, cast

from workers.handover import Control
from workers.seat import Seat, StandbyKind
from workers.standby import Standby, Ways


class Process:
    """A life that loads, is killed, and is not reaped yet."""

    def __init__(self) -> None:
        self.why = ""
        self.warm = self.bare = False
        self.to_load: tuple[Any, ...] = ()
        self.anew = True
        self.child = self
        self.kills = 0

    def load(self, sources: tuple[Any, ...]) -> None:
        self.to_load = sources

    def look(self, _now: float, _in_hand: Any, *, ready: bool, start_timeout_s: float) -> str:
        return "was stopped by a signal" if ready and start_timeout_s else ""

    def kill(self) -> None:
        self.kills += 1


class Clock:
    """Fires at once what is due at once."""

    def call_later(self, delay_s: float, what: Any) -> None:
        if not delay_s:
            what()


def test_one_that_is_being_ended_does_not_follow() -> None:
    process = Process()
    ways = Ways("executor 0", lambda: cast("Any", process), tuple, tuple, lambda: True, lambda: 1, lambda: None)
    standby = Standby(cast("Any", Clock()), Seat("fake:0:0", standby=StandbyKind.FULL), ways)
    seen = []
    standby.start_soon()
    for what in ("", "hear", "look"):
        if what == "hear":
            standby.hear(Control("ready"))
        elif what:
            standby.look(1.0)
        seen.append((standby.ready, standby.loading, process.kills))
    # Its executor would go on as a process that is killed; and what the card reports may be its doing.
    assert seen == [(False, True, 0), (True, False, 0), (False, True, 1)]
