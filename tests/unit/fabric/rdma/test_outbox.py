"""Large writes: none waits behind all of another, small frames wait for little, what is posted is always told of."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import pytest

from fabric.rdma.outbox import COUNT_MASK, SIGNAL_EVERY, WINDOW, Outbox, Piece, Write
from fabric.rdma.pace import BESIDE_BYTES_MIN, BESIDE_S, BESIDE_WORK_S, RATE_S, WINDOW_BYTES, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE = 1000


class _Posted:
    """What a device would do with an outbox: keeps order, completes when it is told to."""

    def __init__(self, outbox: Outbox, credit: int = 99) -> None:
        self.outbox, self.credit = outbox, credit
        self.pieces: deque[tuple[Piece, int]] = deque()
        self.now_s = 0.0

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
                return self.outbox.settled(sequence & COUNT_MASK, self.now_s)


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
            outbox.settled(number - WINDOW + 1 + max(at for at, signaled in enumerate(told) if signaled), 0.0)
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
        assert left >= min(WINDOW_BYTES // 2, (len(writes) - len(whole)) * nbytes)
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


def test_beside_small_frames_less_is_posted_and_in_smaller_pieces() -> None:
    outbox = Outbox(1 << 20)
    device = _Posted(outbox)
    outbox.put(_write(64 << 20))
    outbox.small_frame()
    pieces = device.pump()
    assert sum(piece.nbytes for piece in pieces) == BESIDE_BYTES_MIN
    assert len(pieces) == 2
    device.complete_one()
    device.now_s = BESIDE_S / 2
    device.pump()
    device.complete_one()
    assert device.pump()[0].nbytes == BESIDE_BYTES_MIN // 2, "for a while"
    device.now_s = BESIDE_S
    device.complete_one()
    assert sum(piece.nbytes for piece in device.pump()) > WINDOW_BYTES - BESIDE_BYTES_MIN


@pytest.mark.parametrize("seed", range(20))
def test_what_small_frames_leave_of_the_window_never_stalls_what_is_posted(seed: int) -> None:
    """They come at any moment, also when more is posted than may be then; each body is whole in the end."""
    random = Random(seed)
    outbox = Outbox(random.choice([64 << 10, 300 << 10, 1 << 20]))
    device = _Posted(outbox)
    writes = [_write(random.choice([0, 64, 200 << 10, 1 << 20, 3 << 20, 9 << 20])) for _ in range(80)]
    left = deque(writes)
    whole: list[Write] = []
    while len(whole) < len(writes):
        for _ in range(min(len(left), random.randrange(4))):
            outbox.put(left.popleft())
        if random.random() < 0.3:
            outbox.small_frame()
        device.credit = random.choice([0, 1, 3, 99])
        device.pump()
        device.now_s += random.choice([0.0, 0.001, 0.05, 0.3])
        if device.pieces:
            assert any(piece.signaled for piece, _ in device.pieces)
            whole += device.complete_one()
    assert {id(write) for write in whole} == {id(write) for write in writes}


def _paced(rate: float, step_s: float = RATE_S) -> Pace:
    """One that has seen so many bytes a second, and then a small frame."""
    pace = Pace()
    for at in range(4):
        pace.settled(int(rate * step_s), at * step_s, is_idle=False)
    pace.small_frame()
    return pace


@pytest.mark.parametrize("step_s", [RATE_S, RATE_S / 5, 0.1])
def test_a_fast_device_is_given_a_millisecond_of_work_beside_small_frames(step_s: float) -> None:
    rate = 2.0e9
    assert _paced(rate, max(step_s, RATE_S)).window_bytes == pytest.approx(rate * BESIDE_WORK_S, rel=1e-6)
    assert _paced(1e6).window_bytes == BESIDE_BYTES_MIN
    assert _paced(25.0e9).window_bytes == WINDOW_BYTES


def test_time_with_nothing_to_do_says_nothing_of_the_rate() -> None:
    pace = Pace()
    for at in range(3):
        pace.settled(20 << 20, at * 0.01, is_idle=at == 2)
    pace.settled(1 << 20, 60.0, is_idle=False)
    pace.settled(20 << 20, 60.01, is_idle=False)
    pace.small_frame()
    assert pace.window_bytes == pytest.approx((20 << 20) / 0.01 * BESIDE_WORK_S, rel=1e-6)
