"""The memory on cards that clients of a front door made and registered: which, on which card, and for whom.

Its owner exports it by CUDA's IPC, and the handle goes to an executor of that card the way a resident does: as a memfd
that is lent with the first task that needs it, and to each later generation again. Only the session that registered it
can name it. The node itself opens nothing: whether a handle is good is what an executor says when the memory is
registered. It is let go of when that is undone or the session ends, once no request uses it any more. Read
`workers/card_regions.py` for the executor's end.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from fabric.card_place import CardPlace, place_in
from fabric.errors import DeadlineExceeded, Fate, InvalidArgument, OverspillError, ResourceExhausted, Unavailable
from fabric.resident import refs_of
from workers.device import HANDLE_BYTES
from workers.resident import Kept, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor
    from workers.crew import Crew
    from workers.device import Card
    from workers.job import Job
    from workers.resident import Residents
    from workers.shell import ExecutorShell

    Opened = Callable[[int, OverspillError | None], None]

REGIONS_MAX: Final = 1024
"""Each is a descriptor here, and a mapping of the driver in the executors of its card."""
OPEN_S: Final = 10.0
"""An executor opens a handle between two tasks, in under a millisecond."""
CONTENT: Final = struct.Struct(f"<{HANDLE_BYTES}sQ")
"""What the memfd of a region holds: its handle and its bytes."""


class CardRegion(Kept):  # mutable: opened once, ended once
    """One registered memory of `size` bytes. `desks` are the executors of its card, by number."""

    __slots__ = ("_drop", "answer", "card", "client_id", "desks", "ended", "size")

    def __init__(
        self, number: int, fd: int, size: int, client_id: int, card: Card, desks: frozenset[int],
        drop: Callable[[CardRegion], None],
    ) -> None:  # fmt: skip
        super().__init__(number, CardPlace(number, 0).name, 0, fd)  # it counts for nobody's budget
        self.whole = True
        self._drop = drop
        self.size = size
        self.client_id = client_id
        self.card = card
        self.desks = desks
        self.ended = False
        self.answer: Callable[[str], None] | None = None

    def opened(self, why: str) -> None:
        """An executor has opened it, or says why not. Whoever registers it hears of the first."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(why)

    def end(self) -> None:
        """It is no longer registered; it goes when no request uses it."""
        self.ended = True
        if not self.users:
            self._drop(self)

    def idle(self) -> None:
        """No request uses it now."""
        if self.ended:
            self._drop(self)


