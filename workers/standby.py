"""A second process beside an executor that can follow it at once: started when the first is ready, kept, handed over.

It costs memory: a context, and with `full` the models once more. So it is started only while the card has that much
free, its bytes are counted and published, and where there is no room the node says so and goes without. It never takes
work: `workers/shell.py` puts it to work by `take`. Read that next.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.cuda.units import in_gib
from workers.handover import Control
from workers.seat import Seat, StandbyKind
from workers.sentinel import START_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor, Timer
    from workers.life import Life
    from workers.repository import ModelSource

_log = logging.getLogger(__name__)
AGAIN_FIRST_S: Final = 0.5
AGAIN_MAX_S: Final = 60.0
CONTEXT_BYTES: Final = 1 << 30
"""What is left free for a context: 0.5 GiB was seen on an H200, other libraries' workspaces beside it."""
BYTES_KNOWN_S: Final = 1.5
"""After so long the watcher has looked at the card, and what the standby holds is told too."""
_DEATHS_MAX: Final = 3
"""So many in a row and it is tried once a minute only."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What a standby asks of its executor: a new process with a generation of its own, the models to load, the
    libraries to import, whether something may stand beside it now, the process at work; and whom to tell."""

    name: str
    new_life: Callable[[], Life | None]
    models: Callable[[], tuple[ModelSource, ...]]
    libraries: Callable[[], tuple[str, ...]]
    wanted: Callable[[], bool]
    active_pid: Callable[[], int]
    changed: Callable[[], None]


class Standby:  # mutable: a process, then the next one
    """The standby of one executor."""

    def __init__(self, reactor: Reactor, seat: Seat, ways: Ways) -> None:
        self._reactor = reactor
        self._seat = seat
        self._ways = ways
        self._timer: Timer | None = None
        self._deaths = 0
        self.life: Life | None = None
        self.no_room = ""
        """Why there is none, if it is for want of memory."""

    @property
    def ready(self) -> bool:
        """Whether it can follow now: it is up, and nothing is known that will end it."""
        return self.life is not None and not self.life.why and (self.life.warm or self.life.bare)

    @property
    def loading(self) -> bool:
        """Whether it is coming up, and may be at fault for what its card reports."""
        return self.life is not None and not self.ready

    @property
    def held_bytes(self) -> int:
        """What it holds of the card, as last seen."""
        seat = self._seat
        if not self.ready or self.life is None or seat.card is None or seat.cards is None:
            return 0
        return seat.cards.held_bytes(seat.card.uuid, self.life.child.pid)

    def start_soon(self, delay_s: float = 0.0) -> None:
        """Starts one, unless there is one or none is wanted."""
        if self._seat.standby is StandbyKind.OFF or self.life is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(delay_s, self._start)

    def take(self) -> Life:
        """Hands over the process: it is no standby any more."""
        life, self.life = self.life, None
        assert life is not None, "it is taken only when it is ready"
        self._deaths = 0
        return life

    def hear(self, control: Control) -> None:
        """It says a word. One that its executor may say and that means nothing here is passed over."""
        life = self.life
        assert life is not None, "it is its life that speaks"
        if control.word == "ready":
            refused = next((each for each in control.loaded if each.refused), None)
            if refused is not None:  # the executor at work serves it, or it would not have been asked for
                self._end(f"cannot load model {refused.model!r}: {refused.refused}")
                return
            life.anew = False
            if life.to_load != self._ways.models():
                life.load(self._ways.models())
                return
            life.warm = True
            self._is_ready()
        elif control.word == "prepared":
            life.bare = True
            self._is_ready()

    def look(self, now: float) -> None:
        """Looks whether it stopped, hangs, or does not come up, and whether it still has the models of now."""
        if self.life is not None and not self.life.why:
            if self.life.warm and self.life.to_load != self._ways.models():
                self.life.warm = False
                self.life.load(self._ways.models())
            why = self.life.look(now, {}, ready=self.ready, start_timeout_s=START_TIMEOUT_S)
            if why:
                self._end(why)

    def _is_ready(self) -> None:
        self._deaths = 0
        _log.info("%s has a standby (%s)", self._ways.name, self._seat.standby.value)
        self._ways.changed()
        self._reactor.call_later(BYTES_KNOWN_S, self._ways.changed)

    def ended(self) -> None:
        """Its process is reaped."""
        why = self.life.why if self.life is not None else ""
        self._gone()
        if self._ways.wanted():
            _log.warning("the standby of %s %s", self._ways.name, why)
        self._ways.changed()
        self._deaths += 1
        late = self._deaths >= _DEATHS_MAX
        self.start_soon(AGAIN_MAX_S if late else AGAIN_FIRST_S * 2 ** (self._deaths - 1))

    def stop(self) -> None:
        """Ends it; nothing follows it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.life is not None:
            self._end("was not needed any more")

    def _end(self, why: str) -> None:
        if self.life is not None:
            self.life.why = self.life.why or why
            self.life.child.kill()

    def _spawned(self, *, full: bool) -> Life | None:
        life = self._ways.new_life()
        if life is not None and full:
            life.load(self._ways.models())
        elif life is not None:
            life.tell(Control("prepare", models=self._ways.libraries()))
        return life

    def _active_bytes(self) -> int:
        card, cards = self._seat.card, self._seat.cards
        return cards.held_bytes(card.uuid, self._ways.active_pid()) if card is not None and cards is not None else 0

    def _gone(self) -> None:
        if self.life is not None:
            self.life.child.close()
            self.life = None

    def _start(self) -> None:
        if self.life is not None or not self._ways.wanted():
            return
        full = self._seat.standby is StandbyKind.FULL
        lacking = self._lacks(full=full)
        if lacking != self.no_room:
            self.no_room = lacking
            if lacking:
                _log.warning("%s goes without a standby: %s", self._ways.name, lacking)
            self._ways.changed()
        if not lacking:
            self.life = self._spawned(full=full)
        if self.life is None:
            self.start_soon(AGAIN_MAX_S if lacking else AGAIN_FIRST_S)

    def _lacks(self, *, full: bool) -> str:
        """Why there is no room on the card; empty where there is."""
        seat = self._seat
        if seat.card is None or seat.cards is None:
            return ""
        needed = max(CONTEXT_BYTES, self._active_bytes() if full else 0)
        free = seat.cards.free_bytes(seat.card.uuid)
        if free >= needed:
            return ""
        return f"it would take {in_gib(needed)} and {in_gib(free)} are free; load fewer models, or set standby to off"
