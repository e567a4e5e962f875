"""The simulated network keeps the promises of a channel, and repeats itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.errors import Cancelled, ConfigError, DeadlineExceeded, Fate, NodeLost, QueueFull, StaleEpoch, UnknownModel
from fabric.memory.lease import Lease
from fabric.message import RequestId, Tensor, small_body
from fabric.sim.network import SimOptions
from fabric.sim.node import SimModel, echo
from fabric.sim.pump import SimLoop
from fabric.sim.world import SimWorld
from fabric.transport import Answer, Call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.sim.channel import SimChannel

BAD = SimOptions(loss=0.2, duplicate=0.2, reorder=0.3, late_write_s=0.03)


def request(number: int, nbytes: int = 64, model: str = "echo", reply_bytes: int = 0) -> Call:
    data = np.full(nbytes, number % 251, np.uint8)
    return Call(RequestId(7, number), model, small_body((Tensor.of("x", data),)), reply_bytes=reply_bytes)


def content(answer: Answer) -> bytes:
    memory = answer.memory
    return bytes(memory.view[: answer.layout.body_bytes]) if isinstance(memory, Lease) else memory


def world_of(options: SimOptions | None = None, seed: int = 1, service_s: float = 0.001) -> SimWorld:
    world = SimWorld(options, seed)
    world.add_node("n", {"echo": SimModel(service_s, echo)})
    return world


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with world_of() as one:
        yield one


def connect(world: SimWorld, arena_bytes: int = 0) -> SimChannel:
    return world.connect("n", 7, world.deadline(1.0), arena_bytes=arena_bytes)


def test_answer(world: SimWorld) -> None:
    channel = connect(world)
    assert channel.peer.node_id == "n"
    assert content(channel.call(request(1), world.deadline(1.0))) == request(1).body.memory


def run_all(seed: int) -> tuple[str, ...]:
    with world_of(BAD, seed) as world:
        channel = connect(world, 1 << 22)
        for number in range(1, 20):
            answer = channel.call(request(number, 100_000 if number % 3 == 0 else 64), world.deadline(5.0))
            assert content(answer) == bytes(request(number, 100_000 if number % 3 == 0 else 64).body.view())
        return world.network.journal


def test_same_seed_same_journal() -> None:
    assert run_all(3) == run_all(3)
    assert run_all(3) != run_all(4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_bad_network_neither_loses_nor_repeats(seed: int, count: int) -> None:
    with world_of(BAD, seed) as world:
        channel = connect(world, 1 << 22)
        for number in range(1, count + 1):
            call = request(number, 70_000 if number % 2 else 0)
            assert content(channel.call(call, world.deadline(10.0))) == bytes(call.body.view())
        assert all(runs == 1 for runs in world.nodes["n"].runs.values())
        assert len(world.nodes["n"].runs) == count


def test_deadline_in_queue_and_while_running(world: SimWorld) -> None:
    world.nodes["n"].models["slow"] = SimModel(0.5, echo)
    channel = connect(world)
    with pytest.raises(DeadlineExceeded) as late:
        channel.call(request(1, model="slow"), world.deadline(0.1))
    assert late.value.fate is Fate.UNKNOWN
    with pytest.raises(DeadlineExceeded) as early:
        channel.call(request(2), world.deadline(0.0))
    assert early.value.fate is Fate.NEVER_RAN


def test_a_given_up_slot_waits_for_its_late_writer() -> None:
    with world_of(SimOptions(late_write_s=0.5), seed=5) as world:
        channel = connect(world, 1 << 20)
        with pytest.raises(DeadlineExceeded):
            channel.call(request(1, 200_000, reply_bytes=200_000), world.deadline(0.0022))
        assert channel.arena is not None
        assert channel.arena.lent_bytes() == 1 << 18, "quarantined: the node may still write to it"
        held = channel.arena.lease(1 << 18)
        view = channel.arena.view[held.offset : held.offset + held.nbytes]
        before = bytes(view)
        world.pump.clock.run_until(2.0)
        assert bytes(view) == before
        assert "wrote" in "".join(world.network.journal), "it was late, and it did write"
        assert channel.arena.lent_bytes() == 1 << 18, "the writer has ended, and the slot is free again"


def test_abort_fences_late_writes() -> None:
    with world_of(SimOptions(late_write_s=0.5), seed=5) as world:
        channel = connect(world, 1 << 20)
        with pytest.raises(DeadlineExceeded):
            channel.call(request(1, 200_000, reply_bytes=200_000), world.deadline(0.0022))
        arena = channel.arena
        assert arena is not None
        channel.abort("test")
        assert arena.lent_bytes() == 0
        before = bytes(arena.view[: 1 << 18])
        world.pump.clock.run_until(2.0)
        assert bytes(arena.view[: 1 << 18]) == before
        assert "wrote" not in "".join(world.network.journal)


def test_killed_node(world: SimWorld) -> None:
    channel = connect(world)
    world.pump.clock.call_later(0.0005, world.nodes["n"].kill)
    with pytest.raises(NodeLost, match="end of stream") as lost:
        channel.call(request(1), world.deadline(1.0))
    assert lost.value.fate is Fate.UNKNOWN
    assert world.pump.clock.now < 0.1, "a signalled death is seen at once"
    assert not channel.alive
    with pytest.raises(NodeLost) as never:
        channel.call(request(2), world.deadline(1.0))
    assert never.value.fate is Fate.NEVER_RAN
    epoch = world.nodes["n"].epoch
    world.nodes["n"].start()
    with pytest.raises(StaleEpoch, match="another life"):
        world.connect("n", 7, world.deadline(1.0), expect=("n", epoch))


def test_partition_is_silent_and_heals(world: SimWorld) -> None:
    channel = connect(world)
    world.network.partition("client", "n")
    with pytest.raises(DeadlineExceeded):
        channel.call(request(1), world.deadline(0.2))
    assert channel.alive
    world.network.heal("client", "n")
    assert channel.call(request(2), world.deadline(0.2))


def test_one_id_runs_once_over_two_channels(world: SimWorld) -> None:
    world.nodes["n"].models["slow"] = SimModel(0.3, echo)
    one, two = connect(world), connect(world)
    with pytest.raises(DeadlineExceeded):
        one.call(request(1, model="slow"), world.deadline(0.1))
    # The first asker's CANCEL does not end what a newer one waits for.
    assert content(two.call(request(1, model="slow"), world.deadline(1.0))) == request(1).body.memory
    assert world.nodes["n"].runs[RequestId(7, 1)] == 1


def test_refusals(world: SimWorld) -> None:
    channel = connect(world)
    with pytest.raises(UnknownModel):
        channel.call(request(1, model="nothing"), world.deadline(1.0))
    world.nodes["n"].queue_max = 0
    with pytest.raises(QueueFull):
        channel.call(request(2), world.deadline(1.0))
    channel._flights.node_epoch += 1
    with pytest.raises(StaleEpoch):
        channel.call(request(3), world.deadline(1.0))


def test_damaged_frame_closes_the_channel() -> None:
    with world_of() as world:
        channel = connect(world)
        object.__setattr__(world.network.options, "corrupt", 1.0)
        with pytest.raises(NodeLost):
            channel.call(request(1), world.deadline(1.0))
        assert world.nodes["n"].runs == {}


def test_on_an_asyncio_loop_of_simulated_time(world: SimWorld) -> None:
    channel = connect(world)
    loop = SimLoop(world.pump.clock)

    async def main() -> None:
        answers = await asyncio.gather(
            *(channel.call_async(request(number), world.deadline(10.0)) for number in range(1, 50))
        )
        assert [content(answer) for answer in answers] == [request(n).body.memory for n in range(1, 50)]
        await asyncio.sleep(3600.0)
        world.nodes["n"].models["slow"] = SimModel(5.0, echo)
        task = asyncio.create_task(channel.call_async(request(50, model="slow"), world.deadline(60.0)))
        await asyncio.sleep(1.0)
        queued = asyncio.create_task(channel.call_async(request(51), world.deadline(60.0)))
        await asyncio.sleep(1.0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        await task
        await asyncio.sleep(1.0)
        assert world.nodes["n"].runs[RequestId(7, 51)] == 0, "cancelled while queued"
        assert (await channel.ping(world.deadline(1.0))).executors == 1
        world.nodes["n"].freeze()
        with pytest.raises(DeadlineExceeded):
            await channel.ping(world.deadline(1.0))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_cancelled_before_it_came_never_runs(world: SimWorld) -> None:
    node = world.nodes["n"]
    seen: list[object] = []
    node.cancel(RequestId(7, 1), ("c", 1), seen.append)
    assert isinstance(seen[0], Cancelled)


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"delay_min_s": 1.0}, {"resend_s": 0.0}])
def test_wrong_options(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SimOptions(**wrong)
