"""Tells who asks, and lets go of the regions of clients that are gone, so that a killed client leaves nothing behind.

Stock clients never say goodbye: they are killed, or just forget. A region is on lease to the process that registered
it (to its connection, where the process cannot be seen), and ends some seconds after that has ended. Reading `/proc`
blocks, so it is done in a thread. This module never reads a region. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from frontdoor.clients import Owner, client_end, parse_peer, process_of, read_sockets, start_time
from frontdoor.failures import Refusal, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from frontdoor.clients import Address
    from frontdoor.regions import Regions

_log = logging.getLogger(__name__)
SWEEP_S = 1.0
KNOWN_MAX = 4096
"""Connections that are remembered; beyond it all are looked up again."""


class Leases:  # mutable: remembers clients, and since when they are gone
    """The clients of one front door. `ports` are those it listens on; `lease_s` is how long regions outlive their
    client, 0 for ever. `anywhere` takes clients of other hosts at their word: the operator's."""

    def __init__(self, regions: Regions, clock: Callable[[], float], lease_s: float, *, anywhere: bool = False) -> None:
        self._regions = regions
        self._clock = clock
        self._lease_s = lease_s
        self._anywhere = anywhere
        self._known: dict[tuple[Address, int], Owner] = {}
        self._gone_since: dict[Owner, float] = {}
        self.expired = 0
        """Regions that were let go of because their client was gone."""

    async def owner(self, peer: str, port: int) -> Owner:
        """The client at `peer` of a connection to `port`. Raises Refusal for one of another host."""
        address = parse_peer(peer)
        known = self._known.get((address, port))
        if known is not None:
            return known
        owner = await asyncio.to_thread(_look_up, address, port)
        if owner is None:
            if not self._anywhere:
                told = "shared memory needs a client on the node's own host and network; send the tensors raw"
                raise Refusal(Status.INVALID_ARGUMENT, told)
            return Owner("anywhere", None, None, address)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[address, port] = owner
        return owner

    async def sweep_for_ever(self) -> None:
        """Looks every second; ends by cancelling."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._known or len(self._regions):
                await self.sweep()

    async def sweep(self) -> None:
        """Forgets connections that have ended, and the regions of clients that are gone for longer than the lease."""
        owners = self._regions.owners()
        standing, alive = await asyncio.to_thread(_look_around, owners)
        # A port number is given to others again: an old connection must not speak for a new one.
        self._known = {key: owner for key, owner in self._known.items() if (key[0], key[1]) in standing}
        now = self._clock()
        gone = [owner for owner in owners if owner not in alive]
        self._gone_since = {owner: self._gone_since.get(owner, now) for owner in gone}
        for owner, since_s in tuple(self._gone_since.items()):
            if self._lease_s and now - since_s >= self._lease_s:
                count = self._regions.reap(owner)
                self.expired += count
                del self._gone_since[owner]
                _log.info("let go of %d regions of a client that is gone", count)


def _look_up(address: Address, port: int) -> Owner | None:
    end = client_end(read_sockets(), address, port)
    if end is None:
        return None
    return Owner(f"uid {end.uid}", end.uid, process_of(end.inode), address)


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
