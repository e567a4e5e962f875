"""Ten minutes without Consul for a router under load: nodes die and links break meanwhile, and no request fails.

What a list must still do while nobody can refresh it: a lost link is opened again from the last known list, a dead node
is left out by its link alone, and the empty list of an agent that comes back without data removes nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from router.workers import State
from tests.sim.registry_world import Node, World
from tests.sim.virtual import VirtualLoop
from tests.unit.router.fleet import instance

if TYPE_CHECKING:
    from collections.abc import Coroutine

OUTAGE_S = 600.0
PER_S = 5.0
NAMES = ("n0", "n1", "n2", "n3")


def run(main: Coroutine[object, object, None], loop: VirtualLoop) -> None:
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


async def phase(world: World, seconds: float) -> dict[str, int]:
    """Load for so long; how many requests each node answered in it."""
    before = world.served.copy()
    await world.load(seconds, PER_S)
    return dict(world.served - before)


async def outage(world: World, how: str) -> None:
    await asyncio.sleep(0.1)
    assert set(await phase(world, 10.0)) == set(NAMES)
    watch = world.registry.opened
    assert watch is not None

    world.agent.become(how)
    went_s = world.loop.time()
    assert set(await phase(world, 190.0)) == set(NAMES)
    assert world.links.registry_trouble()

    world.nodes["n1"].doomed = True  # it dies in the middle of the next call that it gets
    await phase(world, 10.0)
    assert not world.nodes["n1"].alive
    assert world.retried >= 1, "who was on its link was sent again"
    assert set(await phase(world, 190.0)) == {"n0", "n2", "n3"}

    for node in world.nodes.values():  # a switch starts anew: all links are lost at one instant
        node.cut()
    await phase(world, 10.0)
    assert set(await phase(world, 190.0)) == {"n0", "n2", "n3"}, "all were dialled again from the last known list"
    world.nodes["n4"] = Node("n4")  # nobody can tell of it yet

    await asyncio.sleep(max(0.0, went_s + OUTAGE_S - world.loop.time()))
    assert watch.age_s() > OUTAGE_S - 1.0, "the age counts from before the outage"
    assert len(watch.catalogue.instances) == len(NAMES)


async def recovery(world: World) -> None:
    world.agent.restart_empty()
    loading = asyncio.ensure_future(phase(world, 20.0))
    for name in ("n0", "n2", "n3", "n4"):  # spread over one heartbeat, as their beats are
        await asyncio.sleep(0.7)
        world.agent.enter(instance(name))
    await loading
    assert set(await phase(world, 20.0)) == {"n0", "n2", "n3", "n4"}
    assert not world.links.registry_trouble()
    assert world.links.registry_age_s() < 61.0
    states = {worker.name: worker.state for worker in world.core.table.workers}
    assert states == dict.fromkeys(("n0", "n2", "n3", "n4"), State.READY), "who died is forgotten"


@pytest.mark.parametrize("how", ["gone", "memory"])
def test_ten_minutes_without_consul_cost_no_request(how: str) -> None:
    """`gone`: the agent too; `memory`: its servers only, and it answers from memory."""
    loop = VirtualLoop()

    async def main() -> None:
        world = World(loop, *NAMES)
        await outage(world, how)
        await recovery(world)
        await world.close()
        assert world.failed == []
        assert world.served.total() >= OUTAGE_S * PER_S
        assert world.core.statistics().panics == 0, "nobody was taken as a last resort"

    run(main(), loop)
