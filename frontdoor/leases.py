"""Tells who asks, and lets go of the regions of clients that are gone, so that a killed client leaves nothing behind.

Stock clients never say goodbye: they are killed, or just forget. A region is on lease to the process that registered
it (to its connection, where the process cannot be seen), and ends some seconds after that has ended. Reading `/proc`
blocks, so it is done in a thread. This module never reads a region. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontdoor.clients import Owner, client_end, holder_of, parse_peer, read_sockets, start_time, still_holds
from frontdoor.failures import Refusal, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from frontdoor.clients import Address
    from frontdoor.regions import Regions

_log = logging.getLogger(__name__)
SWEEP_S = 1.0
KNOWN_MAX = 4096
"""Connections that are remembered; beyond it all are looked up again."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A client that was looked up, and how to see that its connection is still the same one: ports are used again."""

    owner: Owner
    link: Path
    inode: int


class Leases:  # mutable: remembers clients, and since when they are gone
    """The clients of one front door. `ports` are those it listens on; `lease_s` is how long regions outlive their
    client, 0 for ever. `anywhere` takes clients of other hosts at their word: the operator's."""

    def __init__(self, regions: Regions, clock: Callable[[], float], lease_s: float, *, anywhere: bool = False) -> None:
        self._regions = regions
        self._clock = clock
        self._lease_s = lease_s
        self._anywhere = anywhere
        self._known: dict[tuple[Address, int], _Known] = {}
        self._gone_since: dict[Owner, float] = {}
        self.expired = 0
        """Regions that were let go of because their client was gone."""

    async def owner(self, peer: str, port: int) -> Owner:
        """The client at `peer` of a connection to `port`. Raises Refusal for one of another host."""
        address = parse_peer(peer)
        known = self._known.get((address, port))
        if known is not None and still_holds(known.link, known.inode):
            return known.owner
        try:
            owner, found = await asyncio.to_thread(_look_up, address, port)
        except OSError as error:
            told = f"the system does not say whose connection this is ({error.strerror}); try again later"
            raise Refusal(Status.RESOURCE_EXHAUSTED, told) from None
        if owner is None:
            if not self._anywhere:
                told = "shared memory needs a client on the node's own host and network; send the tensors raw"
                raise Refusal(Status.INVALID_ARGUMENT, told)
            return Owner("anywhere", None, None, address)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        if found is not None:
            self._known[address, port] = found
        return owner

    async def sweep_for_ever(self) -> None:
        """Looks every second; ends by cancelling."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._known or len(self._regions):
                try:
                    await self.sweep()
                except (OSError, RuntimeError) as error:
                    # Out of descriptors or threads: who lives cannot be seen, so nobody is taken for dead.
                    _log.warning("cannot look for clients that are gone (%s); it is tried again", error)

    async def sweep(self) -> None:
        """Forgets connections that have ended, and the regions of clients that are gone for longer than the lease."""
        owners = self._regions.owners()
        standing, alive = await asyncio.to_thread(_look_around, owners)
        # A port number is given to others again: an old connection must not speak for a new one.
        self._known = {key: known for key, known in self._known.items() if key in standing}
        now = self._clock()
        gone = [owner for owner in owners if owner not in alive]
        self._gone_since = {owner: self._gone_since.get(owner, now) for owner in gone}
        for owner, since_s in tuple(self._gone_since.items()):
            if self._lease_s and now - since_s >= self._lease_s:
                count = self._regions.reap(owner)
                self.expired += count
                del self._gone_since[owner]
                _log.info("let go of %d regions of a client that is gone", count)


def _look_up(address: Address, port: int) -> tuple[Owner | None, _Known | None]:
    """The client, and what to remember of it: nothing where its process cannot be seen."""
    end = client_end(read_sockets(), address, port)
    if end is None:
        return None, None
    held = holder_of(end.inode)
    owner = Owner(f"uid {end.uid}", end.uid, held[0] if held is not None else None, address)
    return owner, _Known(owner, held[1], end.inode) if held is not None else None


def _look_around(owners: frozenset[Owner]) -> tuple[frozenset[tuple[Address, int]], frozenset[Owner]]:
    """The connections that stand, as (client, server's port), and the owners that are alive."""
    sockets = read_sockets()
    standing = frozenset((each.local, each.remote[1]) for each in sockets)
    connected = frozenset(each.local for each in sockets) | frozenset(each.remote for each in sockets)
    alive = frozenset(
        owner
        for owner in owners
        if (
            start_time(owner.process[0]) == owner.process[1]
            if owner.process is not None
            else owner.connection in connected
        )
    )
    return standing, alive
