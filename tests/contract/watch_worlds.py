"""The registries that the watch contract runs over, each set up alike.

A world starts empty or with one instance that it cannot lose, can be broken and mended, and says how soon its news
arrives. `tests/contract/test_watch.py` asks nothing else of it, so that another registry joins with one class here.
"""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING, Protocol

import pytest

from discovery.agent.registry import ConsulRegistry
from discovery.catalogue import Guards
from discovery.directory import DirectoryRegistry, DirectoryTimes
from discovery.static import StaticRegistry
from tests.consul_binary import find
from tests.consul_network import Cut

if TYPE_CHECKING:
    from pathlib import Path

    from discovery.registry import Registry
    from tests.consul_agents import Agent


class WatchWorld(Protocol):
    """One kind of registry, at a place of its own."""

    changes: bool
    """Whether nodes can come and go."""
    news_s: float
    """How long a new instance may take to be told."""

    def registry(self) -> Registry:
        """A handle, as another process would open one."""

    def break_it(self) -> None:
        """Makes the registry unreachable, its memory intact."""

    def mend(self) -> None:
        """Makes it reachable again."""

    def close(self) -> None:
        """Ends it."""


class DirectoryWorld:
    """`dir:` in a folder, with short periods."""

    changes = True
    news_s = 0.1
    times = DirectoryTimes(heartbeat_s=0.2, ttl_s=2.0, full_read_s=0.2, guards=Guards(empty_grace_s=0.5, confirm_s=0.2))

    def __init__(self, place: Path, agent: Agent | None) -> None:
        del agent
        self.path = place / "registry"
        self.away = place / "away"
        self.path.mkdir(mode=0o700)

    def registry(self) -> DirectoryRegistry:
        return DirectoryRegistry(str(self.path), self.times)

    def break_it(self) -> None:
        # A file in the folder's place, so that a heartbeat cannot simply make the folder again.
        self.path.rename(self.away)
        self.path.touch()

    def mend(self) -> None:
        self.path.unlink()
        shutil.copytree(self.away, self.path)
        shutil.rmtree(self.away)

    def close(self) -> None:
        pass


class StaticWorld:
    """`static:`, which never changes and cannot break."""

    changes = False
    news_s = 0.0

    def __init__(self, place: Path, agent: Agent | None) -> None:
        del place, agent

    def registry(self) -> StaticRegistry:
        return StaticRegistry("127.0.0.1:7001,127.0.0.1:7002")

    def break_it(self) -> None:
        raise AssertionError("a fixed list cannot break")

    def mend(self) -> None:
        raise AssertionError("a fixed list cannot break")

    def close(self) -> None:
        pass


class ConsulWorld:
    """`consul:` at an agent that all tests share, under a service name of its own, behind a network that can be cut."""

    changes = True
    news_s = 0.05

    def __init__(self, place: Path, agent: Agent | None) -> None:
        if agent is None:
            pytest.skip(find()[1])
        self.cut = Cut(agent.http)
        self.settings = agent.settings(f"contract-{secrets.token_hex(4)}", port=self.cut.port)

    def registry(self) -> ConsulRegistry:
        return ConsulRegistry(self.settings)

    def break_it(self) -> None:
        self.cut.pull()

    def mend(self) -> None:
        self.cut.mend()

    def close(self) -> None:
        self.cut.close()


WORLDS: dict[str, type[DirectoryWorld | StaticWorld | ConsulWorld]] = {
    "dir": DirectoryWorld,
    "static": StaticWorld,
    "consul": ConsulWorld,
}
