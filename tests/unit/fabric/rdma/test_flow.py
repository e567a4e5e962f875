"""Credits and the states of a connection: nothing is posted without room at the other end, or after the end."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from fabric.errors import IllegalTransition, ProtocolError
from fabric.rdma.credits import RESERVED, Credits
from fabric.rdma.lifecycle import TABLE, LinkDo, LinkEvent, LinkState, step


def test_the_last_credits_are_for_messages_that_give_credit() -> None:
    ledger = Credits(8)
    while ledger.may_send():
        ledger.sent()
    assert ledger.out == 8 - RESERVED
    while ledger.may_send(control=True):
        ledger.sent()
    assert ledger.out == 8


def test_credit_is_told_once_and_due_at_half() -> None:
    ledger = Credits(8)
    for _ in range(3):
        ledger.arrived()
    assert not ledger.due
    ledger.arrived()
    assert (ledger.due, ledger.tell(), ledger.owed) == (True, 4, 0)


def test_more_credit_than_sends_is_garbage() -> None:
    ledger = Credits(8)
    ledger.sent()
    with pytest.raises(ProtocolError):
        ledger.returned(2)
    with pytest.raises(ProtocolError):
        ledger.returned(-1 % (1 << 32))


def test_a_total_that_was_overtaken_says_nothing_new() -> None:
    """Heads of both pairs tell of both: an older one may come in later, by way of the other pair."""
    ledger = Credits(8)
    for _ in range(5):
        ledger.sent()
    ledger.returned(4)
    ledger.returned(1)
    assert ledger.out == 1
    ledger.returned(5)
    assert ledger.out == 0


def test_credit_survives_the_wrap_of_its_total() -> None:
    ledger = Credits(8)
    ledger._sent = ledger._returned = (1 << 32) - 2
    for _ in range(4):
        ledger.sent()
    ledger.returned(2)
    assert ledger.out == 0


@pytest.mark.parametrize("seed", range(5))
def test_two_ends_that_talk_at_random_never_overrun_and_never_stall(seed: int) -> None:
    """Each end posts `depth` receives; a message that came is one receive less until it is posted again."""
    random, depth = Random(seed), 8
    ends = [Credits(depth), Credits(depth)]
    posted = [depth, depth]
    wires: list[deque[int]] = [deque(), deque()]
    wants = [2000, 2000]
    for _ in range(60_000):
        me = random.randrange(2)
        other = 1 - me
        if random.random() < 0.5 and wires[me]:
            assert posted[me] > 0, "receiver not ready"
            total = wires[me].popleft()
            posted[me] += 0  # taken and posted again at once
            ends[me].arrived()
            ends[me].returned(total)
            if ends[me].due and ends[me].may_send(control=True):
                ends[me].sent()
                wires[other].append(ends[me].tell())
        elif wants[me] and ends[me].may_send():
            ends[me].sent()
            wires[other].append(ends[me].tell())
            wants[me] -= 1
        assert len(wires[other]) <= depth
    assert wants == [0, 0]


def test_memory_is_free_only_once_the_pairs_are_destroyed() -> None:
    for state, edges in TABLE.items():
        for event, (target, dos) in edges.items():
            if LinkDo.TELL_FENCED in dos:
                assert LinkDo.DESTROY in dos
                assert dos.index(LinkDo.DESTROY) < dos.index(LinkDo.TELL_FENCED)
            assert (target is LinkState.GONE) == (state is LinkState.GONE or LinkDo.DESTROY in dos), (state, event)


def test_every_state_but_the_last_can_be_ended() -> None:
    for state in LinkState:
        for event in (LinkEvent.BROKEN, LinkEvent.CLOSED):
            assert step(state, event)[0] in {LinkState.DRAINING, LinkState.GONE}


def test_an_edge_that_is_not_there_is_a_bug_of_ours() -> None:
    with pytest.raises(IllegalTransition):
        step(LinkState.NEW, LinkEvent.PROVED)
