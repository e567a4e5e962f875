"""Frames: what one end encodes the other reads, and no damaged one is taken for whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.errors import (
    DeadlineExceeded,
    Fate,
    InvalidArgument,
    ModelFailed,
    ProtocolError,
    QueueFull,
    ReplyTooLarge,
    VersionMismatch,
)
from fabric.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    ErrorFrame,
    Kind,
    Load,
    ReplyFrame,
    RequestFrame,
    bare_frame,
    check_header,
    decode_error,
    decode_final,
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from fabric.header import seal

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
loads = st.builds(Load, u64, u64, u64, u32)
requests = st.builds(
    RequestFrame, *[u64] * 9, u8, u8, st.text(st.characters(codec="utf-8"), max_size=99), st.binary(max_size=300)
)
replies = st.builds(ReplyFrame, *[u64] * 5, u32, u32, u32, loads, st.binary(max_size=300))
SAMPLE = RequestFrame(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0, "etr", b"descriptors")


@given(requests)
def test_requests(frame: RequestFrame) -> None:
    raw = encode_request(frame)
    header = check_header(raw)
    assert header.kind is Kind.REQUEST
    assert decode_request(raw, header) == frame


@given(replies)
def test_replies(frame: ReplyFrame) -> None:
    raw = encode_reply(frame)
    assert decode_reply(raw, check_header(raw)) == frame


@given(u64, u64, u64, loads, st.text(st.characters(codec="utf-8"), max_size=500), st.sampled_from(Fate), u64)
def test_errors(client_id: int, number: int, epoch: int, load: Load, text: str, fate: Fate, needed: int) -> None:
    for error in (ModelFailed(text, fate), QueueFull(text, fate), ReplyTooLarge(text, fate, needed)):
        raw = encode_error(ErrorFrame(client_id, number, epoch, error, load))
        back = decode_error(raw, check_header(raw))
        assert (back.client_id, back.request_no, back.node_epoch, back.load) == (client_id, number, epoch, load)
        assert (type(back.error), str(back.error), back.error.fate) == (type(error), text, fate)
        assert getattr(back.error, "needed_bytes", 0) == getattr(error, "needed_bytes", 0)


def test_a_long_message_is_cut_and_stays_readable() -> None:
    raw = encode_error(ErrorFrame(1, 1, 1, DeadlineExceeded("ü" * 100_000), Load(0, 0, 0, 0)))
    assert len(raw) < 5000
    assert str(decode_error(raw, check_header(raw)).error).startswith("üüü")


@given(st.integers(0, len(encode_request(SAMPLE)) - 1), st.integers(1, 255))
def test_each_changed_byte_is_noticed(at: int, change: int) -> None:
    raw = bytearray(encode_request(SAMPLE))
    raw[at] ^= change
    with pytest.raises(ProtocolError):
        check_header(bytes(raw))


@given(st.integers(0, len(encode_request(SAMPLE)) - 1), st.binary(min_size=1, max_size=9))
def test_cut_and_lengthened(cut: int, tail: bytes) -> None:
    raw = encode_request(SAMPLE)
    for wrong in (raw[:cut], raw + tail):
        with pytest.raises(ProtocolError):
            check_header(wrong)


def _sealed(kind: Kind, payload: bytes) -> bytes:
    """A frame with a good header, whose own parts may be anything."""
    return bare_frame(kind, 1, 1, payload)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_good_header_and_wrong_parts(payload: bytes) -> None:
    for kind, decode in (
        (Kind.REQUEST, decode_request),
        (Kind.REPLY, decode_reply),
        (Kind.ERROR, decode_error),
    ):
        raw = _sealed(kind, payload)
        header = check_header(raw)
        try:
            decode(raw, header)
        except ProtocolError:
            continue


def test_versions() -> None:
    raw = bytearray(bare_frame(Kind.PING))
    raw[8] = 99
    with pytest.raises(VersionMismatch, match="version 99"):
        check_header(bytes(raw))


def test_limits() -> None:
    room = FRAME_BYTES_MAX - HEADER_BYTES
    assert len(bare_frame(Kind.CONTROL, payload=bytes(room))) == FRAME_BYTES_MAX
    with pytest.raises(InvalidArgument, match="shorten"):
        bare_frame(Kind.CONTROL, payload=bytes(room + 1))


def test_an_unknown_kind_is_refused() -> None:
    from zlib import crc32

    raw = bytearray(bare_frame(Kind.PING))
    raw[9] = 200
    raw[4:8] = crc32(raw[8:]).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="kind 200"):
        check_header(bytes(raw))


def test_an_unreadable_answer_never_says_that_nothing_ran() -> None:
    foreign = bytearray(bare_frame(Kind.PING))
    foreign[8] = 99  # the version
    with pytest.raises(VersionMismatch) as raised:
        decode_final(seal(bytes(foreign[8:])))
    assert raised.value.fate is Fate.UNKNOWN
