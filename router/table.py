"""All workers: what discovery says of them, which offer a model, and what is to be done when that changes.

Changes arrive from the registry's thread, links come and go on the background thread, picks are made by callers:
whoever holds the router's lock calls in, and carries out the commands after letting it go. For each model the table
keeps who offers it, local and remote apart, and makes that anew only when the list changed, not when a link did, so
that a pick costs the same with 256 workers as with 5. This module never opens or closes a link. Read `router/pick.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from discovery.instance import Insert, Readiness
from fabric.errors import Unavailable, UnknownModel
from router.hints import Hints
from router.learned import Work
from router.workers import State, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from discovery.instance import Change, Instance, ModelFacts
    from fabric.errors import OverspillError
    from router.config import RouterConfig
    from router.workers import WorkerLink

Key = tuple[str, int]
NAMES_MAX = 5
"""Models that are named to whoever asked for one that is not there."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link to this worker, until it is open or the worker is gone."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Drop:
    """End this link. `reason` is what requests that are still on it will tell."""

    link: WorkerLink
    reason: str


Command = Dial | Drop
_LOST = "every wire to it was lost"


@dataclass(frozen=True, slots=True)
class Offer:
    """Who offers a model: `facts` is what the first of them says of it, None where none says anything."""

    everyone: tuple[Worker, ...]
    local: tuple[Worker, ...]
    remote: tuple[Worker, ...]
    facts: ModelFacts | None
    idempotent: bool


class Table:  # mutable: the workers that are known
    """The workers by (node id, epoch)."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._workers: dict[Key, Worker] = {}
        self.offers: dict[str, Offer] = {}
        self._latest: dict[str, Offer] = {}
        self.work = Work()
        self.hints = Hints()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that are known."""
        return tuple(self._workers.values())

    def changed(self, changes: tuple[Change, ...]) -> tuple[Command, ...]:
        """Takes in what the registry said. Repeated facts of a known worker keep all that was learned of it."""
        commands: list[Command] = []
        for change in changes:
            if isinstance(change, Insert):
                commands += self._insert(change.instance)
            else:
                worker = self._workers.get((change.node_id, change.node_epoch))
                if worker is not None and worker.state is not State.UNLISTED:
                    worker.unlisted()
                    commands += self._sweep(worker)
        self.offers.clear()
        return tuple(commands)

    def _insert(self, instance: Instance) -> list[Command]:
        # A node that still starts has not told all of its addresses, and a link opened now would never learn of them.
        starting = instance.readiness is Readiness.STARTING
        worker = self._workers.get(instance.key)
        if worker is not None:
            was_starting = worker.instance.readiness is Readiness.STARTING
            worker.listed(instance)
            return [Dial(worker)] if was_starting and not starting and worker.state is State.PENDING else []
        worker = self._workers[instance.key] = Worker(instance, self._config)
        return [] if starting else [Dial(worker)]

    def clear(self) -> None:
        """Forgets everybody."""
        self._workers.clear()
        self.offers.clear()
        self._latest.clear()

    def link_up(self, worker: Worker, link: WorkerLink) -> tuple[Command, ...]:
        """A link was opened; it is dropped again if nobody wants it by now."""
        if worker.state is not State.PENDING or worker.instance.key not in self._workers:
            return (Drop(link, "nobody wants a link to it any more"),)
        if worker.linked(link):
            self.offers.clear()
        return ()

    def wire_changed(self, worker: Worker) -> None:
        """The link of a worker may use another wire: a node of this host that only rpc reaches is a remote one."""
        if worker.wire_changed():
            self.offers.clear()

    def link_lost(self, worker: Worker, link: WorkerLink) -> tuple[Command, ...]:
        """A link was seen dead, perhaps by several callers at once: the first one counts."""
        if worker.link is not link:
            return ()
        worker.link_lost()
        # Offers stay: whoever has no link says so when it is asked. Where many links flap, making the lists of 1,000
        # workers anew after each would cost more than the picks (200 us, measured).
        if worker.state is State.PENDING:
            return Drop(link, _LOST), Dial(worker)
        return Drop(link, _LOST), *self._sweep(worker)

    def _sweep(self, worker: Worker) -> list[Command]:
        if worker.state is State.GONE:
            self._workers.pop(worker.instance.key, None)
            self.offers.clear()
        return []

    def last_usable(self, worker: Worker, model: str, now: float) -> bool:
        """Whether nobody but this worker could take a request of the model now."""
        offer = self.offer(model)
        return all(other is worker or other.why_not(now) for other in offer.everyone)

    def offer(self, model: str) -> Offer:
        """Who offers the model; nobody now, if somebody did before. Raises UnknownModel for a name nobody ever offered,
        or Unavailable when nobody was ever there."""
        found = self.offers.get(model)
        if found is None:
            found = self.offers[model] = self._make(model)
            self._latest[model] = Offer((), (), (), found.facts, found.idempotent)
        return found

    def _make(self, model: str) -> Offer:
        offering = [
            worker for worker in self._workers.values() if worker.facts(model) is not None or worker.offers_anything
        ]
        if not offering:
            latest = self._latest.get(model)
            if latest is None:
                raise self._nobody(model)
            return latest  # it was offered before: a request waits for its nodes to come back
        facts = [found for worker in offering if (found := worker.facts(model)) is not None]
        return Offer(
            everyone=tuple(offering),
            local=tuple(worker for worker in offering if worker.is_local),
            remote=tuple(worker for worker in offering if not worker.is_local),
            facts=facts[0] if facts else None,
            # One node that says no is enough: the request may have run there.
            idempotent=len(facts) == len(offering) and all(found.idempotent for found in facts),
        )

    def _nobody(self, model: str) -> OverspillError:
        if not self._workers:
            return Unavailable("no node is registered; start one with `overspill node` on this registry, and try again")
        refused = [
            f"{worker.name} refused it: {facts.refused}"
            for worker in self._workers.values()
            for facts in worker.instance.models
            if facts.name == model and facts.refused
        ]
        if refused:
            return UnknownModel(f"no node serves model {model!r}; {refused[0]}")
        names = self.models()
        there = f"there is {', '.join(names[:NAMES_MAX])}" if names else "the nodes that are there offer none"
        if close := get_close_matches(model[:80], names, n=5, cutoff=0.5):
            there = f"did you mean {', '.join(close)}?"
        elif len(names) > NAMES_MAX:
            there += f" and {len(names) - NAMES_MAX} more"
        return UnknownModel(f"no node offers a model {model[:80]!r}; {there}")

    def models(self) -> tuple[str, ...]:
        """The names of all models that a node takes requests for, sorted."""
        return _names(self._workers.values())

    def takes_any(self) -> bool:
        """Whether a node is reached whose models nobody told, so that any may be asked of it."""
        return any(each.offers_anything and each.can_carry and not each.silent for each in self._workers.values())

    def models_reached(self) -> tuple[str, ...]:
        """Those of `models` that a node takes which a link reaches and which is not silent."""
        return _names(worker for worker in self._workers.values() if worker.can_carry and not worker.silent)

    def __repr__(self) -> str:
        states = [worker.state.value for worker in self._workers.values()]
        told = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        return f"<Table of {len(states)}: {told or 'nobody'}>"


def _names(workers: Iterable[Worker]) -> tuple[str, ...]:
    return tuple(sorted({facts.name for worker in workers for facts in worker.instance.models if not facts.refused}))
