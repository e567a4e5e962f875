"""The greeting: what is said is read, and each wrong field is named."""

from __future__ import annotations

import json

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


@given(
    json_values, st.sampled_from(["client_id", "versions", "arena_bytes", "session", "limits", "lane", "node_epoch"])
)
def test_any_json_in_any_field(value: object, field: str) -> None:
    good = {"client_id": "5", "versions": [1, 1]}
    raw = bare_frame(Kind.HELLO, 1, 0, json.dumps({**good, field: value}).encode())
    try:
        decode_hello(raw, check_header(raw))
    except ProtocolError as error:
        assert field in str(error) or "object" in str(error) or "client_id" in str(error)
    raw = bare_frame(Kind.WELCOME, 1, 0, json.dumps({field: value}).encode())
    try:
        decode_welcome(raw, check_header(raw))
    except ProtocolError as error:
        assert "WELCOME" in str(error)


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
