"""The soft-RoCE stage: tests with the mark `guests(N, KIND)` run inside guests, the others of this folder run here.

Inside a guest the marks mean nothing: there each test runs where it is. Read `tests/softroce/lab/remote.py` next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.softroce.lab import here
from tests.softroce.lab.remote import LIMIT, Remote, limit_of, stage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = (
    r"test_(every_border|many_at_once|answers_in|errors_keep|a_reply_larger).*\[events-blocking(-lease)?\]",
    r"test_(every_border|many_at_once).*\[spin-async(-bytes)?\]",
    r"test_(a_few_hundred|many_at_once|close_waits|answers_tell).*\[events2-async",
    r"test_(too_little|the_same_id|a_node_that).*\[events2-async(-300000(-run/3000/flip)?)?\]",
    r"test_(everybody_wakes|the_next_life|abort_wakes|killed_after_send).*\[events2-async(-300000.*)?\]",
    r"test_(a_cancelled_request|cancelled_in_a_crowd).*\[events2",
    r"test_a_spoiled_answer.*\[events2-async-300000-(outside|bit|magic|foreign_id|length)",
    r"test_others_on.*\[events2-async",
    r"test_ping\[rpc-async",
)
"""What `make test` has time for: what two guests send each other, peers that die or stand still, each size in both
modes."""


SHORT_S = 150.0
"""What one test of the short form may take at most: none takes more than ten on a quiet machine."""


def in_short_form(name: str) -> bool:
    """Whether a test of the contract suite runs in `make test`."""
    return any(re.match(pattern, name) for pattern in SHORT)


_REMOTE = pytest.StashKey[Remote]()


@pytest.hookimpl
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Brings the tests of one lab together, and takes their time limits over: a lab may have to be built first."""
    if here.inside():
        return
    for item in items:
        if item.path.name == "test_contract.py" and not in_short_form(item.name):
            item.add_marker(pytest.mark.long)
    items.sort(key=stage_of)
    remote = [item for item in items if stage_of(item).nodes]
    for item in remote:
        limit_s = limit_of(item)
        item.stash[LIMIT] = limit_s if item.get_closest_marker("long") else min(limit_s, SHORT_S)
        item.add_marker(pytest.mark.timeout(0), append=False)
    config.stash[_REMOTE] = Remote(remote)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Sends a test into its guest."""
    if here.inside() or not stage_of(item).nodes:
        return None
    return item.config.stash[_REMOTE].run(item, nextitem) or None


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Ends the lab when a run was interrupted."""
    if (remote := session.config.stash.get(_REMOTE, None)) is not None:
        remote.close()
    return (yield)
