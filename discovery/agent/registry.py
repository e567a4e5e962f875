"""The registry `consul:http://HOST:PORT`: nodes enter themselves at an agent, callers watch through one.

Every watch and every entry has a client of its own. A read outside of a watch asks the leader, and an agent's memory
where no leader is. This module never keeps what it read. Read `discovery/agent/diagnosis.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.last_good import fabric_of, load, usual_place
from discovery.agent.listing import ListingReader
from discovery.agent.registration import ConsulRegistration
from discovery.agent.url import ConsulSettings, parse_url
from discovery.agent.watch import ConsulWatch, hidden, read_listing
from discovery.consul import ConsulClient
from discovery.registry import Recalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.agent.listing import Listing
    from discovery.instance import Change, Instance


class ConsulRegistry:
    """Entries of one service in Consul. `url` is what follows `consul:`. Safe to use from several threads.

    Raises ConfigError for a URL that cannot work, and MissingDependency where py-consul is not installed.
    """

    def __init__(self, url: str | ConsulSettings) -> None:
        self.settings = parse_url(url) if isinstance(url, str) else url
        ConsulClient(self.settings).close()  # what is set up wrong is told now, not by a thread later

    def read(self) -> tuple[Instance, ...]:
        """All instances now. Raises RegistryUnavailable."""
        client = ConsulClient(self.settings)
        try:
            listing = list_service(client, self.settings)
            if not listing.instances and not listing.critical and hidden(client, self.settings):
                raise ConsulError(Fault.FILTERED, self.settings.place)
        finally:
            client.close()
        newest: dict[str, Instance] = {}
        for one in listing.instances:
            other = newest.get(one.node_id)
            if other is None or other.node_epoch <= one.node_epoch:
                newest[one.node_id] = one
        return tuple(newest.values())

    def recall(self) -> Recalled | None:
        """The last good list of a watch on this machine; None where there is none."""
        file = usual_place(self.settings)
        kept = load(file, fabric_of(self.settings)) if file is not None else None
        return Recalled(kept.instances, kept.age_s) if kept is not None and kept.instances else None

    def watch(self, on_changes: Callable[[tuple[Change, ...]], None]) -> ConsulWatch:
        """Calls back with the present state, then from a thread with changes. Raises RegistryUnavailable."""
        return ConsulWatch(self.settings, on_changes)

    def register(self, instance: Instance) -> ConsulRegistration:
        """Enters `instance` and keeps it alive. Raises RegistryUnavailable, or InvalidArgument for too many facts."""
        return ConsulRegistration(self.settings, instance)

    def __repr__(self) -> str:
        return f"<ConsulRegistry {self.settings.service} at {self.settings.place}>"


def list_service(client: ConsulClient, settings: ConsulSettings) -> Listing:
    """The service's entries: of the leader, else of the agent's memory. Raises ConsulError."""
    path = f"/v1/health/service/{settings.service}"
    dc = (("dc", settings.dc),) if settings.dc else ()
    try:
        answer = client.get(path, dc)
    except ConsulError as error:
        if error.fault not in {Fault.NO_LEADER, Fault.BROKEN, Fault.TIMEOUT}:
            raise
        answer = client.get(path, (("cached", ""), *dc))
    return read_listing(ListingReader(), answer, settings)
