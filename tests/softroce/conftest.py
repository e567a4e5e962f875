"""The soft-RoCE stage: tests with the mark `guests(N)` run inside guests, the others of this folder run here.

Inside a guest the marks mean nothing: there each test runs where it is. Read `tests/softroce/lab/remote.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.softroce.lab import here
from tests.softroce.lab.remote import LIMIT, Remote, limit_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMOTE = pytest.StashKey[Remote]()


@pytest.hookimpl
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Brings the tests of one lab together, and takes their time limits over: a lab may have to be built first."""
    if here.inside():
        return
    items.sort(key=shape_of)
    remote = [item for item in items if shape_of(item)]
    for item in remote:
        item.stash[LIMIT] = limit_of(item)
        item.add_marker(pytest.mark.timeout(0), append=False)
    config.stash[_REMOTE] = Remote(remote)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Sends a test into its guest."""
    if here.inside() or not shape_of(item):
        return None
    return item.config.stash[_REMOTE].run(item, nextitem) or None


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Ends the lab when a run was interrupted."""
    if (remote := session.config.stash.get(_REMOTE, None)) is not None:
        remote.close()
    return (yield)
