"""What goes between two legs, packed on a fake card or in the host's memory and taken out again by another process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.dtypes import DType
from fabric.layout import TensorSpec
from fabric.local.sockets import close_all
from workers.card_rooms import ROOM_BYTES_MIN, CardRooms, StepTargets
from workers.cuda.fake import FakeDevice, make_cards
from workers.packing import ALIGN_BYTES, Parcelled, from_card, from_host, on_card, on_host

if TYPE_CHECKING:
    from workers.backends.on_card import CardArray


@pytest.fixture
def cards(tmp_path: Path) -> tuple[CardRooms, CardRooms]:
    make_cards(str(tmp_path), 2)
    return CardRooms(FakeDevice(str(tmp_path), 0)), CardRooms(FakeDevice(str(tmp_path), 1))


def shown(array: CardArray) -> np.ndarray[Any, Any]:
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.address)
    found: np.ndarray[Any, Any] = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_packed_on_one_card_is_copied_to_the_other(cards: tuple[CardRooms, CardRooms]) -> None:
    one, other = cards
    x = one.room(("s", "x"), np.dtype(np.float32), (3, 5))
    y = one.room(("s", "y"), np.dtype(np.int64), (7,))
    shown(x)[:], shown(y)[:] = np.arange(15).reshape(3, 5), np.arange(7)
    packed = Parcelled(1)
    on_card(one, packed, {"x": x, "y": y})
    shown(x)[:] = 0  # the model's own memory is free at once
    one.detach(packed.address, packed.card_bytes)  # and its mapping, the memory is held by the descriptor
    contents = packed.contents
    assert [part.on_card for part in contents.parts] == [0, ALIGN_BYTES]
    found = from_card(other, contents, packed.descriptors[0], frozenset({"x"}))
    assert list(found) == ["x"]
    assert shown(found["x"]).tolist() == np.arange(15).reshape(3, 5).tolist()
    assert other.fetched(found["x"]).dtype == np.float32
    close_all(packed.descriptors)
    for rooms in cards:
        rooms.release()


def test_what_is_packed_on_the_host_is_whole_sealed_and_read_only(cards: tuple[CardRooms, CardRooms]) -> None:
    one, _ = cards
    x = one.room(("s", "x"), np.dtype(np.float32), (4,))
    shown(x)[:] = [1, 2, 3, 4]
    texts = np.array([[b"a", b""], [b"long", "ü".encode()]], object)
    packed = Parcelled(2)
    tensors: dict[str, Any] = {
        "x": x,
        "texts": texts,
        "none": np.empty((0, 3), np.int8),
        "flags": np.array([[True], [False]]),
    }
    on_host(one, packed, tensors)
    (fd,) = packed.descriptors
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    found = from_host(packed.contents, fd, frozenset(tensors))
    assert found["x"].tolist() == [1, 2, 3, 4]
    assert found["texts"].tolist() == texts.tolist()
    assert (found["none"].shape, found["none"].dtype) == ((0, 3), np.int8)
    assert found["flags"].tolist() == [[True], [False]]
    with pytest.raises(ValueError, match="read-only"):
        found["x"][0] = 5
    plain = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(plain, packed.host_bytes)
    with pytest.raises((OSError, ValueError)):  # its maker could shrink it while it is read
        from_host(packed.contents, plain, frozenset(tensors))
    close_all((fd, plain))
    one.release()


def test_a_parcel_of_empty_tensors_needs_no_memory() -> None:
    packed = Parcelled(3)
    on_host(None, packed, {"none": np.empty((0,), np.float32)})
    assert (packed.descriptors, packed.host_bytes) == ([], 0)
    assert from_host(packed.contents, -1, frozenset({"none"}))["none"].shape == (0,)


def test_a_failure_on_the_way_leaves_nothing_packed(cards: tuple[CardRooms, CardRooms], tmp_path: Path) -> None:
    one, other = cards
    x = one.room(("s", "x"), np.dtype(np.float32), (4,))
    for call in ("share", "copy"):
        (tmp_path / "card-0" / call).write_text("801")
        packed = Parcelled(4)
        before = descriptors()
        with pytest.raises(RuntimeError, match="CUDA error 801"):
            on_card(one, packed, {"x": x})
        assert descriptors() == before
        assert (packed.address, packed.descriptors, packed.contents.parts) == (0, [], ())
    (tmp_path / "card-0" / "share").write_text("2")
    with pytest.raises(MemoryError):
        on_card(one, Parcelled(5), {"x": x})
    packed = Parcelled(6)
    on_card(one, packed, {"x": x})
    (tmp_path / "card-1" / "attach").write_text("217")
    with pytest.raises(RuntimeError, match="CUDA error 217"):
        from_card(other, packed.contents, packed.descriptors[0], frozenset({"x"}))
    one.detach(packed.address, packed.card_bytes)
    close_all(packed.descriptors)


def test_rooms_are_used_again_and_grow(cards: tuple[CardRooms, CardRooms]) -> None:
    one, _ = cards
    kind = np.dtype(np.uint8)
    first = one.room(("s", "x"), kind, (10,))
    assert one.room(("s", "x"), kind, (ROOM_BYTES_MIN,)).address == first.address
    assert one.room(("s", "y"), kind, (10,)).address != first.address
    larger = one.room(("s", "x"), kind, (ROOM_BYTES_MIN + 1,))
    shown(larger)[:] = 7
    assert one.fetched(larger).tolist() == [7] * (ROOM_BYTES_MIN + 1)
    one.release()


def test_a_step_writes_on_the_card_only_what_is_wanted_there_and_has_room(
    cards: tuple[CardRooms, CardRooms], tmp_path: Path
) -> None:
    targets = StepTargets(cards[0], "s", frozenset({"x", "empty"}))
    assert targets.take(TensorSpec("y", DType.FP32, (2,), 8)) is None
    assert targets.take(TensorSpec("empty", DType.FP32, (0,), 0)) is None
    (tmp_path / "card-0" / "allocate").write_text("2")
    assert targets.take(TensorSpec("x", DType.FP32, (2,), 8)) is None
    assert not targets.taken
    found = targets.take(TensorSpec("x", DType.FP32, (2,), 8))
    assert found is not None
    assert targets.taken == {"x": found}
    cards[0].release()
