"""What an attempt lends, when it takes it back, and which answers it believes."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from fabric.dtypes import DType
from fabric.errors import Fate, InvalidArgument, ModelFailed, OverspillError, ProtocolError, ResourceExhausted
from fabric.frame import (
    ErrorFrame,
    Kind,
    Load,
    ReplyFrame,
    bare_frame,
    check_header,
    decode_request,
    encode_error,
    encode_reply,
)
from fabric.layout import TensorSpec, layout_of
from fabric.local.exchange import Places, read_final, request_frame, take_leased_reply
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, Body, RequestId
from fabric.reply_sizes import ReplySizes
from fabric.transport import Call

LAYOUT = layout_of((TensorSpec.of("x", DType.UINT8, (128,)),))
LOAD = Load(1, 2, 3, 4)
ID = RequestId(5, 7)
REPLY = ReplyFrame(5, 7, 9, 128, 4096, 1, 2, 3, LOAD, LAYOUT.encoded)


def _arena() -> Arena:
    return Arena.create(1 << 20)


def _call(arena: Arena, memory: bytes | Lease | None = None) -> Call:
    return Call(ID, "m", Body(LAYOUT, memory if memory is not None else Lease.of(arena, 128)))


def _places(arena: Arena) -> Places:
    places = Places(arena)
    places.reply_at, places.capacity = 4096, 4096
    return places


def test_an_own_lease_travels_by_offset() -> None:
    arena = _arena()
    Lease.of(arena, 4096)
    call = _call(arena)
    places = Places(arena)
    places.put_input(call)
    places.put_reply(128)
    frame = request_frame(call, 3, 1000, places)
    request = decode_request(frame, check_header(frame))
    assert isinstance(call.body.memory, Lease)
    assert request.body_offset == call.body.memory.offset
    assert (request.reply_offset, request.reply_capacity) == (places.reply_at, 4096)
    assert (request.node_epoch, request.budget_us, request.body_bytes) == (3, 1000, 128)
    places.let_go()


@pytest.mark.parametrize("kind", ["bytes", "foreign"])
def test_anything_else_is_copied(kind: str) -> None:
    arena, foreign = _arena(), _arena()
    call = _call(arena, bytes(range(128))) if kind == "bytes" else _call(foreign)
    call.body.view()[:3] if kind == "bytes" else call.body.view().__setitem__(slice(0, 3), b"abc")
    places = Places(arena)
    places.put_input(call)
    assert arena.view[places.input_at : places.input_at + 128] == call.body.view()
    places.let_go()
    assert arena.lent_bytes() == 0


def test_a_released_input_is_refused() -> None:
    arena = _arena()
    call = _call(arena)
    assert isinstance(call.body.memory, Lease)
    call.body.memory.release()
    with pytest.raises(InvalidArgument, match="released"):
        Places(arena).put_input(call)


def test_what_is_out_stays_lent_until_it_is_settled() -> None:
    arena = _arena()
    places = Places(arena)
    places.put_input(_call(arena, b"x" * 128))
    places.put_reply(128)
    places.lend()
    places.give_up()
    assert (arena.lent_bytes(), arena.table.quarantined_bytes) == (8192, 8192)
    places.settle()
    assert (arena.lent_bytes(), arena.table.quarantined_bytes) == (0, 0)


def test_what_never_went_out_is_free_at_once() -> None:
    arena = _arena()
    places = Places(arena)
    places.put_input(_call(arena, b"x" * 128))
    places.put_reply(128)
    places.give_up()
    assert arena.lent_bytes() == 0


def test_growing_keeps_the_input_and_frees_the_old_reply() -> None:
    arena = _arena()
    call = _call(arena)
    places = Places(arena)
    places.put_input(call)
    places.put_reply(4096)
    places.lend()
    assert isinstance(call.body.memory, Lease)
    call.body.memory.release()
    places.grow_reply(10_000)
    assert places.capacity == 16_384
    assert arena.lent_bytes() == 4096 + 16_384
    assert arena.table.quarantined_bytes == 4096, "the input waits for the second answer"
    places.lend()
    places.settle()
    places.let_go()
    assert arena.lent_bytes() == 0


def test_a_reply_that_finds_no_room_has_run() -> None:
    arena = _arena()
    call = _call(arena)
    places = Places(arena)
    places.put_input(call)
    places.put_reply(4096)
    places.lend()
    with pytest.raises(ResourceExhausted, match="ran") as full:
        places.grow_reply(1 << 30)
    assert full.value.fate is Fate.RAN
    places.give_up()
    assert arena.table.quarantined_bytes == 0
    del full
    gc.collect()  # the error's traceback holds the arena


def test_a_good_reply() -> None:
    assert read_final(encode_reply(REPLY), ID, _places(_arena())) == (REPLY, LAYOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_no": 8},
        {"client_id": 6},
        {"reply_offset": 4095},
        {"reply_offset": 8192 - 127},
        {"reply_offset": (1 << 64) - 1},
        {"body_bytes": 192},
        {"descriptors": b"nonsense"},
    ],
)
def test_replies_that_are_not_believed(changes: dict[str, int]) -> None:
    frame = encode_reply(replace(REPLY, **changes))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        read_final(frame, ID, _places(_arena()))


def test_errors_are_answers_and_not_faults() -> None:
    frame = encode_error(ErrorFrame(5, 7, 9, ModelFailed("it raised"), LOAD))
    final = read_final(frame, ID, _places(_arena()))
    assert isinstance(final, ModelFailed)
    refused = encode_error(ErrorFrame(5, 7, 9, ProtocolError("cut", Fate.NEVER_RAN), LOAD))
    assert isinstance(read_final(refused, ID, _places(_arena())), OverspillError)


@pytest.mark.parametrize(
    "frame",
    [
        bare_frame(Kind.PONG, 5, 7),
        bare_frame(Kind.REQUEST, 5, 7),
        encode_error(ErrorFrame(0, 0, 9, ProtocolError("you sent noise"), LOAD)),
    ],
    ids=["pong", "request", "connection"],
)
def test_frames_that_end_the_channel(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_final(frame, ID, _places(_arena()))


@pytest.mark.parametrize(("nbytes", "kind"), [(64, bytes), (SMALL_BODY_BYTES - 64, bytes), (SMALL_BODY_BYTES, Lease)])
def test_small_replies_are_copied_out(nbytes: int, kind: type) -> None:
    arena = _arena()
    layout = layout_of((TensorSpec.of("y", DType.UINT8, (nbytes,)),))
    places = Places(arena)
    places.put_reply(nbytes)
    reply = replace(REPLY, body_bytes=nbytes, reply_offset=places.reply_at, descriptors=layout.encoded)
    arena.view[places.reply_at : places.reply_at + 3] = b"abc"
    answer = take_leased_reply(reply, layout, places)
    assert isinstance(answer.memory, kind)
    view = answer.memory.view if isinstance(answer.memory, Lease) else memoryview(answer.memory)
    assert bytes(view[:3]) == b"abc"
    assert arena.lent_bytes() == (0 if kind is bytes else nbytes)


def test_sizes_are_learned_by_model_and_size_of_the_input() -> None:
    arena = _arena()
    sizes = ReplySizes()
    call = _call(arena)
    assert sizes.guess(call) == 0
    sizes.learn(call, 5000)
    assert sizes.guess(call) == 5000
    assert sizes.guess(replace(call, model="other")) == 0
    assert sizes.guess(replace(call, reply_bytes=9000)) == 9000
    for number in range(10_000):
        sizes.learn(replace(call, model=str(number)), 1)
    assert sizes.guess(call) == 0, "the table is bounded"
