"""The greeting: what is said is read, and each wrong field is named."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.errors import ProtocolError, VersionMismatch
from fabric.frame import VERSION, Kind, Load, bare_frame, check_header
from fabric.hello import (
    Hello,
    Welcome,
    common_version,
    decode_hello,
    decode_pong,
    decode_welcome,
    encode_hello,
    encode_pong,
    encode_welcome,
)

u64 = st.integers(0, (1 << 64) - 1)
texts = st.text(max_size=60)


@given(st.builds(Hello, u64, u64, texts, st.integers(), st.integers()))
def test_hello(hello: Hello) -> None:
    raw = encode_hello(hello)
    assert decode_hello(raw, check_header(raw)) == hello


@given(st.builds(Welcome, texts, u64, u64, texts, u64, u64, u64, texts))
def test_welcome(welcome: Welcome) -> None:
    raw = encode_welcome(welcome, 5)
    assert decode_welcome(raw, check_header(raw)) == welcome


@given(st.builds(Load, u64, u64, u64, st.integers(0, (1 << 32) - 1)))
def test_pong(load: Load) -> None:
    raw = encode_pong(1, 2, load)
    assert decode_pong(raw, check_header(raw)) == load


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


FIELDS = ("client_id", "versions", "arena_bytes", "session", "limits", "lane", "node_epoch")


@given(json_values, st.sampled_from(FIELDS))
def test_any_json_in_any_field(value: object, field: str) -> None:
    """Read with the right types, or refused in a sentence of ours: nothing else comes out."""
    hello = bare_frame(Kind.HELLO, 1, 0, json.dumps({"client_id": "5", "versions": [1, 1], field: value}).encode())
    with suppress(ProtocolError):
        read = decode_hello(hello, check_header(hello))
        assert (type(read.client_id), type(read.arena_bytes), type(read.session)) == (int, int, str)
    welcome = bare_frame(Kind.WELCOME, 1, 0, json.dumps({field: value}).encode())
    with suppress(ProtocolError):
        answer = decode_welcome(welcome, check_header(welcome))
        assert (type(answer.node_epoch), type(answer.lane_port), type(answer.sockets_max)) == (int, int, int)


@pytest.mark.parametrize("field", ["client_id", "versions", "arena_bytes", "session"])
def test_a_wrong_field_is_named(field: str) -> None:
    raw = bare_frame(Kind.HELLO, 1, 0, json.dumps({"client_id": "5", "versions": [1, 1], field: {}}).encode())
    with pytest.raises(ProtocolError, match=field):
        decode_hello(raw, check_header(raw))


@given(st.binary(max_size=100))
def test_noise(noise: bytes) -> None:
    raw = bare_frame(Kind.HELLO, 1, 0, noise)
    with pytest.raises(ProtocolError):
        decode_hello(raw, check_header(raw))


@pytest.mark.parametrize(
    ("oldest", "newest", "common"), [(1, VERSION, VERSION), (0, 1, 1), (VERSION, 99, VERSION), (VERSION + 1, 99, 0)]
)
def test_versions(oldest: int, newest: int, common: int) -> None:
    hello = Hello(1, version_oldest=oldest, version_newest=newest)
    if common:
        assert common_version(hello) == common
    else:
        with pytest.raises(VersionMismatch, match="update"):
            common_version(hello)
