"""A link without IPv4: the global IPv6 address is taken, else the link-local one; two ends of unlike kinds say so.

Only the network of the RDMA cards loses its IPv4 addresses; offers go over the other one, as ever.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import Unavailable
from tests.contract.world import BlockingCaller, Client, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.guests(2)
NET = "fd77:77::"
SIZES = (100, 5_000, 300_000)
GID_S = 10.0


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


@contextmanager
def without_ipv4(*nodes: int, net: str = NET) -> Iterator[None]:
    """These guests' RDMA cards have addresses of IPv6 alone: link-local ones, and one of `net` if that is given."""
    for node in nodes:
        here.run(node, "ip", "addr", "del", f"10.77.0.{node + 1}/24", "dev", "eth0")
        if net:
            here.run(node, "ip", "addr", "add", f"{net}{node + 1}/64", "dev", "eth0", "nodad")
    try:
        yield
    finally:
        for node in nodes:
            if net:
                here.run(node, "ip", "addr", "del", f"{net}{node + 1}/64", "dev", "eth0")
            here.run(node, "ip", "addr", "add", f"10.77.0.{node + 1}/24", "dev", "eth0")


def takes(world: RdmaWorld, start: str) -> None:
    """An address that begins so is chosen; the device's table follows the kernel's by a moment."""
    assert wait_until(lambda: world.engine.choose().address.startswith(start), GID_S), world.engine.choose()


@pytest.mark.parametrize("net", [NET, pytest.param("", marks=pytest.mark.long)], ids=["global", "link-local"])
def test_a_link_with_ipv6_alone(net: str) -> None:
    body = np.random.default_rng(6).integers(0, 256, max(SIZES), np.uint8)
    with without_ipv4(0, 1, net=net):
        world, caller = RdmaWorld(EVENTS_ONLY), BlockingCaller()
        try:
            takes(world, net or "fe80:")
            with Client(world, caller) as client:
                for size in SIZES:
                    client.flips(body[:size])
        finally:
            caller.close()
            world.close()


@pytest.mark.long
@pytest.mark.parametrize("node", [0, 1])
def test_ends_with_unlike_addresses_are_told(node: int) -> None:
    world = RdmaWorld(EVENTS_ONLY)
    try:
        with without_ipv4(node):
            if node == 0:
                takes(world, NET)

            def refused() -> bool:
                with pytest.raises(Unavailable) as told:
                    world.open_channel()
                return "give both the same kind" in str(told.value)

            assert wait_until(refused, GID_S), "the sentence does not name the kinds"
    finally:
        world.close()
