"""The simulated network: what happens to a frame, or to bytes written into a peer's memory, between two hosts.

Every choice comes from one seeded generator, and each is written to the journal, so that two runs of the same seed can
be compared line by line. A write into memory lands in two halves and may land long after its request was given up:
that is what slots are quarantined for. `fence` drops what has not landed. This module knows no requests; read
`fabric/sim/node.py` next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.sim.clock import SimClock, SimTimer

JOURNAL_LINES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the network does to frames. Probabilities are per frame; times in seconds."""

    delay_min_s: float = 50e-6
    delay_max_s: float = 250e-6
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """The share of frames that take `reorder_s` longer, so that later ones overtake them."""
    reorder_s: float = 0.005
    corrupt: float = 0.0
    """The share of frames of which one byte is changed; their channel is closed."""
    late_write_s: float = 0.0
    """How much later, at most, the second half of a write into memory lands."""
    resend_s: float = 0.02
    """A frame without an answer is sent again after this time, as a reliable wire below us would."""

    def __post_init__(self) -> None:
        shares = (self.loss, self.duplicate, self.reorder, self.corrupt)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ConfigError(f"loss, duplicate, reorder and corrupt are {shares}; give shares between 0 and 1")
        if not 0.0 <= self.delay_min_s <= self.delay_max_s or self.resend_s <= 0.0:
            raise ConfigError("delay_min_s, delay_max_s and resend_s must be times in this order; correct them")


class SimNetwork:  # mutable: it has frames under way
    """Hosts by name, and what is under way between them."""

    def __init__(self, clock: SimClock, options: SimOptions, seed: int) -> None:
        self.clock = clock
        self.options = options
        self.random = Random(seed)  # noqa: S311 - a simulation must repeat
        self._cut: set[tuple[str, str]] = set()
        self._writes: dict[str, list[SimTimer]] = {}
        self._journal: deque[str] = deque(maxlen=JOURNAL_LINES_MAX)

    @property
    def journal(self) -> tuple[str, ...]:
        """What happened, a line each, oldest first."""
        return tuple(self._journal)

    def note(self, what: str) -> None:
        """Writes a line to the journal."""
        self._journal.append(f"{self.clock.now:.6f} {what}")

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """From now on nothing passes from `one` to `other`, nor back unless `one_way`; nobody is told."""
        self._cut |= {(one, other)} if one_way else {(one, other), (other, one)}
        self.note(f"partition {one} {'>' if one_way else '<>'} {other}")

    def heal(self, one: str, other: str) -> None:
        """Frames pass again, both ways; what was lost stays lost."""
        self._cut -= {(one, other), (other, one)}
        self.note(f"heal {one} <> {other}")

    def send(self, source: str, target: str, frame: bytes, label: str, deliver: Callable[[bytes], None]) -> float:
        """Sends a frame; `deliver` gets it once, twice or never. Returns the delay of the first copy, in seconds."""
        way = f"{source}>{target} {label}"
        options, chance = self.options, self.random.random
        first_s = self._delay_s()
        if (source, target) in self._cut or chance() < options.loss:
            self.note(f"{way} lost")
            return first_s
        copies = [first_s]
        if chance() < options.duplicate:
            copies.append(self._delay_s())
        if chance() < options.corrupt:
            damaged = bytearray(frame)
            damaged[self.random.randrange(len(frame))] ^= 1 << self.random.randrange(8)
            frame = bytes(damaged)
            way += " damaged"
        for delay_s in copies:
            self.clock.call_later(delay_s, lambda: self._arrive(source, target, way, frame, deliver))
        return first_s

    def write(self, owner: str, memory: memoryview, data: bytes, done: Callable[[], None]) -> None:
        """Writes `data` into a peer's memory, half by half, then calls `done`; `fence(owner)` stops what is left."""
        half = len(data) // 2
        second_s = self._delay_s() + self.random.uniform(0.0, self.options.late_write_s)

        def land_first() -> None:
            memory[:half] = data[:half]

        def land_second() -> None:
            memory[half : len(data)] = data[half:]
            self.note(f"{owner} wrote {len(data)} bytes")
            done()

        timers = self._writes.setdefault(owner, [])
        timers[:] = [timer for timer in timers if timer.action is not None]
        timers.append(self.clock.call_later(min(self._delay_s(), second_s), land_first))
        timers.append(self.clock.call_later(second_s, land_second))

    def fence(self, owner: str) -> None:
        """No write of this owner lands after this."""
        for timer in self._writes.pop(owner, []):
            timer.cancel()
        self.note(f"{owner} fenced")

    def _arrive(self, source: str, target: str, way: str, frame: bytes, deliver: Callable[[bytes], None]) -> None:
        if (source, target) in self._cut:  # it was under way when the line was cut
            self.note(f"{way} lost")
            return
        self.note(way)
        deliver(frame)

    def _delay_s(self) -> float:
        options = self.options
        delay_s = self.random.uniform(options.delay_min_s, options.delay_max_s)
        return delay_s + (options.reorder_s if self.random.random() < options.reorder else 0.0)
