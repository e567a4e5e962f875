"""What travels on the rpc wire is checked before it is believed."""

from __future__ import annotations

import struct

import pytest

from fabric.dtypes import DType
from fabric.errors import DeadlineExceeded, Fate, ModelFailed, OverspillError, ProtocolError
from fabric.frame import HEADER_BYTES, Kind, Load, bare_frame, check_header
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import Body, RequestId
from fabric.rpc_fallback import wire
from fabric.transport import Answer, Call, WireName

ID = RequestId(0xABC, 5)
LAYOUT = layout_of((TensorSpec.of("x", DType.UINT8, (100,)),))
LOAD = Load(1, 2, 3, 4)


def call(size: int = 100) -> Call:
    layout = layout_of((TensorSpec.of("x", DType.UINT8, (size,)),))
    return Call(ID, "echo", Body(layout, bytes(layout.body_bytes)), ack_no=3, priority=1, attempt=2, reply_bytes=77)


def answer(size: int = 100) -> Answer:
    layout = layout_of((TensorSpec.of("x", DType.UINT8, (size,)),))
    return Answer(layout, bytes(range(256)) * (layout.body_bytes // 256 + 1), 1, 20, 30, LOAD, WireName.LOCAL)


def request_message(epoch: int = 7) -> bytes:
    made = call()
    return b"s" * wire.SESSION_BYTES + wire.request_frame(made, epoch, 1000) + bytes(made.body.view())


def test_a_request_arrives_as_it_was_sent() -> None:
    frame, header, body = wire.split(request_message(), wire.SESSION_BYTES)
    request, layout = wire.read_request(frame, header)
    assert (request.model, request.node_epoch, request.budget_us, request.ack_no) == ("echo", 7, 1000, 3)
    assert (request.priority, request.attempt, request.reply_capacity) == (1, 2, 77)
    assert layout == LAYOUT
    assert len(body) == LAYOUT.body_bytes


@pytest.mark.parametrize("cut", [0, 1, wire.SESSION_BYTES, wire.SESSION_BYTES + HEADER_BYTES - 1, -1])
def test_a_cut_message_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        wire.split(request_message()[:cut], wire.SESSION_BYTES)


def test_a_message_with_a_tail_is_refused() -> None:
    with pytest.raises(ProtocolError, match="brings"):
        wire.split(request_message() + b"x", wire.SESSION_BYTES)


@pytest.mark.parametrize("at", range(wire.SESSION_BYTES, wire.SESSION_BYTES + 130))
def test_a_flipped_bit_of_the_frame_is_refused(at: int) -> None:
    message = bytearray(request_message())
    message[at] ^= 1
    with pytest.raises(OverspillError):
        wire.split(bytes(message), wire.SESSION_BYTES)


@pytest.mark.parametrize("size", [0, HEADER_BYTES - 1, 64 * 1024 + 1, 0xFFFF_FFFF])
def test_a_claimed_frame_size_out_of_range_is_refused(size: int) -> None:
    head = bytearray(bare_frame(Kind.PING))
    struct.pack_into("<I", head, 12, size)
    with pytest.raises(ProtocolError):
        wire.frame_size(head)


def test_another_kind_is_no_request() -> None:
    frame = bytes(bare_frame(Kind.PING, ID.client_id))
    with pytest.raises(ProtocolError, match="PING"):
        wire.read_request(frame, check_header(frame))


def test_a_small_answer_comes_back_as_bytes_and_a_large_one_in_a_slot() -> None:
    frame, header, _ = wire.split(request_message(), wire.SESSION_BYTES)
    request, _ = wire.read_request(frame, header)
    arena = Arena.create(1 << 20)
    for size, kind in ((100, bytes), (64 * 1024, Lease)):
        sent = answer(size)
        body = sent.memory[: sent.layout.body_bytes]
        outcome = wire.outcome_of(Answer(sent.layout, body, 1, 20, 30, LOAD, WireName.LOCAL), request, 7)
        got = wire.inline_answer(bytes(outcome.frame) + bytes(outcome.body), ID, arena)
        assert isinstance(got.memory, kind)
        view = got.memory.view if isinstance(got.memory, Lease) else got.memory
        assert bytes(view[:size]) == body[:size]
        assert (got.queue_us, got.compute_us, got.load, got.wire) == (20, 30, LOAD, WireName.RPC)
        if isinstance(got.memory, Lease):
            got.memory.release()
    assert arena.lent_bytes() == 0


def test_without_room_a_large_answer_is_copied_to_plain_memory() -> None:
    arena = Arena.create(1 << 16)
    held = Lease.of(arena, 1 << 16)
    assert wire.lease_or_none(arena, 1 << 16) is None
    held.release()
    assert wire.lease_or_none(None, 1) is None


def test_an_error_comes_back_as_it_was_raised() -> None:
    outcome = wire.error_outcome(ModelFailed("it broke; mend it"), ID, 7)
    with pytest.raises(ModelFailed, match="it broke") as caught:
        wire.inline_answer(bytes(outcome.frame), ID, None)
    assert caught.value.fate is Fate.RAN


def test_the_answer_to_another_request_is_refused() -> None:
    frame, header, _ = wire.split(request_message(), wire.SESSION_BYTES)
    request, _ = wire.read_request(frame, header)
    sent = answer()
    body = sent.memory[: sent.layout.body_bytes]
    outcome = wire.outcome_of(Answer(sent.layout, body, 1, 0, 0, LOAD, WireName.LOCAL), request, 7)
    with pytest.raises(ProtocolError, match="another request"):
        wire.inline_answer(bytes(outcome.frame) + body, RequestId(0xABC, 6), None)


def test_a_pong_carries_the_load() -> None:
    assert wire.read_pong(bytes(wire.pong_frame(LOAD))) == LOAD
    with pytest.raises(ProtocolError):
        wire.read_pong(bytes(bare_frame(Kind.PONG)))
    with pytest.raises(DeadlineExceeded):
        wire.read_pong(bytes(wire.error_outcome(DeadlineExceeded("late"), ID, 7).frame))


def test_pieces_fill_a_body() -> None:
    memory = bytearray(10)
    wire.fill(memoryview(memory), iter([b"abc", b"", b"defghij"]))
    assert memory == b"abcdefghij"


@pytest.mark.parametrize("pieces", [[], [b"abc"], [b"abc", b"defghijk"], [b"x" * 11]])
def test_pieces_that_do_not_add_up_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        wire.fill(memoryview(bytearray(10)), iter(pieces))
