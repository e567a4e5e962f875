"""The contract suite of all wires, on the rdma wire: in one guest by events and polled, between two guests, on another
release of Debian, and under a user-mode kernel.

The tests are those of `tests/contract/`; here they only get other worlds. The rpc wire runs beside it in one guest, so
that a failure of the guest or of the suite is told from one of the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.conftest import SEED, caller, client, own_client, pool
from tests.contract.test_bytes import REQUESTS, run_sizes, sizes_for
from tests.contract.test_calls import *  # noqa: F403
from tests.contract.test_cancel import *  # noqa: F403
from tests.contract.test_deadlines import *  # noqa: F403
from tests.contract.test_death import *  # noqa: F403
from tests.contract.test_garbage import *  # noqa: F403
from tests.softroce.worlds import EVENTS_ONLY, SPINNING, RdmaWorld, RpcWorld, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.world import Bytes, Client, World

__all__ = ["caller", "client", "own_client", "pool"]

MADE: dict[str, Callable[[], World]] = {
    "events": lambda: RdmaWorld(EVENTS_ONLY),
    "events2": lambda: RdmaWorld(EVENTS_ONLY),
    "spin": lambda: RdmaWorld(SPINNING),
    "rpc": RpcWorld,
    "debian13": lambda: RdmaWorld(EVENTS_ONLY),
    "native2": lambda: RdmaWorld(EVENTS_ONLY),
}
WORLDS = [
    pytest.param("events", marks=pytest.mark.guests(1)),
    pytest.param("spin", marks=pytest.mark.guests(1)),
    pytest.param("events2", marks=pytest.mark.guests(2)),
    pytest.param("rpc", marks=pytest.mark.guests(1)),
    pytest.param("debian13", marks=pytest.mark.guests(1, "trixie")),
    pytest.param("native2", marks=pytest.mark.guests(2, "native")),
]


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """Leaks are counted when closed channels have come to their end."""
    yield
    settle()


@pytest.fixture(scope="session", params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A node that serves the whole session."""
    made = MADE[request.param]()
    yield made
    made.close()


@pytest.fixture(params=WORLDS)
def own_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A node for one test."""
    made = MADE[request.param]()
    yield made
    made.close()


def test_a_few_hundred_requests_and_each_byte(client: Client, pool: Bytes) -> None:
    """What `make test` has time for, borders included."""
    run_sizes(client, pool, sizes_for(64 << 20, 300, SEED), SEED)


@pytest.mark.timeout(1500)
def test_each_byte(client: Client, pool: Bytes) -> None:
    """Ten thousand, within the bytes that emulation carries in minutes."""
    run_sizes(client, pool, sizes_for(256 << 20, REQUESTS, SEED), SEED)


@pytest.mark.timeout(600)
def test_a_body_of_64_mib(client: Client, pool: Bytes) -> None:
    """Larger than what a connection starts with: its regions grow meanwhile."""
    data = np.concatenate([pool, pool[: 16 << 20]])
    client.flips(data, timeout_s=120.0)
