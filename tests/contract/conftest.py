"""The worlds and the two ways to call: every test of the suite runs for each pair.

A wire joins the suite with one line in WORLDS. `world` is shared by the tests that leave its node alive, `own_world` is
for those that do not.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.local_world import LocalWorld
from tests.contract.world import CALLERS, Bytes, Client
from tests.contract.world_rpc import RpcWorld
from tests.contract.world_sim import SimContractWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.world import Caller, World

WORLDS: dict[str, Callable[[], World]] = {"local": LocalWorld, "rpc": RpcWorld, "sim": SimContractWorld}
POOL_BYTES = 48 << 20
SEED = 20_260


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """An arena stays mapped as long as anybody holds a part of it, and the traceback of an expected error holds every
    frame that it came through: those circles are broken before the leaks are counted."""
    yield
    gc.collect()


@pytest.fixture(scope="session", params=WORLDS, ids=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A node that serves the whole session."""
    made = WORLDS[request.param]()
    yield made
    made.close()


@pytest.fixture(params=WORLDS, ids=list(WORLDS))
def own_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A node for one test."""
    made = WORLDS[request.param]()
    yield made
    made.close()


@pytest.fixture(params=CALLERS, ids=list(CALLERS))
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Blocking or asynchronous."""
    made = CALLERS[request.param]()
    yield made
    made.close()


@pytest.fixture
def client(world: World, caller: Caller) -> Iterator[Client]:
    """A channel of its own to the shared node."""
    with Client(world, caller) as made:
        yield made


@pytest.fixture
def own_client(own_world: World, caller: Caller) -> Iterator[Client]:
    """A channel to a node of its own."""
    with Client(own_world, caller) as made:
        yield made


@pytest.fixture(scope="session")
def pool() -> Bytes:
    """Seeded bytes; requests take their bodies from it, so that answers can be compared in place."""
    return np.random.default_rng(SEED).integers(0, 256, POOL_BYTES, np.uint8)
