"""The registries that the watch contract runs over, each set up alike.

A world starts empty or with one instance that it cannot lose, can be broken and mended, and says how soon its news
arrives. `tests/contract/test_watch.py` asks nothing else of it, so that another registry joins with one class here.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol

from discovery.catalogue import Guards
from discovery.directory import DirectoryRegistry, DirectoryTimes
from discovery.static import StaticRegistry

if TYPE_CHECKING:
    from pathlib import Path

    from discovery.registry import Registry


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


class DirectoryWorld:
    """`dir:` in a folder, with short periods."""

    changes = True
    news_s = 0.1
    times = DirectoryTimes(heartbeat_s=0.2, ttl_s=2.0, full_read_s=0.2, guards=Guards(empty_grace_s=0.5, confirm_s=0.2))

    def __init__(self, place: Path) -> None:
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


class StaticWorld:
    """`static:`, which never changes and cannot break."""

    changes = False
    news_s = 0.0

    def __init__(self, place: Path) -> None:
        del place

    def registry(self) -> StaticRegistry:
        return StaticRegistry("127.0.0.1:7001,127.0.0.1:7002")

    def break_it(self) -> None:
        raise AssertionError("a fixed list cannot break")

    def mend(self) -> None:
        raise AssertionError("a fixed list cannot break")


WORLDS: dict[str, type[DirectoryWorld | StaticWorld]] = {"dir": DirectoryWorld, "static": StaticWorld}
