"""Every call ends by its deadline, says what became of the request, and leaves the channel fit for the next one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fabric.errors import DeadlineExceeded, Fate, OverspillError
from tests.contract.world import GRACE_S, Bytes, release, wait_until

if TYPE_CHECKING:
    from tests.contract.world import Client

SIZES = (100, 300_000)


@pytest.mark.parametrize("size", SIZES)
def test_no_time_at_all(client: Client, pool: Bytes, size: int) -> None:
    with pytest.raises(DeadlineExceeded) as late:
        client.call("flip", pool[:size], timeout_s=0)
    assert late.value.fate is Fate.NEVER_RAN
    client.flips(pool[:size])


@pytest.mark.parametrize("model", ["later/3000/flip", "run/3000/flip"])
@pytest.mark.parametrize("size", SIZES)
def test_too_little_time(client: Client, pool: Bytes, model: str, size: int) -> None:
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded) as late:
        client.call(model, pool[:size], timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began_s < 0.3 + GRACE_S
    assert late.value.fate is Fate.UNKNOWN
    client.flips(pool[7 : 7 + size])


@pytest.mark.parametrize("size", SIZES)
def test_the_same_id_again_after_its_time_was_over(client: Client, pool: Bytes, size: int) -> None:
    """A caller may ask again with the same id; whatever the node makes of it, the outcome is one and typed."""
    call = client.request("run/200/flip", pool[:size])
    with pytest.raises(DeadlineExceeded):
        client.caller.call(client.channel, call, client.world.deadline(0.05))
    with suppress(OverspillError):
        release(client.caller.call(client.channel, call, client.world.deadline(5)))
    client.flips(pool[: size + 1])


def test_a_node_that_stands_still(own_client: Client, pool: Bytes) -> None:
    """Nothing waits past its deadline, new sockets included, and when the node goes on so does the channel."""
    own_client.flips(pool[:1000])
    own_client.world.pause()
    began_s = time.monotonic()
    running = [own_client.start("flip", pool[:100_000], timeout_s=0.3) for _ in range(20)]
    for future in running:
        with pytest.raises(DeadlineExceeded):
            future.result(5)
    assert time.monotonic() - began_s < 0.3 + 2 * GRACE_S
    with pytest.raises(OverspillError):
        own_client.caller.ping(own_client.channel, own_client.world.deadline(0.1))
    own_client.world.resume()
    assert wait_until(lambda: _answers(own_client, pool))
    own_client.flips(pool[:100_000])


def _answers(client: Client, pool: Bytes) -> bool:
    try:
        client.flips(pool[:100], timeout_s=2.0)
    except OverspillError:
        return False
    return True
