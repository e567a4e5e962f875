"""What the two ends tell each other before they connect, and what follows from it.

Both ends send the same record, the caller as its offer, the node as its answer, over a call that is authenticated by
the wire that carries it. It is packed with fixed places and a checksum, so that garbage cannot be half understood.
Where the ends differ, the smaller limit counts; what cannot be bridged is refused in one sentence. Keys and numbers of
queue pairs stand here and nowhere else: never in a log, a trace or a registry. Read `fabric/rdma/connection.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import NamedTuple
from zlib import crc32

from fabric.errors import ProtocolError, StaleEpoch, Unavailable, VersionMismatch
from fabric.rdma.choice import gid_text
from fabric.rdma.heads import (
    REGION,
    REGION_BYTES_MAX,
    UNIT_BYTES,
    VERSION,
    VERSION_OLDEST,
    RegionNote,
    pack_region,
    read_region,
)

_MAGIC = b"OVRB"
_FORMAT = struct.Struct("<4sBBBBBBHQIIIIIHHI16sQ")
_CHECK = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
_NAME_MAX = 255
_LATER_BYTES_MAX = 512
"""What a later version may put behind the name: one that does not know it leaves it unread."""
MESSAGE_BYTES_MAX = _FORMAT.size + 2 * REGION.size + _LENGTH.size + _NAME_MAX + _LATER_BYTES_MAX + _CHECK.size
_LAYERS = ("Ethernet", "InfiniBand")
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


class PairNote(NamedTuple):
    """A queue pair as the peer must know it: its number, and the first packet number that it sends."""

    qp_num: int
    psn: int


@dataclass(frozen=True, slots=True)
class Terms:
    """One end. `mtu` is the verbs code; `region` is where the peer writes; `page` is the load page, of 0 bytes where
    there is none. `node_id` is empty in an offer, whose `node_epoch` is the one that it expects (0 takes any)."""

    version_oldest: int
    version_newest: int
    node_id: str
    node_epoch: int
    link_epoch: int
    link_layer: str
    lid: int
    gid: str
    mtu: int
    read_depth: int
    ctl: PairNote
    bulk: PairNote
    ctl_depth: int
    bulk_depth: int
    frame_room: int
    nonce: int
    region: RegionNote
    page: RegionNote


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both ends keep to."""

    version: int
    mtu: int
    read_depth: int
    ctl_depth: int
    bulk_depth: int
    frame_room: int


def pack_terms(terms: Terms) -> bytes:
    """The record as it travels."""
    name = terms.node_id.encode()[:_NAME_MAX]
    fixed = _FORMAT.pack(
        _MAGIC, terms.version_oldest, terms.version_newest, _LAYERS.index(terms.link_layer), terms.mtu,
        terms.read_depth, 0, terms.lid, terms.node_epoch, terms.link_epoch,
        terms.ctl.qp_num, terms.ctl.psn, terms.bulk.qp_num, terms.bulk.psn, terms.ctl_depth, terms.bulk_depth,
        terms.frame_room, IPv6Address(terms.gid).packed, terms.nonce,
    )  # fmt: skip
    regions = pack_region(terms.region) + pack_region(terms.page)
    plain = b"".join((fixed, regions, _LENGTH.pack(len(name)), name))
    return plain + _CHECK.pack(crc32(plain))


