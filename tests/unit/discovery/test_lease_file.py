"""The text of a lease: what it keeps, what it ignores, what it refuses."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.instance import Readiness
from discovery.lease_file import LeaseFile, encode_lease, file_name, parse_lease
from discovery.owner import Owner
from fabric.errors import InvalidArgument, ProtocolError
from tests.unit.discovery.sample import instance

LEASE = LeaseFile(Owner("boot pid:[1] time:[2]", 42, 4711), 15.0, instance())


def changed(**facts: Any) -> bytes:
    """A lease as another version would write it: without a sum, as earlier ones."""
    whole = json.loads(encode_lease(LEASE))
    del whole["sum"]
    whole.update(facts)
    return json.dumps(whole).encode()


def changed_instance(**facts: Any) -> bytes:
    return changed(instance={**json.loads(encode_lease(LEASE))["instance"], **facts})


def test_round_trip() -> None:
    assert parse_lease(encode_lease(LEASE)) == LEASE


def test_unknown_keys_are_ignored() -> None:
    assert parse_lease(changed(format=7, colour="blue")) == LEASE
    assert parse_lease(changed_instance(shape="round")) == LEASE


def test_newer_lease_that_needs_a_newer_reader_is_refused() -> None:
    with pytest.raises(ProtocolError, match="update this side"):
        parse_lease(changed(needs=2))


def test_unknown_readiness_takes_no_work() -> None:
    assert parse_lease(changed_instance(readiness="warming")).instance.readiness is Readiness.STARTING


def test_idempotence_is_promised_by_true_alone() -> None:
    models = json.loads(encode_lease(LEASE))["instance"]["models"]
    models[0]["idempotent"] = "yes"
    assert not parse_lease(changed_instance(models=models)).instance.models[0].idempotent


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{" * 100_000,
        encode_lease(LEASE)[:-30],
        changed(ttl_s=0),
        changed(ttl_s=float("nan")),
        changed(ttl_s="soon"),
        changed(owner=[]),
        changed(needs=None),
        changed_instance(node_id=7),
        changed_instance(node_epoch="x"),
        changed_instance(models=3),
        changed_instance(models=[{"name": "etr"}]),
        changed_instance(devices=[0]),
    ],
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_lease(raw)


@given(st.integers(0, len(encode_lease(LEASE))), st.integers(0, 255))
def test_any_damaged_byte_is_refused_or_changes_nothing(at: int, value: int) -> None:
    raw = bytearray(encode_lease(LEASE) + b" ")
    raw[at] = value
    with suppress(ProtocolError):  # any other exception fails
        assert parse_lease(bytes(raw)) == LEASE


def test_a_lease_that_still_reads_but_is_not_what_its_node_wrote_is_refused() -> None:
    raw = encode_lease(LEASE)
    for right, wrong in ((b'"node_epoch": 1', b'"node_epoch": 7'), (b'"ready"', b'"draining"'), (b"15.0", b"16.0")):
        assert right in raw
        with pytest.raises(ProtocolError, match="not what its node wrote"):
            parse_lease(raw.replace(right, wrong))


@pytest.mark.parametrize(
    ("node_id", "name"), [("n-1", "n-1.lease"), ("a/../b", "a%2F..%2Fb.lease"), ("é", "%C3%A9.lease")]
)
def test_file_name_is_one_safe_word(node_id: str, name: str) -> None:
    assert file_name(node_id) == name


@pytest.mark.parametrize("node_id", ["", "x" * 201, "/" * 70])
def test_impossible_ids_are_refused(node_id: str) -> None:
    with pytest.raises(InvalidArgument):
        file_name(node_id)


def test_too_many_facts_are_refused() -> None:
    many = LeaseFile(LEASE.owner, 15.0, replace(instance(), devices=("x" * 999,) * 1100))
    with pytest.raises(InvalidArgument, match="fewer models"):
        encode_lease(many)