class CardMemory:  # mutable: a table
    """All memory on cards that is registered at one life of a node, beside its residents."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._regions: dict[int, CardRegion] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def open(
        self, crew: Crew, reactor: Reactor, client_id: int, handle: bytes, index: int, nbytes: int, then: Opened
    ) -> None:  # fmt: skip
        """Has an executor of card `index` open a handle for a client's session; `then` hears its number, or what is
        wrong. Raises InvalidArgument, ResourceExhausted or Unavailable."""
        if len(handle) != HANDLE_BYTES or nbytes < 1:
            raise InvalidArgument(f"memory on a card needs a handle of {HANDLE_BYTES} bytes, and a size; give both")
        card, shells = _on_card(crew, index)
        shell = next((each for each in shells if each.desk.open), None)
        if shell is None:
            raise Unavailable(f"GPU {index} ({card.uuid}) takes no work now; register its memory again later")
        if len(self._regions) >= REGIONS_MAX:
            raise ResourceExhausted(f"{len(self._regions)} memories on cards are registered already; unregister some")
        try:
            fd = os.memfd_create("overspill-card-memory", os.MFD_CLOEXEC)
        except OSError:
            raise ResourceExhausted("the node has no descriptors left; unregister some memory, try again") from None
        os.write(fd, CONTENT.pack(handle, nbytes))
        desks = frozenset(each.desk.number for each in shells)
        region = CardRegion(self._residents.number(), fd, nbytes, client_id, card, desks, self._drop)
        self._regions[region.number] = region
        late = reactor.call_later(OPEN_S, lambda: region.opened("no answer"))

        def told(why: str) -> None:
            late.cancel()
            if not why:
                then(region.number, None)
                return
            region.end()
            told = f"memory on GPU {index} ({card.uuid}) cannot be used: {why}"
            if why == "no answer":
                then(0, DeadlineExceeded(f"{told} in {OPEN_S:.0f} s; register it again later", Fate.NEVER_RAN))
            else:
                then(0, InvalidArgument(f"{told}; register memory of that card, of a process that lives"))

        region.answer = told
        shell.lending.tell((Use(region, fills=False),), shell.tell)

    def close(self, number: int, client_id: int) -> None:
        """Forgets what a session has registered; what it has not is nothing."""
        region = self._regions.get(number)
        if region is not None and region.client_id == client_id:
            region.end()

    def left(self, client_id: int) -> None:
        """A session is over."""
        for region in [each for each in self._regions.values() if each.client_id == client_id]:
            region.end()

    def bind(self, job: Job, descriptors: bytes) -> None:
        """Has a job that names places on a card run on an executor of that card, by itself. Raises InvalidArgument for
        what its session has not registered, for a place outside of it, and where no executor reaches all of it."""
        desks: frozenset[int] | None = None
        for ref in refs_of(descriptors):
            place = place_in(ref.digest)
            if place is None:
                continue
            region = self._regions.get(place.region)
            if region is None or region.ended or region.client_id != job.client_id:
                raise InvalidArgument("the request names memory on a card that is not registered; register it again")
            if place.offset + ref.nbytes > region.size:
                raise InvalidArgument(
                    f"{ref.nbytes} bytes at {place.offset} do not lie in {region.size} of memory on a card;"
                    " correct offset and byte size"
                )
            if desks is not None and desks != region.desks:
                raise InvalidArgument("the request names memory on two cards; keep all of one request on one card")
            desks = region.desks
            if job.model.leg is not None:
                raise InvalidArgument(
                    f"ensemble {job.model.name!r} is on several executors, so that it takes no memory on a card; send"
                    " its tensors themselves"
                )
            if job.model.holders is not None and not desks & job.model.holders:
                raise InvalidArgument(
                    f"model {job.model.name!r} is on no executor of GPU {region.card.index} ({region.card.uuid}), where"
                    " the request's memory is; use memory on a card that has it"
                )
        job.only = desks
        if desks is not None and job.ticket is not None:
            job.ticket.alone = True

    def claim(self, job: Job, descriptors: bytes) -> tuple[Use, ...]:
        """Holds all that a job which was bound names, residents too, and raises as `Residents.claim` does."""
        uses = self._residents.claim(descriptors)
        if job.only is None:
            return uses
        places = [place for ref in refs_of(descriptors) if (place := place_in(ref.digest)) is not None]
        regions = tuple(Use(self._regions[number], fills=False) for number in {place.region for place in places})
        for use in regions:
            use.kept.users += 1
        return uses + regions

    def close_all(self) -> None:
        """Forgets all."""
        for region in tuple(self._regions.values()):
            self._drop(region)

    def _drop(self, region: CardRegion) -> None:
        if self._regions.pop(region.number, None) is not None:
            os.close(region.fd)
            self._residents.dropped(region.number)


def _on_card(crew: Crew, index: int) -> tuple[Card, list[ExecutorShell]]:
    cards = {shell.seat.card.index: shell.seat.card for shell in crew.shells if shell.seat.card is not None}
    if index not in cards:
        here = ", ".join(f"{number} ({card.uuid})" for number, card in sorted(cards.items())) or "none"
        raise InvalidArgument(f"no executor of this node is on GPU {index}; it has {here}, as nvidia-smi numbers them")
    card = cards[index]
    return card, [shell for shell in crew.shells if shell.seat.card is not None and shell.seat.card.uuid == card.uuid]
