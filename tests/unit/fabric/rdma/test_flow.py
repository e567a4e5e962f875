"""Credits and large writes: nothing is posted without room at the other end, nothing waits behind all of another."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import pytest

from fabric.errors import IllegalTransition, ProtocolError
from fabric.rdma.credits import RESERVED, Credits
from fabric.rdma.lifecycle import TABLE, LinkDo, LinkEvent, LinkState, step
from fabric.rdma.outbox import COUNT_MASK, SIGNAL_BYTES, SIGNAL_EVERY, WINDOW, WINDOW_BYTES, Outbox, Piece, Write

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE = 1000


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


class _Posted:
    """What a device would do with an outbox: keeps order, completes when it is told to."""

    def __init__(self, outbox: Outbox, credit: int = 99) -> None:
        self.outbox, self.credit = outbox, credit
        self.pieces: deque[tuple[Piece, int]] = deque()

    def may_begin(self) -> bool:
        self.credit -= 1
        return self.credit >= 0

    def pump(self) -> list[Piece]:
        taken = []
        while (piece := self.outbox.take(self.may_begin)) is not None:
            self.pieces.append(piece)
            taken.append(piece[0])
        return taken

    def complete_one(self) -> list[Write]:
        while True:
            piece, sequence = self.pieces.popleft()
            if piece.signaled:
                return self.outbox.settled(sequence & COUNT_MASK)


def _write(nbytes: int, address: int = 0, done: Callable[[], None] = lambda: None) -> Write:
    return Write(address, nbytes, 1, 10_000 + address, 2, lambda: (5, 64, 3, 7, 9), done)


def test_a_body_is_cut_and_the_last_piece_tells() -> None:
    device = _Posted(Outbox(PIECE))
    device.outbox.put(_write(2500, 100))
    pieces = device.pump()
    assert [(p.address, p.nbytes, p.remote, p.last) for p in pieces] == [
        (100, 1000, 10_100, False),
        (1100, 1000, 11_100, False),
        (2100, 500, 12_100, False),
        (5, 64, 7, True),
    ]
    assert pieces[-1].signaled
    assert pieces[-1].write.imm == 9


def test_a_small_body_does_not_wait_for_all_of_a_large_one() -> None:
    device = _Posted(Outbox(PIECE))
    large, small = _write(100 * PIECE), _write(PIECE, 500_000)
    device.outbox.put(large)
    device.outbox.put(small)
    order: list[Write] = []
    while len(order) < 6:
        order += [piece.write for piece in device.pump()]
        device.complete_one()
    assert order.index(small) <= 1
    assert order[:6].count(small) == 2


def test_no_more_pieces_are_out_than_the_window_and_enough_are_signaled() -> None:
    device = _Posted(Outbox(PIECE))
    device.outbox.put(_write(50 * PIECE))
    pieces = device.pump()
    assert len(pieces) == WINDOW
    assert sum(piece.signaled for piece in pieces) == WINDOW // SIGNAL_EVERY


def test_without_credit_nothing_begins() -> None:
    device = _Posted(Outbox(PIECE), credit=1)
    first, second = _write(10), _write(10)
    device.outbox.put(first)
    device.outbox.put(second)
    assert {piece.write for piece in device.pump()} == {first}
    assert device.outbox.withdraw(second)
    assert not device.outbox.withdraw(first)


@pytest.mark.parametrize("seed", range(3))
def test_every_write_is_settled_once_over_the_wrap_of_sequence_numbers(seed: int) -> None:
    random = Random(seed)
    outbox = Outbox(PIECE)
    outbox._first = COUNT_MASK - 20
    device = _Posted(outbox, credit=10_000)
    settled: list[Write] = []
    writes = [_write(random.randrange(0, 5000)) for _ in range(60)]
    for write in writes:
        outbox.put(write)
        device.pump()
        if random.random() < 0.5 and device.pieces:
            settled += device.complete_one()
    while device.pieces:
        settled += device.complete_one()
        device.pump()
    assert sorted(map(id, settled)) == sorted(map(id, writes))


def test_what_is_left_is_dropped_once() -> None:
    device = _Posted(Outbox(PIECE), credit=2)
    writes = [_write(20 * PIECE), _write(10), _write(10)]
    for write in writes:
        device.outbox.put(write)
    device.pump()
    assert sorted(map(id, device.outbox.drop())) == sorted(map(id, writes))
    assert device.outbox.drop() == []


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


@pytest.mark.parametrize("pieces", range(1, 9))
def test_a_full_window_always_holds_a_piece_that_will_be_told_of(pieces: int) -> None:
    """Else nothing would settle what was posted, and nothing more be posted, whatever the bodies' sizes are."""
    outbox = Outbox(PIECE)
    for _ in range(40):
        outbox.put(_write(pieces * PIECE))
    told: deque[bool] = deque(maxlen=WINDOW)
    number = -1
    while (taken := outbox.take(lambda: True)) is not None:
        piece, number = taken
        told.append(piece.signaled)
        if outbox.posted == WINDOW:
            assert any(told)
            outbox.settled(number - WINDOW + 1 + max(at for at, signaled in enumerate(told) if signaled))
    assert outbox.posted == 0 or any(told)


@pytest.mark.parametrize("nbytes", [1 << 20, (1 << 20) + 64, 5 << 20, 64 << 20])
def test_bytes_bound_what_is_posted_and_its_last_piece_is_told_of(nbytes: int) -> None:
    """A frame follows its body all the same: it is what tells the peer, and it is always told of."""
    outbox = Outbox(1 << 20)
    device = _Posted(outbox)
    writes = [_write(nbytes) for _ in range(4)]
    for write in writes:
        outbox.put(write)
    whole: list[Write] = []
    while len(whole) < len(writes):
        device.pump()
        bodies = [piece.nbytes for piece, _ in device.pieces if not piece.last]
        assert sum(bodies) < WINDOW_BYTES + (1 << 20)
        assert any(piece.signaled for piece, _ in device.pieces)
        whole += device.complete_one()
    assert {id(write) for write in whole} == {id(write) for write in writes}


def test_a_stream_of_bodies_is_told_of_in_halves_of_what_is_posted() -> None:
    """So that whoever posts is woken half as often as bodies go, and the device has something to do till then."""
    nbytes = 1 << 20
    outbox = Outbox(nbytes)
    device = _Posted(outbox)
    writes = [_write(nbytes) for _ in range(40)]
    for write in writes:
        outbox.put(write)
    whole: list[Write] = []
    told = 0
    while len(whole) < len(writes):
        device.pump()
        whole += device.complete_one()
        told += 1
        left = sum(piece.nbytes for piece, _ in device.pieces if not piece.last)
        assert left >= min(SIGNAL_BYTES, (len(writes) - len(whole)) * nbytes)
    assert [id(write) for write in whole] == [id(write) for write in writes]
    assert told <= len(writes) // 2 + 1


def test_a_frame_with_nothing_behind_it_is_told_of() -> None:
    """Its body's memory is the caller's again by that alone."""
    outbox = Outbox(PIECE)
    device = _Posted(outbox, credit=2)
    for _ in range(3):  # there is no credit for the third
        outbox.put(_write(10))
    pieces = device.pump()
    assert [piece.signaled for piece in pieces if piece.last] == [False, True]
