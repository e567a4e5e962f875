"""Heads, places and terms: what is packed is read again, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from zlib import crc32

import pytest

from fabric.errors import OverspillError, ProtocolError, StaleEpoch, Unavailable, VersionMismatch
from fabric.rdma.heads import (
    FRAMES_BYTES_MIN,
    HEAD_BYTES,
    HELLO_PLACE,
    NO_REGION,
    Head,
    HeadKind,
    RegionNote,
    pack_head,
    pack_place,
    pack_region,
    read_head,
    read_place,
    read_region,
    same_region,
)
from fabric.rdma.terms import MESSAGE_BYTES_MAX, PairNote, Terms, agree, check_life, pack_terms, read_terms

HEAD = Head(HeadKind.FRAME, 1, 7, 0xDEAD_BEEF, 9, 5, 6, 0xFFFF_FFFF)
REGION = RegionNote(3, 1 << 40, 4 << 20, 77, 0, 2 << 20, 2 << 20)
TERMS = Terms(
    1, 1, "node-é", 12, 34, "Ethernet", 0, "0000:0000:0000:0000:0000:ffff:0a4d:0001", 3, 16, PairNote(17, 1),
    PairNote(18, 2), 32, 32, 4096, 99, REGION, NO_REGION,
)  # fmt: skip
OFFER = replace(TERMS, node_id="", node_epoch=0)


def test_a_head_is_read_as_it_was_packed() -> None:
    raw = pack_head(HEAD, 1)
    assert len(raw) == HEAD_BYTES
    assert read_head(raw + b"more", HEAD.epoch, 1) == HEAD


def test_a_head_of_another_epoch_or_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="epoch"):
        read_head(pack_head(HEAD, 1), HEAD.epoch + 1, 1)
    with pytest.raises(ProtocolError, match="version 3 came on a connection of version 2"):
        read_head(pack_head(HEAD, 3), HEAD.epoch, 2)


def test_every_flipped_bit_of_a_head_is_seen() -> None:
    raw = pack_head(HEAD, 1)
    for bit in range(len(raw) * 8):
        spoilt = bytearray(raw)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            read_head(bytes(spoilt), HEAD.epoch, 1)


@pytest.mark.parametrize("offset", [0, 64, 4096, (1 << 31) - 64])
@pytest.mark.parametrize("region", [0, 1, 127])
def test_a_place_is_read_as_it_was_packed(region: int, offset: int) -> None:
    assert read_place(pack_place(region, offset)) == (region, offset)


def test_regions_are_known_by_their_last_bits() -> None:
    told, _ = read_place(pack_place(300, 0))
    assert same_region(told, 300)
    assert not same_region(told, 301)


def test_no_region_reaches_the_greetings_place() -> None:
    # 127 regions later the last unit would be it: a frame of 32 bytes and more cannot begin in the last unit.
    assert read_place(HELLO_PLACE) == (127, (1 << 31) - 64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nbytes": 0},
        {"nbytes": 1 << 40},
        {"base": (1 << 64) - 1},
        {"window_at": 4 << 20},
        {"window_bytes": 3 << 20},
        {"window_at": 1},
        {"frames_at": (4 << 20) - FRAMES_BYTES_MIN + 64},
    ],
)
def test_a_region_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    assert read_region(pack_region(REGION)) == REGION
    with pytest.raises(ProtocolError):
        read_region(pack_region(REGION._replace(**wrong)))


def test_terms_are_read_as_they_were_packed() -> None:
    assert read_terms(pack_terms(TERMS)) == TERMS
    assert len(pack_terms(replace(TERMS, node_id="n" * 300))) <= MESSAGE_BYTES_MAX


def test_what_a_later_version_adds_is_left_unread() -> None:
    plain = pack_terms(TERMS)[:-4] + bytes(range(200))
    assert read_terms(plain + crc32(plain).to_bytes(4, "little")) == TERMS
    longer = pack_terms(TERMS)[:-4] + bytes(MESSAGE_BYTES_MAX)
    with pytest.raises(ProtocolError):
        read_terms(longer + crc32(longer).to_bytes(4, "little"))


def test_ten_thousand_mutated_terms_raise_nothing_but_our_error() -> None:
    random, raw = Random(7), pack_terms(TERMS)
    for _ in range(10_000):
        spoilt = bytearray(raw)
        for _ in range(random.randint(1, 4)):
            spoilt[random.randrange(len(spoilt))] = random.randrange(256)
        cut = spoilt[: random.randint(0, len(spoilt))] if random.random() < 0.3 else spoilt
        try:
            read = read_terms(bytes(cut))
        except OverspillError:
            continue
        assert read == TERMS, "a mutation was taken for the truth"


def test_the_smaller_limit_counts() -> None:
    agreed = agree(TERMS, replace(OFFER, mtu=5, read_depth=1, ctl_depth=16, frame_room=8192))
    assert (agreed.mtu, agreed.read_depth, agreed.ctl_depth, agreed.bulk_depth, agreed.frame_room) == (
        3,
        1,
        16,
        32,
        4096,
    )
    assert agree(TERMS, replace(OFFER, frame_room=1536)).frame_room == 1024, "messages are padded to a power of two"


def test_a_room_that_frames_could_not_begin_at_is_garbage() -> None:
    with pytest.raises(ProtocolError, match="cannot be"):
        read_terms(pack_terms(replace(TERMS, frame_room=2000)))


def test_what_cannot_be_bridged_is_refused() -> None:
    with pytest.raises(VersionMismatch):
        agree(TERMS, replace(OFFER, version_oldest=2, version_newest=3))
    with pytest.raises(Unavailable, match="InfiniBand"):
        agree(TERMS, replace(OFFER, link_layer="InfiniBand"))
    with pytest.raises(Unavailable, match="IPv6"):
        agree(TERMS, replace(OFFER, gid="2001:0db8:0000:0000:0000:0000:0000:0001"))
    assert agree(TERMS, replace(OFFER, version_newest=9)).version == 1


def test_an_offer_to_another_life_is_stale() -> None:
    check_life(OFFER, "a", 12)
    check_life(replace(OFFER, node_epoch=12), "a", 12)
    with pytest.raises(StaleEpoch):
        check_life(replace(OFFER, node_epoch=11), "a", 12)
