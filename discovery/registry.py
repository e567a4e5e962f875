"""The contract of a registry, and the URLs that name one.

`dir:PATH` is a folder of leases on one machine and needs no server, `static:ADDR,ADDR` a fixed list, and
`consul:http://HOST:PORT` a Consul agent for nodes on many hosts. A watch tells the present state before it returns
and what changes from a thread of its own; it never blocks a request, and an error or an empty answer never clears
what is known (`discovery/catalogue.py`). Read `discovery/directory.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fabric.errors import ConfigError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import Change, Instance
    from discovery.remark import Remark


class Watch(Protocol):
    """A running watch."""

    def age_s(self) -> float:
        """Seconds since the registry last answered."""

    def trouble(self) -> str:
        """Why what is known may be out of date, as a sentence; nothing where all is well."""

    def close(self) -> None:
        """Ends the watch; no callback runs after it returned. Safe to call twice."""


class Registration(Protocol):
    """A node's own entry, kept alive until it is closed."""

    def update(self, instance: Instance) -> None:
        """Replaces the facts under the same id and epoch. Raises RegistryUnavailable."""

    def close(self) -> None:
        """Takes the entry away. Safe to call twice; an unreachable registry is no error, the entry expires."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A list of earlier, and how many seconds ago it was true. `trouble` says why there is no newer one, and is empty
    where this is the list of now."""

    instances: tuple[Instance, ...]
    age_s: float
    trouble: str = ""


class Registry(Protocol):
    """Where nodes are told of."""

    def read(self) -> tuple[Instance, ...]:
        """All instances now. Raises RegistryUnavailable."""

    def recall(self) -> Recalled | None:
        """The last good list that a watch of this user's left behind; None where there is none."""

    def watch(self, on_changes: Callable[[tuple[Change, ...]], None]) -> Watch:
        """Calls back with the present state (Inserts, maybe none) before it returns; then, from a thread of its own,
        with changes: removals first, and never none. Raises RegistryUnavailable if the first read fails."""

    def register(self, instance: Instance) -> Registration:
        """Enters an instance and keeps its lease alive. Raises RegistryUnavailable."""


def open_registry(url: str) -> Registry:
    """The registry that a URL names. Raises ConfigError for a URL that names none."""
    scheme, _, rest = url.partition(":")
    if scheme == "dir" and rest:
        from discovery.directory import DirectoryRegistry

        return DirectoryRegistry(rest)
    if scheme == "static" and rest:
        from discovery.static import StaticRegistry

        return StaticRegistry(rest)
    if scheme == "consul" and rest:
        from discovery.agent.registry import ConsulRegistry

        return ConsulRegistry(rest)
    raise ConfigError(f"registry {url!r} is unknown; give dir:PATH, consul:http://HOST:PORT or static:HOST:PORT,…")


def read_or_recall(registry: Registry) -> Recalled:
    """The list of now, or the last good one while the registry is away, as a router that starts then has it. Raises
    RegistryUnavailable where there is neither."""
    try:
        return Recalled(registry.read(), 0.0)
    except RegistryUnavailable as error:
        kept = registry.recall()
        if kept is None:
            raise
        return replace(kept, trouble=str(error))


def diagnose(url: str) -> tuple[Remark, ...]:
    """What is wrong between this process and a registry, where more can be said than a failed read tells. Takes some
    seconds at most and writes nothing. Raises ConfigError for a URL that names no registry."""
    scheme, _, rest = url.partition(":")
    if scheme != "consul" or not rest:
        return ()
    from discovery.agent.diagnosis import diagnose as diagnose_consul
    from discovery.agent.url import parse_url

    return tuple(diagnose_consul(parse_url(rest)))
