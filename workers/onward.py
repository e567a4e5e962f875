"""From leg to leg of an ensemble: what an executor has given is held, and handed to whoever runs the next leg.

A request moves on here, it is never copied here: the node passes descriptors on. What a later leg needs was named only
after it was whole, so an executor's death loses the leg that it runs and no more. Which executor runs the next leg is
decided in `workers/admission.py`, which way its tensors go in `workers/reach.py`. Read `workers/parcels.py` next.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from fabric.errors import Cancelled, Fate, ModelFailed, ProtocolError, Unavailable
from workers.blame import leg_ran
from workers.handover import Control, Spent
from workers.legs import BETWEEN_BYTES, loaded_anew
from workers.legwords import LegOrder, Way, decode_contents, encode_contents, encode_order
from workers.parcels import Parcel, ParcelEvent
from workers.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.admission import Admission
    from workers.crew import Crew
    from workers.desks import ModelQueue
    from workers.job import Job

_log = logging.getLogger(__name__)


class Onward:  # mutable: learns which cards reach each other
    """The way from leg to leg on one node. `crew` gives its executors, once they are made."""

    def __init__(self, admission: Admission, crew: Callable[[], Crew]) -> None:
        self._admission = admission
        self._reach: Reach | None = None
        self._crew = crew

    def tell(self, job: Job, number: int) -> None:
        """Tells an executor what the task is that it gets next."""
        crew, leg, whole = self._crew(), job.model.leg, job.model.whole or job.model
        assert leg is not None, "asked only of an ensemble in legs"
        shell = crew.shells[number]
        if job.model is whole:
            job.legs = whole.legs
        for parcel in job.parcels:
            parcel.handle(ParcelEvent.TOLD)
            told = Control("parcel", parcel.source, text=encode_contents(parcel.contents).decode())
            shell.tell(told, parcel.descriptors)
        readers = frozenset[int]()
        for later in _after(job.legs, job.model):
            readers |= later.holders or frozenset()
        way = self._of(crew).way(number, readers, monotonic()) if readers else Way.HOST
        before_us = job.spent.compute_us if job.spent is not None else 0
        order = LegOrder(leg.first, leg.upto, before_us, way, whole.between_bytes or BETWEEN_BYTES)
        shell.tell(Control("leg", text=encode_order(order)))

    def passed(self, job: Job, spent: Spent, text: bytes, holder: tuple[int, int]) -> bool:
        """A leg has run, and `text` says what it has given: the job waits for the next one. False for a job that was
        given up meanwhile. Raises ModelFailed, Unavailable or Cancelled where it cannot go on."""
        parcel = self._received(text, holder)
        if job.told:  # too late: its caller was told that it is lost
            if parcel is not None:
                parcel.handle(ParcelEvent.ENDED)
            return False
        if not job.is_wanted():
            if parcel is not None:
                parcel.handle(ParcelEvent.ENDED)
            raise Cancelled("the caller left before the next step ran", Fate.RAN)
        later = _after(job.legs, job.model)
        whole = job.model.whole or job.model
        if job.model.leg is None or not later or job.legs is not whole.legs:
            if parcel is not None:
                parcel.handle(ParcelEvent.ENDED)
            raise Unavailable(loaded_anew(whole.name), Fate.RAN)
        if parcel is None:
            raise ModelFailed(f"a step of ensemble {whole.name!r} gave what is no memory; look at the node's log")
        desks = self._admission.desks
        leg_ran(job, spent, desks[holder[0]] if len(desks) > 1 else None)
        for before in job.parcels:
            before.handle(ParcelEvent.LEG_RAN)
        job.parcels += (parcel,)
        self._admission.put_back(job, later=later[0])
        return True

    def came_back(self, job: Job) -> None:
        """The executor that was told of a job's leg ended before it began."""
        for parcel in job.parcels:
            parcel.handle(ParcelEvent.CAME_BACK)

    def reach(self, reader: int, source: int, *, good: bool) -> None:
        """An executor could, or could not, read what lies on another one's card."""
        if 0 <= source < len(self._crew().shells):
            self._of(self._crew()).learn(reader, source, monotonic(), good=good)
            if not good:
                _log.warning(
                    "executor %d cannot read the memory of executor %d's card: tensors go by way of the host's memory",
                    reader, source,
                )  # fmt: skip

    def _received(self, text: bytes, holder: tuple[int, int]) -> Parcel | None:
        """What came; None for what no executor of ours would send."""
        shell, generation = self._crew().shells[holder[0]], holder[1]
        life = next((life for life in shell.lives if life.generation == generation), None)
        try:
            contents = decode_contents(text)
            descriptors = life.child.take_parcel(contents.number, contents.descriptors) if life is not None else ()
        except ProtocolError as garbled:
            _log.warning("executor %d %s", holder[0], garbled)
            return None
        parcel = Parcel(holder[0], contents, descriptors, partial(self._returned, holder))
        if len(descriptors) != contents.descriptors:
            parcel.handle(ParcelEvent.ENDED)
            return None
        return parcel

    def _returned(self, holder: tuple[int, int], nbytes: int) -> None:
        shell = self._crew().shells[holder[0]]
        if shell.holder == holder:
            shell.tell(Control("returned", nbytes))

    def _of(self, crew: Crew) -> Reach:
        if self._reach is None:
            cards = (shell.desk.number for shell in crew.shells if shell.seat.card is not None)
            self._reach = Reach(frozenset(cards))
        return self._reach


def _after(legs: tuple[ModelQueue, ...], present: ModelQueue) -> tuple[ModelQueue, ...]:
    """The legs that come after this one."""
    return legs[legs.index(present) + 1 :] if present in legs else legs if present.whole is None else ()
