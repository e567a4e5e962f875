"""One model of a node's repository: what serves of it, what is being loaded, and why something of it does not.

It is a record with the views of it that others are shown; it decides nothing. Read `workers/library.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from fabric.control import LOADING, READY, UNAVAILABLE, UNLOADING, ModelState
from workers.batchconfig import Batching
from workers.batching import BatchLine
from workers.desks import ModelQueue
from workers.legs import BETWEEN_MAX
from workers.lifecycle import ModelMachine, ModelStage
from workers.repository import facts_of
from workers.statistics import ModelTally

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import ModelFacts
    from fabric.errors import OverspillError
    from fabric.local.reactor import Timer
    from workers.fitting import Fit
    from workers.handover import Loaded
    from workers.modelconfig import ModelConfig
    from workers.repository import ModelEntry, ModelSource

NOT_LOADED = "it is not loaded; ask the node to load it"


class Attempt:  # mutable: executors report one by one
    """One load that was asked for. `outstanding` are the executors at it, `held` those that have it warm."""

    __slots__ = ("done", "entry", "error", "fit", "held", "outstanding", "override", "serial", "timer", "warm")

    def __init__(self, serial: int, override: str, done: Callable[[OverspillError | None], None]) -> None:
        self.serial = serial
        self.override = override
        self.done = done
        self.entry: ModelEntry | None = None
        self.error: OverspillError | None = None
        self.fit: Fit | None = None
        self.outstanding: set[int] = set()
        self.held: list[int] = []
        self.warm: list[Loaded] = []
        self.timer: Timer | None = None

    def end(self) -> None:
        """It is over, in time."""
        if self.timer is not None:
            self.timer.cancel()


class Shelved:  # mutable: one model over all its versions
    """`entry` is what the repository holds, as last read, and `served` what executors have. `reason` is why the model
    is not ready, or why the last load failed. `queue` stands in admission while the model takes requests."""

    __slots__ = (
        "_tallies", "attempt", "deaths", "entry", "fit", "machine", "name", "queue", "reason", "served",
        "unload_asked",
    )  # fmt: skip

    def __init__(self, name: str, entry: ModelEntry | None = None) -> None:
        self.name = name
        self.machine = ModelMachine()
        self.entry = entry
        self.served: ModelEntry | None = None
        self.fit: Fit | None = None
        """Where what serves was put."""
        self.queue = ModelQueue(name, 0, None, idempotent=False)
        self.reason = ""
        self.attempt: Attempt | None = None
        self.unload_asked: Callable[[OverspillError | None], None] | None = None
        self.deaths: Counter[int] = Counter()
        """How often in a row an executor, by number, ended while it loaded this at its start."""
        self._tallies: dict[str, ModelTally] = {}

    @property
    def source(self) -> ModelSource | None:
        """What executors loaded."""
        return self.served.source if self.served is not None else None

    @property
    def config(self) -> ModelConfig | None:
        """How it is configured, while it is loaded."""
        return self.served.config if self.served is not None else None

    @property
    def version(self) -> str:
        """The version that is loaded, or else the newest of the repository."""
        shown = self.served or self.entry
        return shown.version if shown is not None else ""

    @property
    def was_read(self) -> bool:
        """Whether anything is known of it; not yet, while the first load of a new folder reads it."""
        return self.served is not None or self.entry is not None

    @property
    def is_loaded(self) -> bool:
        """Whether it serves, or would if its executors were up."""
        return self.served is not None and self.machine.stage is not ModelStage.UNLOADING

    @property
    def is_known(self) -> bool:
        """Whether somebody asked for it, so that it is shown even where its folder has gone."""
        return self.machine.stage is not ModelStage.UNLOADED or self.attempt is not None

    def serve(self, entry: ModelEntry, fit: Fit, executors: int) -> Batching | None:
        """From the next request on this is what serves. The queue stays: requests wait in it, from now on as is said
        here: in a line of their own where they may run together, or not everywhere."""
        config = entry.config
        assert config is not None, "what executors load was read"
        self.served, self.fit, self.reason = entry, fit, ""
        queue = self.queue
        queue.refused = ""
        queue.queue_max = config.queue_size_max
        queue.execution_timeout_s = config.execution_timeout_s
        queue.idempotent = config.idempotent
        tally = self._tallies.get(entry.version)
        if tally is None:
            tally = self._tallies[entry.version] = ModelTally(entry.version)
        queue.tally = tally
        queue.holders = fit.numbers if len(fit.numbers) < executors else None
        _lay_legs(queue, fit)
        return config.batching or (Batching(1) if queue.holders is not None else None)

    def let_go(self) -> None:
        """Nothing serves any more. A later load begins with a new queue."""
        self.served = self.fit = None
        self.queue = ModelQueue(self.name, 0, None, idempotent=False)

    def warmed(self, loaded: Loaded) -> None:
        """Learns from an executor's warm-up how long runs take."""
        for run_us in loaded.runs_us:
            self.queue.speed.warmed(run_us)

    def refuse(self, why: str) -> ModelQueue:
        """A new queue that takes nothing and says why."""
        self.reason = why
        self.queue = ModelQueue(self.name, 0, None, idempotent=False)
        self.queue.refused = why
        return self.queue

    def states(self) -> tuple[ModelState, ...]:
        """A row for what serves, and one for a version beside it that is loading or could not be loaded."""
        stage = self.machine.stage
        newest = self.attempt.entry if self.attempt is not None and self.attempt.entry is not None else self.entry
        beside = newest.version if newest is not None else ""
        if stage in {ModelStage.SERVING, ModelStage.RELOADING}:
            reason, serial = self.reason if beside == self.version else "", self.source.serial if self.source else 0
            rows = [ModelState(self.name, self.version, READY, reason, serial)]
            if beside != self.version and (self.reason or stage is ModelStage.RELOADING):
                state = LOADING if stage is ModelStage.RELOADING else UNAVAILABLE
                rows.append(ModelState(self.name, beside, state, self.reason if state is UNAVAILABLE else ""))
            return tuple(rows)
        if stage is ModelStage.UNLOADED:
            return (ModelState(self.name, beside, UNAVAILABLE, self.reason or "it is not loaded"),)
        return (ModelState(self.name, self.version, LOADING if stage is ModelStage.LOADING else UNLOADING),)

    def facts(self) -> ModelFacts:
        """What discovery says: with a reason beside a model that takes no requests."""
        stage, shown = self.machine.stage, self.served or self.entry
        assert shown is not None, "only what was read is shown"
        if stage is ModelStage.UNLOADED:
            facts = facts_of(shown, self.reason or NOT_LOADED)
            return replace(facts, state="refused" if self.reason else "unloaded")
        if stage is ModelStage.UNLOADING:
            return replace(facts_of(shown, NOT_LOADED), state=stage.value)
        return replace(
            facts_of(shown),
            state="" if stage is ModelStage.SERVING else stage.value,
            note=self.reason or self._elsewhere(),
        )

    def _elsewhere(self) -> str:
        if self.fit is None:
            return ""
        legs = "; ".join(
            f"steps {leg.first + 1} to {leg.upto} on executors {', '.join(map(str, sorted(leg.numbers)))}"
            for leg in self.fit.legs
        )
        return "; ".join(filter(None, (legs, self.fit.refused)))

    def __repr__(self) -> str:
        return f"<Shelved {self.name} {self.machine.stage.value}>"


def _lay_legs(queue: ModelQueue, fit: Fit) -> None:
    """Gives an ensemble in legs a queue for each; any other model none."""
    queue.leg, queue.legs = None, ()
    if not fit.legs:
        return
    first, *others = fit.legs
    queue.leg, queue.holders = first, first.numbers
    queue.between_bytes = fit.need_bytes
    queue.between_max = BETWEEN_MAX * sum(len(leg.numbers) for leg in others)
    legs = []
    for leg in others:
        name = f"{queue.name} (steps {leg.first + 1} to {leg.upto})"
        later = ModelQueue(name, queue.queue_max, queue.execution_timeout_s, idempotent=queue.idempotent)
        later.leg, later.whole, later.holders, later.tally = leg, queue, leg.numbers, queue.tally
        later.line = BatchLine(Batching(1))
        legs.append(later)
    queue.legs = tuple(legs)
