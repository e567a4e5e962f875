"""The peer dies at every step: whoever waits is told at once, with a fate that is true, and the next life serves."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError, Unavailable
from tests.contract.world import GRACE_S, Bytes, Client, wait_until

if TYPE_CHECKING:
    from tests.contract.world import Caller, World


def test_nobody_there(own_world: World) -> None:
    own_world.kill()
    with pytest.raises(Unavailable) as gone:
        own_world.open_channel(timeout_s=1)
    assert gone.value.fate is Fate.NEVER_RAN


def test_killed_before_hello(own_world: World) -> None:
    """It stands still while we connect, and dies before it has read anything."""
    own_world.pause()
    threading.Timer(0.2, own_world.kill).start()
    began_s = time.monotonic()
    with pytest.raises((Unavailable, DeadlineExceeded)) as gone:
        own_world.open_channel(timeout_s=3)
    assert gone.value.fate is Fate.NEVER_RAN
    assert time.monotonic() - began_s < 3 + GRACE_S


def test_killed_after_hello(own_world: World) -> None:
    own_world.arm("die_hello")
    with pytest.raises((Unavailable, DeadlineExceeded)) as gone:
        own_world.open_channel(timeout_s=2)
    assert gone.value.fate is Fate.NEVER_RAN


@pytest.mark.parametrize("size", [100, 300_000])
def test_killed_before_send(own_client: Client, pool: Bytes, size: int) -> None:
    own_client.flips(pool[:size])
    own_client.world.kill()
    with pytest.raises(Unavailable) as gone:
        own_client.call("flip", pool[:size], timeout_s=2)
    assert gone.value.fate in (Fate.NEVER_RAN, Fate.UNKNOWN)
    _is_over(own_client, pool)


@pytest.mark.parametrize("step", ["die_request", "die_reply"])
@pytest.mark.parametrize("size", [100, 300_000])
def test_killed_after_send(own_client: Client, pool: Bytes, step: str, size: int) -> None:
    """At the request, or in the middle of writing the reply."""
    own_client.flips(pool[:size])
    own_client.world.arm(step)
    began_s = time.monotonic()
    with pytest.raises(NodeLost) as gone:
        own_client.call("flip", pool[:size], timeout_s=30)
    assert gone.value.fate is Fate.UNKNOWN
    assert time.monotonic() - began_s < 10, "a signalled death is known long before the deadline"
    _is_over(own_client, pool)


def test_everybody_wakes(own_client: Client, pool: Bytes) -> None:
    running = [own_client.start("later/60000/flip", pool[:1000], timeout_s=30) for _ in range(20)]
    assert wait_until(lambda: own_client.arrived() >= 20)
    began_s = time.monotonic()
    own_client.world.kill()
    for future in running:
        with pytest.raises(NodeLost) as gone:
            future.result(20)
        assert gone.value.fate is Fate.UNKNOWN
    assert time.monotonic() - began_s < 10
    _is_over(own_client, pool)


def test_whoever_watches_is_told_though_nothing_is_out(own_client: Client) -> None:
    """Nothing was ever sent: the death itself must be seen. Whoever comes later is told at once."""
    channel, caller, told = own_client.channel, own_client.caller, threading.Event()
    caller.watch(channel, told.set)
    own_client.world.kill()
    assert told.wait(60.0)
    channel.abort("its peer is dead")
    late = threading.Event()
    caller.watch(channel, late.set)
    assert late.wait(60.0)


def test_abort_wakes_everybody_and_says_why(world: World, caller: Caller, pool: Bytes) -> None:
    with Client(world, caller) as client:
        running = [client.start("run/4000/flip", pool[:1000], timeout_s=30) for _ in range(20)]
        time.sleep(0.2)
        threads = [threading.Thread(target=client.channel.abort, args=("the drill says so",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        for future in running:
            with pytest.raises(NodeLost, match="the drill says so"):
                future.result(5)
        _is_over(client, pool)


def test_abort_wakes_those_who_wait_for_a_node_that_stands_still(own_client: Client, pool: Bytes) -> None:
    """Some of them are not even greeted yet: their connections are new ones."""
    own_client.flips(pool[:1000])
    own_client.world.pause()
    began_s = time.monotonic()
    running = [own_client.start("flip", pool[:1000], timeout_s=60) for _ in range(20)]
    time.sleep(0.3)
    own_client.channel.abort("the drill says so")
    for future in running:
        with pytest.raises(NodeLost):
            future.result(30)
    assert time.monotonic() - began_s < 20
    own_client.world.resume()


def test_the_next_life_serves(own_client: Client, pool: Bytes) -> None:
    """A channel belongs to one life; a new one opens on the same address."""
    old = own_client.channel
    own_client.flips(pool[:100])
    own_client.world.kill()
    own_client.world.restart()
    with pytest.raises(OverspillError):
        own_client.call("flip", pool[:100], timeout_s=1)
    own_client.channel = own_client.world.open_channel()
    assert own_client.channel.peer.node_epoch > old.peer.node_epoch
    own_client.flips(pool[:100])
    old.abort("the test is over")


def _is_over(client: Client, pool: Bytes) -> None:
    assert wait_until(lambda: not client.channel.alive)
    with pytest.raises(NodeLost) as gone:
        client.call("flip", pool[:100], timeout_s=1)
    assert gone.value.fate is Fate.NEVER_RAN
