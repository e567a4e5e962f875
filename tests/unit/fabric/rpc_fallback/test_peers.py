"""A caller's session at the port: a reply without room beside others waits for it; one that fits nowhere is told so."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fabric.deadline import Deadline
from fabric.errors import ArenaFull, Fate
from fabric.frame import Load, RequestFrame, decode_final
from fabric.layout import layout_of
from fabric.memory.arena import Arena
from fabric.rpc_fallback.peers import Peer
from fabric.transport import Answer, PeerFacts, WireName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.transport import Call

ARENA_BYTES = 1 << 20
EMPTY = layout_of(())
ANSWER = Answer(EMPTY, b"", 1, 0, 0, Load(0, 0, 0, 1), WireName.LOCAL)


class Node:  # mutable: `refusals` go down
    """A channel whose arena is full for so many calls."""

    alive = True
    peer = PeerFacts("n", 1, 1)

    def __init__(self, refusals: int, needed_bytes: int, fate: Fate) -> None:
        self.arena = Arena.create(ARENA_BYTES)
        self.refusals, self._error = refusals, (needed_bytes, fate)
        self.calls = 0

    def call(self, _call: Call, _deadline: Deadline) -> Answer:
        self.calls += 1
        if self.refusals:
            self.refusals -= 1
            needed_bytes, fate = self._error
            raise ArenaFull("no room here", fate, needed_bytes)
        return ANSWER

    def end(self) -> None:
        self.arena.retire()
        self.arena.close_fd()


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def ask(node: Node, budget_s: float) -> Any:
    channel: Any = node
    peer = Peer(7, ARENA_BYTES, channel, lambda *_: channel)
    request = RequestFrame(7, 1, 1, 10**7, 0, 0, 0, 0, 0, 0, 0, "echo", EMPTY.encoded)
    outcome = peer.ask(request, EMPTY, b"", Deadline.after(budget_s, time.monotonic()))
    node.end()
    assert outcome is not None
    return getattr(decode_final(outcome.frame), "error", SimpleNamespace(fate=None))


@pytest.mark.parametrize("fate", [Fate.NEVER_RAN, Fate.RAN])
def test_it_waits_for_room_that_others_hold(fate: Fate) -> None:
    node = Node(3, ARENA_BYTES // 2, fate)
    assert ask(node, 60.0).fate is None
    assert node.calls == 4


@pytest.mark.parametrize(
    ("needed_bytes", "budget_s", "fate"),
    [(ARENA_BYTES, 60.0, Fate.NEVER_RAN), (ARENA_BYTES, 60.0, Fate.RAN), (4096, 0.05, Fate.NEVER_RAN)],
)
def test_where_there_is_none_its_fate_is_told(needed_bytes: int, budget_s: float, fate: Fate) -> None:
    assert ask(Node(1 << 30, needed_bytes, fate), budget_s).fate is fate
