"""Which workers' load pages are read for a request: all local ones, then, where it can pay, a few remote ones.

To read a few at random gives each of them an equal chance to be idle; most are not. What was read before says who is
likelier to be, even when it is a little old, so most reads go there; the random ones find who has become idle since,
and keep many routers from reading, and loading, the same few. Nothing is taken off an old figure for the time that
passed: others have sent work meanwhile, about as much as was done. Remote pages are not read where even an idle remote
worker would answer later than the best local one. A request waits for the remote pages only where that costs little
beside its own run; else it goes to a local worker at once, the pages are read beside it, and a remote worker that would
end it sooner is tied with the local one when they are there (`router/tie.py`). This module reads nothing. Read
`router/freshen.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.price import price

if TYPE_CHECKING:
    from random import Random

    from router.learned import Kind
    from router.table import Offer
    from router.workers import Worker

RANKED_MAX = 64
"""Remembered figures that are compared for one request; of a larger fleet, so many at random."""
RUN_MIN_MS = 0.5
"""To read the pages of a few workers of this host takes some 20 us, a twentieth of such a run."""
READ_SHARE_MAX = 0.05
"""A request waits for a read that takes at most this part of its own run: an error of an estimate is larger."""
READ_AGAIN_RUNS = 1.0
"""A worker's page is read beside requests once in the time of a run: more often it tells of the same queue."""
_BEST_SHARE = 3 / 5
"""Part of the reads that goes to those that looked best (docs/routing.md compares other parts)."""


def worth_reading(offer: Offer, kind: Kind, units: float) -> bool:
    """Whether any page is read at all: not where nobody is to be compared, nor for runs that a read would lengthen."""
    usual_ms = kind.usual_ms()
    return len(offer.everyone) > 1 and (usual_ms is None or usual_ms * units >= RUN_MIN_MS)


def near(offer: Offer, avoid: tuple[str, ...], now: float) -> tuple[Worker, ...]:
    """The local workers that may take a request."""
    return tuple(worker for worker in offer.local if worker.name not in avoid and not worker.why_not(now))


def far(
    offer: Offer, avoid: tuple[str, ...], kind: Kind, units: float, reads: int, rng: Random, now: float
) -> list[Worker]:
    """Up to `reads` remote workers that may take a request, the likeliest first."""
    remote = offer.remote
    if len(remote) > RANKED_MAX:
        ranked = rng.sample(remote, RANKED_MAX)
    else:  # from another place each time, so that among equals the first of the list is not everybody's first
        turn = int(rng.random() * len(remote))
        ranked = [*remote[turn:], *remote[:turn]]
    if len(ranked) > reads:
        prices = [worker.ahead.standing_ms() + worker.speed.full_ms(kind) * units for worker in ranked]
        ranked = [ranked[at] for at in sorted(range(len(ranked)), key=prices.__getitem__)]
    found: list[Worker] = []
    best = max(1, round(reads * _BEST_SHARE))
    while ranked and len(found) < reads:
        at = 0 if len(found) < best else int(rng.random() * len(ranked))
        worker = ranked.pop(at)
        if worker.name not in avoid and not worker.why_not(now):
            found.append(worker)
    return found


def dear(local: tuple[Worker, ...], remote: list[Worker], kind: Kind, units: float, now: float) -> bool:
    """Whether to wait for the remote pages would cost more than their worth: only where a local worker is there."""
    if not local:
        return False
    run_ms = min(each.speed.predict_ms(kind, now) for each in local) * units
    return max(each.line.predict_ms(0, now) for each in remote) > READ_SHARE_MAX * run_ms


def pays(local: tuple[Worker, ...], remote: list[Worker], kind: Kind, units: float, nbytes: int, now: float) -> bool:
    """Whether one of the remote workers, were it idle, would answer before the best local one, the read included."""
    if not local:
        return True
    best_ms = min(price(each.line, each.ahead, each.speed, kind, nbytes, now, units)[0] for each in local)
    idle_ms = (
        each.line.predict_ms(nbytes, now) + each.line.predict_ms(0, now) + each.speed.predict_ms(kind, now) * units
        for each in remote
    )
    return any(ms < best_ms for ms in idle_ms)


def aged(remote: list[Worker], kind: Kind, units: float, now: float) -> tuple[Worker, ...]:
    """Those of the workers whose load is to be read beside a request, for the sake of the next ones: where a read costs
    little beside a run, and none was told for as long as a run takes."""
    usual_ms = kind.usual_ms()
    if usual_ms is None:
        return ()
    run_ms = usual_ms * units
    return tuple(
        worker
        for worker in remote
        if worker.line.predict_ms(0, now) <= READ_SHARE_MAX * run_ms
        and (now - worker.ahead.reported_at_s) * 1000.0 >= READ_AGAIN_RUNS * run_ms
    )
