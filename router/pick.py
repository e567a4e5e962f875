"""Picks the worker of one attempt: all local workers and a sample of remote ones are priced, the cheapest gets it.

The sample keeps the cost of a pick flat, and keeps many routers from running to the same worker at once. Equal prices
are decided by the router's own dice: an order by name or place would load the first one. A worker that failed this very
request is taken again only if there is no other. Where nobody is usable, one that can at least be reached (the registry
forgot it, or it was ejected) is better than none: that is a last resort, and the pick says so. This module never sends.
Read `router/dispatch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from router.price import Terms, price
from router.workers import Worker

if TYPE_CHECKING:
    from random import Random

    from router.learned import Kind
    from router.resident import Referring
    from router.table import Offer

_SAME_MS = 0.001
"""Prices closer than a microsecond are equal: no measurement is better than that."""


class Picked(NamedTuple):  # made for each request: a named tuple costs half of a frozen dataclass
    """The worker of an attempt, and why it. `excluded` tells who was left out: (worker, reason)."""

    worker: Worker
    terms: Terms
    candidates: int
    excluded: tuple[tuple[str, str], ...] = ()
    last_resort: bool = False
    second: Worker | None = None
    """The runner-up, where there was one: for a tie, a hedge, and to tell by how much the first won."""
    second_terms: Terms | None = None
    ties: int = 1
    """How many candidates cost the same; dice chose among them."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """No worker can take it now; `excluded` tells why, worker by worker."""

    excluded: tuple[tuple[str, str], ...]

    def sentence(self, model: str) -> str:
        """What to tell the caller."""
        told = ", ".join(f"{name} is {reason}" for name, reason in self.excluded[:5])
        if ";" in told:  # the trouble of a link says itself what to do, and another node would be no mend
            return f"no node can take a request of {model!r} now: {told}"
        told = told or "every node that offered it is gone"
        return f"no node can take a request of {model!r} now ({told}); start another one, or try again later"


def pick(
    offer: Offer,
    kind: Kind,
    nbytes: int,
    avoid: tuple[str, ...],
    sample: int,
    rng: Random,
    now: float,
    units: float = 1.0,
    fresh: tuple[Worker, ...] | None = None,
    seen: list[tuple[Worker, Terms]] | None = None,
    needs: Referring | None = None,
) -> Picked | Nobody:
    """Picks among `offer`, with at most `sample` remote candidates, for a request of this kind and so many units; its
    body and reply take `nbytes` together. `avoid`: workers that failed this request. `fresh`: those whose load was just
    read, in place of a sample. `seen` is given whoever was priced, with all terms. `needs` are the residents that the
    request refers to, which cost their way where they are missing."""
    if len(offer.everyone) == 1 and not avoid:  # most routers of one machine: nothing to compare
        (only,) = offer.everyone
        if not only.why_not(now):
            terms = _terms(only, kind, nbytes, now, units, needs)
            if seen is not None:
                seen.append((only, terms))
            return Picked(only, terms, 1)
    excluded: list[tuple[str, str]] = []
    usable: list[Worker] = []
    if fresh is not None:
        usable = [worker for worker in fresh if _usable(worker, avoid, excluded, now)]
    if not usable:
        usable = [worker for worker in offer.local if _usable(worker, avoid, excluded, now)]
        if offer.remote:
            usable += _sampled(offer.remote, avoid, sample, excluded, rng, now)
    last_resort = False
    if not usable:
        if avoid:  # the ones that failed it are better than nobody
            usable = [worker for worker in offer.everyone if not worker.why_not(now)]
        if not usable:
            usable = [worker for worker in offer.everyone if worker.can_carry]
            last_resort = True
    if not usable:
        return Nobody(tuple(excluded))
    return _cheapest(usable, kind, nbytes, units, rng, now, tuple(excluded), last_resort, seen, needs)


def _cheapest(
    usable: list[Worker],
    kind: Kind,
    nbytes: int,
    units: float,
    rng: Random,
    now: float,
    excluded: tuple[tuple[str, str], ...],
    last_resort: bool,
    seen: list[tuple[Worker, Terms]] | None,
    needs: Referring | None,
) -> Picked:
    best = usable[0]
    terms, ties = _terms(best, kind, nbytes, now, units, needs), 1
    second: Worker | None = None
    second_terms: Terms | None = None
    if seen is not None:
        seen.append((best, terms))
    for worker in usable[1:]:
        other = _terms(worker, kind, nbytes, now, units, needs)
        if seen is not None:
            seen.append((worker, other))
        if other[0] < terms[0] - _SAME_MS:
            best, terms, ties, second, second_terms = worker, other, 1, best, terms
            continue
        if other[0] < terms[0] + _SAME_MS:
            ties += 1
            if rng.random() * ties < 1.0:  # each of n equal ones wins with 1/n
                best, terms, worker, other = worker, other, best, terms  # noqa: PLW2901 - the loser is second now
        if second_terms is None or other[0] < second_terms[0]:
            second, second_terms = worker, other
    return Picked(best, terms, len(usable), excluded, last_resort, second, second_terms, ties)


def _terms(worker: Worker, kind: Kind, nbytes: int, now: float, units: float, needs: Referring | None) -> Terms:
    terms = price(worker.line, worker.ahead, worker.speed, kind, nbytes, now, units)
    if needs is None:
        return terms
    more_ms = needs.missing_ms(worker, nbytes, now)
    return terms[0] + more_ms, terms[1] + more_ms, terms[2], terms[3], terms[4]


def _usable(worker: Worker, avoid: tuple[str, ...], excluded: list[tuple[str, str]], now: float) -> bool:
    reason = "one that failed this request" if worker.name in avoid else worker.why_not(now)
    if reason:
        excluded.append((worker.name, reason))
        return False
    return True


def _sampled(
    remote: tuple[Worker, ...],
    avoid: tuple[str, ...],
    sample: int,
    excluded: list[tuple[str, str]],
    rng: Random,
    now: float,
) -> list[Worker]:
    """Up to `sample` usable ones in random order; it looks at more only while those it drew are not usable."""
    if len(remote) <= sample:
        return [worker for worker in remote if _usable(worker, avoid, excluded, now)]
    found: list[Worker] = []
    # A shuffle that notes only the places it moved: a list of all of them would cost each pick the whole fleet.
    moved: dict[int, int] = {}
    left = len(remote)
    while left and len(found) < sample:
        at = int(rng.random() * left)
        left -= 1
        worker = remote[moved.get(at, at)]
        moved[at] = moved.get(left, left)
        if _usable(worker, avoid, excluded, now):
            found.append(worker)
    return found
