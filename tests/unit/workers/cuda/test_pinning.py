"""Which blocks of an arena are pinned: a slot lies in one whole, none overlap, the budget holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from workers.cuda.fake import FakeDevice, make_cards
from workers.cuda.pinning import BLOCK_BYTES_MIN, WORTH_BYTES, Pins, block_of
from workers.device import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

AT = 1 << 40
ARENA = 1 << 30


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    make_cards(str(tmp_path), 1)
    return FakeDevice(str(tmp_path), 0)


def covers(device: FakeDevice, offset: int, nbytes: int) -> bool:
    """Whether one registration holds a place whole."""
    return any(at <= AT + offset and AT + offset + nbytes <= at + size for at, size in device.pinned.items())


@pytest.mark.parametrize(
    ("offset", "nbytes", "expected"),
    [
        (0, 1, (0, BLOCK_BYTES_MIN)),
        (BLOCK_BYTES_MIN, BLOCK_BYTES_MIN, (BLOCK_BYTES_MIN, BLOCK_BYTES_MIN)),
        (BLOCK_BYTES_MIN - 64, 128, (0, 2 * BLOCK_BYTES_MIN)),
        (64 << 20, 33 << 20, (64 << 20, 64 << 20)),
        (64, 64 << 20, (0, 128 << 20)),
    ],
)
def test_the_block_around_a_place(offset: int, nbytes: int, expected: tuple[int, int]) -> None:
    assert block_of(offset, nbytes) == expected


def test_small_places_are_left_alone(device: FakeDevice) -> None:
    pins = Pins(device, ARENA)
    pins.adopt(1, AT, ARENA)
    pins.need(1, 0, WORTH_BYTES - 1)
    assert device.pinned == {}


def test_nothing_is_pinned_while_the_driver_is_busy_with_another_context(device: FakeDevice) -> None:
    pins = Pins(device, ARENA)
    pins.adopt(1, AT, ARENA)
    pins.waiting = True
    pins.need(1, 0, 4 << 20)
    assert (device.pinned, pins.refused) == ({}, 0)
    pins.waiting = False
    pins.need(1, 0, 4 << 20)
    assert device.pinned == {AT: 4 << 20}


def test_a_larger_slot_replaces_the_blocks_inside_it(device: FakeDevice) -> None:
    pins = Pins(device, ARENA)
    pins.adopt(1, AT, ARENA)
    pins.need(1, 0, 4 << 20)
    pins.need(1, 12 << 20, 4 << 20)
    pins.need(1, 0, 16 << 20)
    assert device.pinned == {AT: 16 << 20}
    assert pins.registered == 3
    pins.need(1, 8 << 20, 1 << 20)  # inside
    assert device.pinned == {AT: 16 << 20}
    assert (pins.registered, pins.pinned_bytes) == (3, 16 << 20)


def test_any_order_of_slots_leaves_each_in_one_registration(device: FakeDevice) -> None:
    """The fake refuses what overlaps, as CUDA does."""
    draw = random.Random(3)
    pins = Pins(device, ARENA)
    pins.adopt(1, AT, ARENA)
    for _ in range(500):
        size = 1 << draw.randrange(17, 28)
        offset = draw.randrange(ARENA // size) * size
        nbytes = draw.randrange(max(WORTH_BYTES, size // 2), size + 1)
        pins.need(1, offset, nbytes)
        assert covers(device, offset, nbytes)
        assert pins.pinned_bytes == sum(device.pinned.values()) <= ARENA
    pins.forget(1)
    assert device.pinned == {}
    assert pins.pinned_bytes == 0


def test_beyond_the_budget_nothing_more_is_pinned_and_it_is_counted(device: FakeDevice) -> None:
    pins = Pins(device, 8 << 20)
    pins.adopt(1, AT, ARENA)
    pins.need(1, 0, 8 << 20)
    pins.need(1, 64 << 20, 8 << 20)
    assert device.pinned == {AT: 8 << 20}
    assert pins.refused == 1


def test_an_arena_smaller_than_a_block_is_pinned_whole(device: FakeDevice) -> None:
    pins = Pins(device, ARENA)
    pins.adopt(1, AT, 1 << 20)
    pins.need(1, 0, 1 << 19)
    assert device.pinned == {AT: 1 << 20}


def test_the_fake_refuses_what_cuda_refuses(device: FakeDevice) -> None:
    device.pin(AT, 4096)
    with pytest.raises(DeviceError) as twice:
        device.pin(AT + 4000, 4096)
    assert twice.value.code == 712
    with pytest.raises(DeviceError) as never:
        device.unpin(AT + 4096)
    assert never.value.code == 713
