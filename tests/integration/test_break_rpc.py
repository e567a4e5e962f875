"""Replies that were sent over gRPC and may have been lost on the way: their ids come again, and their bytes are whole.

The node answers a finished id from the slot that its reply was written to, so the port must not use that slot for
anything else until the caller acknowledges the id, or must refuse the id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import Fate, ResourceExhausted
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.rpc_fallback.peers import GONE_S, Peers
from tests.integration.rpc_calls import channel_to, collected, got, node, port, request, soon, wanted

if TYPE_CHECKING:
    from tests.integration.rpc_node import EchoNode

__all__ = ["collected", "node", "port"]
NO_LANES = RpcConfig(lanes_max=0)


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_a_large_reply_is_kept_until_it_is_acknowledged(node: EchoNode, port: int, size: int) -> None:
    with channel_to(port, NO_LANES) as channel:
        call = request(1, size)
        for _ in range(2):
            assert got(channel.call(call, soon())) == wanted(call)
        assert node.runs[call.id] == 1
        (to_node,) = node.open
        assert to_node.arena is not None
        assert to_node.arena.lent_bytes() >= size
        got(channel.call(request(2, 64, ack_no=2), soon()))
        assert to_node.arena.lent_bytes() == 0


def test_a_reply_that_was_given_up_is_refused(node: EchoNode, port: int) -> None:
    with channel_to(port, NO_LANES) as channel:
        call = request(1, 100_000)
        for number in range(1, 70):
            got(channel.call(request(number, 100_000), soon()))
        with pytest.raises(ResourceExhausted) as refused:
            channel.call(call, soon())
        assert refused.value.fate is Fate.RAN
        assert node.runs[call.id] == 1
        got(channel.call(request(70, 64, ack_no=70), soon()))
        got(channel.call(request(71, 100_000, ack_no=71), soon()))


def test_the_memory_of_a_caller_that_died_goes_back_soon(node: EchoNode) -> None:
    peers = Peers(RpcServerConfig(), node.open_channel)
    dead, alive = peers.admit(1, 1 << 20), peers.admit(2, 1 << 20)
    alive.heard_s += 10.0  # it pings, though it asks nothing
    peers.sweep(dead.heard_s + GONE_S - 1.0)
    assert len(peers) == 2
    peers.sweep(dead.heard_s + GONE_S + 1.0)
    assert peers.find(alive.session) is alive
    assert peers.find(dead.session) is None
    assert len(node.open) == 1
    peers.close(soon(1.0))