def read_terms(message: bytes) -> Terms:
    """Reads a record. Raises ProtocolError when it is none, or says what cannot be."""
    page_at = _FORMAT.size + REGION.size
    length_at = page_at + REGION.size
    name_at = length_at + _LENGTH.size
    if not name_at + _CHECK.size <= len(message) <= MESSAGE_BYTES_MAX or message[:4] != _MAGIC:
        raise ProtocolError("what came is no record of RDMA terms; the peer must speak our protocol")
    (check,) = _CHECK.unpack_from(message, len(message) - _CHECK.size)
    (name_bytes,) = _LENGTH.unpack_from(message, length_at)
    if crc32(message[: -_CHECK.size]) != check or name_at + name_bytes + _CHECK.size > len(message):
        raise ProtocolError("a record of RDMA terms is garbled; the peer must send it whole")
    (
        _, oldest, newest, layer, mtu, read_depth, _, lid, node_epoch, link_epoch, ctl_num, ctl_psn, bulk_num, bulk_psn,
        ctl_depth, bulk_depth, frame_room, gid, nonce,
    ) = _FORMAT.unpack_from(message)  # fmt: skip
    sound = (
        layer < len(_LAYERS) and mtu in _MTU_BYTES and 1 <= read_depth <= 128
        and max(ctl_num, ctl_psn, bulk_num, bulk_psn) < 1 << 24
        and 8 <= ctl_depth <= 1024 and 8 <= bulk_depth <= 1024 and 1024 <= frame_room <= 1 << 20
        and frame_room % UNIT_BYTES == 0
    )  # fmt: skip
    if not sound:
        raise ProtocolError("a record of RDMA terms has numbers that cannot be; the peer must correct them")
    region = read_region(message[_FORMAT.size : page_at])
    page = RegionNote(*REGION.unpack_from(message, page_at))
    if page.nbytes > REGION_BYTES_MAX or page.base + page.nbytes >= 1 << 64:
        raise ProtocolError("a load page that cannot be was offered; the peer must correct it")
    try:
        name = message[name_at : name_at + name_bytes].decode()
    except UnicodeDecodeError:
        raise ProtocolError("a record of RDMA terms has a name that is no text; the peer must correct it") from None
    return Terms(
        oldest, newest, name, node_epoch, link_epoch, _LAYERS[layer], lid, gid_text(str(IPv6Address(gid))), mtu,
        read_depth, PairNote(ctl_num, ctl_psn), PairNote(bulk_num, bulk_psn), ctl_depth, bulk_depth, frame_room, nonce,
        region, page,
    )  # fmt: skip


def agree(ours: Terms, theirs: Terms) -> Agreed:
    """What both ends can keep to. Raises VersionMismatch or Unavailable where nothing can be agreed."""
    version = min(ours.version_newest, theirs.version_newest)
    if version < max(ours.version_oldest, theirs.version_oldest):
        raise VersionMismatch(
            f"one end speaks versions {theirs.version_oldest} to {theirs.version_newest} of the rdma wire, the other"
            f" {ours.version_oldest} to {ours.version_newest}; update the older side"
        )
    if ours.link_layer != theirs.link_layer:
        raise Unavailable(
            f"one end has {theirs.link_layer}, the other {ours.link_layer}; RDMA needs the same on both, so use rpc"
        )
    if _is_v4(ours.gid) != _is_v4(theirs.gid) and ours.link_layer == _LAYERS[0]:
        raise Unavailable("one end has an IPv4 address for RDMA, the other IPv6; give both the same kind, or gid_index")
    return Agreed(
        version,
        min(ours.mtu, theirs.mtu),
        min(ours.read_depth, theirs.read_depth),
        min(ours.ctl_depth, theirs.ctl_depth),
        min(ours.bulk_depth, theirs.bulk_depth),
        1 << (min(ours.frame_room, theirs.frame_room).bit_length() - 1),  # messages are padded to a power of two
    )


def check_life(theirs: Terms, node_id: str, node_epoch: int) -> None:
    """Whether an offer means this life of this node. Raises StaleEpoch."""
    if theirs.node_epoch not in {0, node_epoch}:
        raise StaleEpoch(
            f"node {node_id} lives its epoch {node_epoch}, not {theirs.node_epoch}; read the registry again"
        )


def mtu_bytes(code: int) -> int:
    """Bytes of a verbs MTU code."""
    return _MTU_BYTES[code]


def own_versions() -> tuple[int, int]:
    """(oldest, newest) version of the rdma wire that we speak."""
    return VERSION_OLDEST, VERSION


def _is_v4(gid: str) -> bool:
    return IPv6Address(gid).ipv4_mapped is not None
