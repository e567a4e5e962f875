"""What a router reads of its workers for one request: before the pick, or beside the attempt where that takes long.

The choice between fresh pages and the reports of answers is made for each request by what a read costs beside its run,
so nobody sets it. Where no page can be read before it, the pick goes by reports, and the pages of workers that told
nothing for a while are read beside the request, for those that follow it; all is counted. This module decides nothing
of its own: `router/fresh.py` says whom to read, `router/tie.py` whom to tie. Read those.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.fresh import aged, dear, far, near, pays, worth_reading
from router.steps import Read
from router.tie import sooner
from router.tied import Tied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.attempt import Attempts
    from router.core import Core
    from router.dispatch import Attempt


def freshen(core: Core, attempts: Attempts, nbytes: int) -> Iterator[Read]:
    """Reads the pages of whoever may take a request, and notes them as its candidates."""
    model, hint, avoid, table = attempts.model, attempts.hint, attempts.avoid, core.table
    attempts.beside = None
    with core.lock:
        kind = table.hints.kind(model) if hint else table.work.kind(model, nbytes)
        offer, units = table.offer(model), kind.units(hint)
        if not worth_reading(offer, kind, units):
            attempts.fresh = None
            return
        candidates = near(offer, avoid, core.clock())
    if candidates:
        yield Read(candidates, kind)
    if offer.remote:
        with core.lock:
            now = core.clock()
            remote = far(offer, avoid, kind, units, core.config.remote_sample, core.rng, now)
            if core.readable is not None and not all(map(core.readable, remote)):
                attempts.fresh = None  # by reports: any of them may take it
                old = aged(remote, kind, units, now)
                attempts.beside = Read(old, kind) if old else None
                return
            worth_it = bool(remote) and pays(candidates, remote, kind, units, nbytes + kind.reply_bytes, now)
            beside = worth_it and dear(candidates, remote, kind, units, now)
        if beside:
            attempts.beside = Read(tuple(remote), kind)
        elif worth_it:
            yield Read(tuple(remote), kind)
        if worth_it and not (beside and core.config.tied and attempts.idempotent):
            candidates += tuple(remote)
    attempts.fresh = candidates


def read_for_copy(core: Core, step: Read) -> bool:
    """Reads the pages of whoever may get a copy, over a network beside the loop; whether there are any of those."""
    readable, beside = core.readable, core.beside
    now = step.workers if readable is None else tuple(worker for worker in step.workers if readable(worker))
    if core.pages is not None and now:
        core.read(Read(now, step.kind))
    later = tuple(worker for worker in step.workers if worker not in now)
    if beside is None or not later:
        return False
    beside(Read(later, step.kind))
    return True


def tie_late(core: Core, attempt: Attempt) -> Tied | None:
    """Books an attempt at a second worker too, after the read beside it; None where it is well where it is."""
    read = attempt.beside
    if read is None or not core.config.tied or not attempt.call.movable or attempt.outcome is not None:
        return None
    with core.lock:
        nbytes = attempt.call.body.layout.body_bytes + attempt.kind.reply_bytes
        found = sooner(attempt, read.workers, nbytes, core.clock())
        attempt.tied = None if found is None else Tied.at(found, attempt)
        return attempt.tied
