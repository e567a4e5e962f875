"""A call has exactly one outcome, and it is its own: sizes, places, errors, concurrency, order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import Fate, ModelFailed, UnknownModel
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES
from tests.contract.world import Bytes, bytes_of, check_flipped, release, wait_until

if TYPE_CHECKING:
    from tests.contract.world import Caller, Client, World

BORDERS = sorted(
    {0, 1} | {size + step for size in (64, 4096, 64 << 10, 256 << 10, 1 << 20) for step in (-1, 0, 1)} | {32 << 20}
)


@pytest.mark.parametrize("place", ["bytes", "lease", "foreign"])
def test_every_border(client: Client, pool: Bytes, place: str) -> None:
    foreign = Arena.create(64 << 20) if place == "foreign" else None
    for size in BORDERS:
        data = pool[size % 777 :][:size]
        call = client.request("flip", data, place, foreign)
        check_flipped(client.caller.call(client.channel, call, client.world.deadline(20)), data)


def test_a_small_reply_is_bytes_and_a_large_one_a_lease(client: Client, pool: Bytes) -> None:
    small = client.call("flip", pool[: SMALL_BODY_BYTES - 64])
    assert isinstance(small.memory, bytes)
    large = client.call("flip", pool[:SMALL_BODY_BYTES])
    if client.channel.arena is not None:
        assert isinstance(large.memory, Lease)
        assert not large.memory.released
    release(large)


def test_the_reply_owns_its_lease(client: Client, pool: Bytes) -> None:
    """Held replies keep their bytes through a hundred later ones; dropped ones give their slots back."""
    data = pool[: 256 << 10]
    held = [bytes_of(client.call("flip", data[place:])) for place in range(0, 640, 64)]
    for _ in range(100):
        release(client.call("echo", data))
    for number, got in enumerate(held):
        assert np.array_equal(got, np.invert(data[number * 64 :]))
    arena = client.channel.arena
    lent = arena.lent_bytes() if arena is not None else 0
    if arena is not None and lent:  # over rdma replies lie in regions of the channel's
        del got, held
        assert arena.lent_bytes() <= lent - 10 * (256 << 10)


def test_a_reply_larger_than_guessed_costs_no_second_run(client: Client, pool: Bytes) -> None:
    answer = client.call("grow/3000000", pool[:64])
    assert np.all(bytes_of(answer) == 7)
    assert bytes_of(answer).nbytes == 3_000_000
    release(answer)
    answer = client.call("grow/3000000", pool[:64])  # learned
    assert bytes_of(answer).nbytes == 3_000_000
    release(answer)


def test_errors_keep_class_and_fate(client: Client, pool: Bytes) -> None:
    with pytest.raises(ModelFailed, match="on purpose") as failed:
        client.call("fail", pool[:64])
    assert failed.value.fate is Fate.RAN
    with pytest.raises(UnknownModel) as unknown:
        client.call("nobody", pool[:64])
    assert unknown.value.fate is Fate.NEVER_RAN
    client.flips(pool[:64])


def test_answers_tell_the_load(client: Client, pool: Bytes) -> None:
    first = client.call("echo", pool[:64]).load
    second = client.call("echo", pool[:64]).load
    assert second.sequence > first.sequence
    assert second.executors == 1


def test_ping(client: Client) -> None:
    first = client.caller.ping(client.channel, client.world.deadline(5))
    second = client.caller.ping(client.channel, client.world.deadline(5))
    assert second.sequence > first.sequence


def test_many_at_once(client: Client, pool: Bytes) -> None:
    """Eight callers, each with its own sizes and bytes; nobody sees another's."""
    faults: list[BaseException] = []

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        try:
            for _ in range(40):
                size = int(2 ** random.uniform(0, 18))
                start = int(random.integers(0, 1 << 20))
                answer = client.call("flip", pool[start : start + size])
                check_flipped(answer, pool[start : start + size])
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults, faults


def test_answers_in_any_order(client: Client, pool: Bytes) -> None:
    """Requests that end in the opposite order of their sending find their own callers."""
    running = [
        (client.start(f"run/{200 - 8 * number}/flip", pool[number : number + 5000]), number) for number in range(20)
    ]
    for future, number in reversed(running):
        check_flipped(future.result(10), pool[number : number + 5000])


def test_more_callers_than_sockets_wait_their_turn(client: Client, pool: Bytes) -> None:
    running = [client.start("run/20/flip", pool[number : number + 100], 20) for number in range(300)]
    for number, future in enumerate(running):
        check_flipped(future.result(30), pool[number : number + 100])


def test_close_waits_for_the_running(own_world: World, caller: Caller, pool: Bytes) -> None:
    from tests.contract.world import Client

    client = Client(own_world, caller)
    running = client.start("run/500/flip", pool[:1000])
    assert wait_until(lambda: client.arrived() >= 1)
    client.channel.close(client.world.deadline(5))
    check_flipped(running.result(5), pool[:1000])
    assert not client.channel.alive
