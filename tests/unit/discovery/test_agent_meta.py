"""What an entry in Consul says: what we write is what we read, and what is not ours harms nobody."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.agent.listing import ListingReader
from discovery.agent.meta import (
    KEYS_MAX,
    VALUE_BYTES_MAX,
    check_id,
    meta_of,
    parse_meta,
    registration,
    service_id,
    status_note,
    status_word,
)
from discovery.agent.url import parse_url
from discovery.instance import CardFacts, Instance, ModelFacts, Readiness, TensorFacts
from fabric.errors import InvalidArgument, ProtocolError
from tests.unit.discovery.sample import ETR, instance

SETTINGS = parse_url("http://127.0.0.1:8500")
FULL = replace(
    instance("gpu1"),
    rdma="mlx5_0:1 fe80::1",
    rack="r7",
    cards=(CardFacts("NVIDIA H200", 141 << 30),) * 8,
    devices=tuple(f"cuda:{number}" for number in range(100)),
)


def entry(
    one: Instance, status: str = "passing", place: str = "host-1", more: tuple[dict[str, str], ...] = ()
) -> dict[str, Any]:
    """A health entry as Consul gives it, with the fields that are read and some that are not."""
    body = json.loads(registration(one, SETTINGS))
    checks = [
        {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing", "Output": "Agent alive"},
        {"CheckID": check_id(one), "Name": "heartbeat", "Status": status, "Output": "TTL expired"},
        *more,
    ]
    return {
        "Node": {"Node": place, "Address": "127.0.0.1"},
        "Service": {"ID": body["ID"], "Service": body["Name"], "Meta": body["Meta"], "ModifyIndex": 4},
        "Checks": checks,
    }


def read(*entries: object) -> tuple[Instance, ...]:
    return ListingReader().read(json.loads(json.dumps(entries))).instances


def test_round_trip() -> None:
    assert read(entry(FULL)) == (FULL,)
    assert all(len(value.encode()) <= VALUE_BYTES_MAX for value in meta_of(FULL).values())


texts = st.text(max_size=1200).filter(lambda text: text.strip() == text)


@given(
    texts.filter(bool),
    texts.filter(lambda path: "\0" not in path),
    texts,
    st.integers(0, 2**63),
    st.sampled_from(Readiness),
)
def test_any_text_survives(node: str, local: str, refused: str, epoch: int, readiness: Readiness) -> None:
    one = replace(instance(node, epoch, readiness), local=local, models=(replace(ETR, refused=refused),), rack='"odd')
    meta = meta_of(one)
    assert parse_meta(meta) == one
    assert all(len(value.encode()) <= VALUE_BYTES_MAX for value in meta.values())


def models(count: int) -> tuple[ModelFacts, ...]:
    tensors = tuple(TensorFacts(f"input_{number}", "FP32", (-1, 24)) for number in range(3))
    return tuple(
        ModelFacts(f"model_{number}", "1", idempotent=False, inputs=tensors, outputs=tensors) for number in range(count)
    )


def test_many_models_are_packed_and_too_many_refused() -> None:
    few, many = replace(instance(), models=models(20)), replace(instance(), models=models(500))
    assert "models" in meta_of(few)
    packed = meta_of(many)
    assert "packed" in packed
    assert len(packed) <= KEYS_MAX
    assert parse_meta(packed) == many
    with pytest.raises(InvalidArgument, match="fewer models"):
        # Names that do not compress.
        meta_of(
            replace(
                instance(),
                models=tuple(replace(one, name=sha256(one.name.encode()).hexdigest()) for one in models(1500)),
            )
        )


def test_a_bomb_of_compressed_models_is_refused() -> None:
    import zlib
    from base64 import b64encode

    meta = {
        **meta_of(replace(instance(), models=())),
        "packed": b64encode(zlib.compress(b"[" + b" " * (9 << 20))).decode(),
    }
    with pytest.raises(ProtocolError):
        parse_meta(meta)


@pytest.mark.parametrize(
    ("status", "more", "told", "expected"),
    [
        ("passing", "", Readiness.READY, Readiness.READY),
        ("warning", "", Readiness.READY, Readiness.DEGRADED),
        ("warning", "", Readiness.STARTING, Readiness.STARTING),
        ("passing", "_service_maintenance:a", Readiness.READY, Readiness.DRAINING),
        ("warning", "_node_maintenance", Readiness.DEGRADED, Readiness.DRAINING),
        ("passing", "", Readiness.DRAINING, Readiness.DRAINING),
        ("critical", "", Readiness.READY, None),
        ("critical", "_service_maintenance:a", Readiness.DRAINING, None),
        ("passing", "operators-own", Readiness.READY, None),
    ],
)
def test_checks_have_the_last_word(status: str, more: str, told: Readiness, expected: Readiness | None) -> None:
    extra = ({"CheckID": more, "Name": more, "Status": "critical", "Output": "down"},) if more else ()
    found = read(entry(instance("a", readiness=told), status, more=extra))
    assert [one.readiness for one in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "garbage",
    [
        {"epoch": "9" * 400}, {"epoch": "-1"}, {"epoch": str(2**64)}, {"epoch": "x"}, {"node": '"\\ud800"'},
        {"node": "\ud800"}, {"rpc": '"\\ud800:80"'}, {"rpc": '"a\\u0000:80"'}, {"local": "/tmp/\0"},
        {"rdma": '"\\u0000"'}, {"devices": '"\\udfff"'}, {"cards": '[{"model":"x","memory_bytes":-1}]'},
        {"models": json.dumps([{"name": "\ud800", "version": "1", "idempotent": True, "inputs": [], "outputs": []}])},
    ],
)  # fmt: skip
def test_values_that_would_fail_whoever_uses_them_are_garbled(garbage: dict[str, str]) -> None:
    """Half a character, a zero byte in an address, a number that no frame can carry."""
    meta = meta_of(FULL)
    del meta["sum"]  # as written by an earlier version
    assert parse_meta(meta) == FULL
    with pytest.raises(ProtocolError, match="deregister it"):
        parse_meta(meta | garbage)


@given(st.data())
def test_any_changed_character_is_refused_or_changes_nothing(data: st.DataObject) -> None:
    """Half of what can be changed in an entry leaves it an entry: another epoch, another address, another readiness."""
    meta = meta_of(FULL)
    key = data.draw(st.sampled_from(sorted(meta)))
    at = data.draw(st.integers(0, len(meta[key]) - 1))
    meta[key] = meta[key][:at] + data.draw(st.characters()) + meta[key][at + 1 :]
    with suppress(ProtocolError):
        assert parse_meta(meta) == FULL


def test_an_entry_that_was_garbled_on_its_way_keeps_its_node() -> None:
    reader = ListingReader()
    good, other = entry(instance("a")), entry(instance("b"))
    assert reader.read([good, other]).instances == (instance("a"), instance("b"))
    for spoil in (
        lambda bad: bad["Service"]["Meta"].update(epoch="7"),
        lambda bad: bad["Service"].update(Meta=None),
        lambda bad: bad.update(Checks=7),
        lambda bad: bad["Service"]["Meta"].update(needs="2"),
    ):
        bad = json.loads(json.dumps(good))
        spoil(bad)
        for _ in range(2):
            listing = reader.read([bad, other])
            assert listing.instances == (instance("a"), instance("b"))
            assert listing.unreadable == ("a on host-1",)
        assert reader.read([good, other]).unreadable == ()
    assert reader.read([other]).instances == (instance("b"),), "what is listed no longer is gone"
    assert ListingReader().read([bad, other]).instances == (instance("b"),), "who never read it knows nothing of it"


def test_one_bad_entry_poisons_nothing() -> None:
    reader = ListingReader()
    stranger = entry(instance("b"))
    stranger["Service"]["Meta"] = {"version": "1"}
    newer = entry(instance("c"))
    newer["Service"]["Meta"]["needs"] = "2"
    empty = entry(instance("d"))
    empty["Service"]["Meta"] = None
    for _ in range(2):
        listing = reader.read([entry(instance("a")), stranger, newer, empty, {}, 7, None])
        assert listing.instances == (instance("a"),)
        assert len(listing.unreadable) == 6
    assert reader.skipped == 3, "each once, not once a read"


@pytest.mark.parametrize("body", [None, {}, "x", 7])
def test_what_is_no_list_is_refused(body: object) -> None:
    with pytest.raises(ProtocolError):
        ListingReader().read(body)


def test_unknown_keys_are_ignored() -> None:
    later = entry(instance("a"))
    later["Service"]["Meta"] |= {"fabric": "9", "colour": "blue"}
    assert read(later) == (instance("a"),)


def test_only_a_heartbeat_that_is_critical_is_silence() -> None:
    beat, other = entry(FULL), entry(FULL)
    beat["Checks"] = [{"CheckID": "x", "Name": "heartbeat", "Status": "critical", "Output": "TTL expired"}]
    other["Checks"] = [{"CheckID": "x", "Name": "disk", "Status": "critical", "Output": "full"}]
    assert ListingReader().read([beat]).silent == (FULL.key,)
    assert ListingReader().read([other]).silent == ()


def test_changed_meta_is_read_again() -> None:
    reader = ListingReader()
    assert reader.read([entry(instance("a"))]).instances == (instance("a"),)
    assert reader.read([entry(FULL), entry(instance("a", 2))]).instances == (FULL, instance("a", 2))


def test_places_tell_where_each_stands() -> None:
    listing = ListingReader().read([entry(instance("a"), place="h1"), entry(instance("a", 2), place="h2")])
    assert listing.places == (("a", "h1"), ("a", "h2"))


@pytest.mark.parametrize("node_id", ["a/b", "node one", "", "x" * 200, "ü"])
def test_ids_that_consul_could_not_take_back_are_hashed(node_id: str) -> None:
    made = service_id(node_id)
    assert made.replace("-", "").isalnum()
    assert len(made) < 64
    assert made != service_id(node_id + "x")


def test_a_plain_id_stays_readable() -> None:
    assert service_id("gpu-1") == "gpu-1"
    assert check_id(instance("gpu-1", 42)) == "gpu-1-42"


def test_registration_is_what_consul_takes() -> None:
    body = json.loads(registration(replace(instance(), rpc="[::1]:7000"), SETTINGS))
    assert (body["Name"], body["Address"], body["Port"]) == ("overspill", "::1", 7000)
    assert body["Checks"] == [
        {
            "CheckID": "a-1",
            "Name": "heartbeat",
            "TTL": "15s",
            "Status": "passing",
            "DeregisterCriticalServiceAfter": "600s",
        }
    ]
    assert json.loads(registration(replace(instance(), rpc=""), SETTINGS))["Port"] == 0


def test_rdma_down_while_rpc_works_is_a_warning() -> None:
    degraded = instance(readiness=Readiness.DEGRADED)
    assert status_word(degraded) == "warn"
    assert "degraded" in status_note(degraded)
    assert status_word(instance()) == "pass"
    assert status_note(instance()) == ""
