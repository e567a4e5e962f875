"""Whatever bytes a peer sends, they end a channel or a request with a typed error, and never a process."""

from __future__ import annotations

import pytest

from fabric.errors import NodeLost, ProtocolError, ResourceExhausted
from tests.contract.conftest import WORLDS
from tests.contract.world import Bytes, Caller, Client, World, wait_until

FAULTS = sorted({fault for made in WORLDS.values() for fault in made.faults})  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_spoiled_answer_ends_the_channel_only(
    world: World, caller: Caller, pool: Bytes, fault: str, size: int
) -> None:
    if fault not in world.faults:
        pytest.skip(f"the wire {world.name} cannot be made to show {fault}")
    with Client(world, caller) as other, Client(world, caller) as client:
        client.flips(pool[:size])
        world.arm(fault)
        try:
            client.flips(pool[:size])
        except ProtocolError:
            pass
        else:
            # Whoever loses a lane between the answer and its end asks again, and the node sends the kept answer, sound
            # now: the bytes were checked, and nothing ran twice. On no other wire does anybody ask again.
            assert world.name == "rpc"
            return
        assert wait_until(lambda: not client.channel.alive)
        with pytest.raises(NodeLost):
            client.call("flip", pool[:size], timeout_s=5)
        other.flips(pool[:size])
    with Client(world, caller) as again:
        again.flips(pool[:size])
    assert world.serves()


def test_others_on_the_channel_are_told(world: World, caller: Caller, pool: Bytes) -> None:
    with Client(world, caller) as client:
        running = [client.start("run/3000/flip", pool[:100], timeout_s=20) for _ in range(10)]
        client.flips(pool[:100])
        world.arm("noise" if "noise" in world.faults else world.faults[0])
        running.append(client.start("flip", pool[:100], timeout_s=5))
        outcomes = [future.exception(20) for future in running]
    # Which of them met the garbage is the wire's affair; nobody is left waiting, and nobody gets an answer.
    # One that began later finds that the arena of a dead channel lends nothing any more.
    assert {type(outcome) for outcome in outcomes} <= {NodeLost, ProtocolError, ResourceExhausted}, outcomes


def test_a_frame_over_the_limit_is_refused_at_home(client: Client, pool: Bytes) -> None:
    from fabric.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="shorten"):
        client.call("m" * 70_000, pool[:64])
    client.flips(pool[:64])
