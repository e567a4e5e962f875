"""What a Consul entry says of a node: the registration that we write, and the Meta of it that we read.

Facts travel in the service's Meta, versioned: `fabric` is the writer's format, `needs` the oldest reader that
understands it, `sum` a sum over the rest. Consul takes 64 keys of 512 bytes, so a longer value goes on in `KEY-1`,
`KEY-2` …, and models that do not fit are compressed. Unknown keys are ignored. Addresses come from Meta alone; Consul's
own Address and Port are for its DNS. This module never talks to an agent. Read `discovery/agent/listing.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

from discovery.facts import (
    UNREADABLE,
    cards_facts,
    models_facts,
    parse_address,
    parse_cards,
    parse_epoch,
    parse_models,
    parse_readiness,
    text,
)
from discovery.instance import Instance, Readiness
from fabric.errors import InvalidArgument, ProtocolError

if TYPE_CHECKING:
    from discovery.agent.url import ConsulSettings

FORMAT = 1
VALUE_BYTES_MAX = 512
KEYS_MAX = 64
"""Both are Consul's own limits (its documentation of services, and measured)."""
_UNPACKED_BYTES_MAX = 1 << 20
_SAFE_ID = re.compile(r"[A-Za-z0-9-]{1,128}")
_SUMMED = {
    "needs", "epoch", "readiness", "tls", "node", "host", "local", "rpc", "rdma", "rack", "devices", "cards", "models",
    "packed",
}  # fmt: skip
HEARTBEAT = "heartbeat"
"""Name of our check."""
MAINTENANCE = ("_service_maintenance", "_node_maintenance")


def service_id(node_id: str) -> str:
    """The entry's id: the node's own where Consul can take it back out again, else a hash of it (one with "/" can be
    registered and never deregistered)."""
    if _SAFE_ID.fullmatch(node_id):
        return node_id
    return f"node-{sha256(node_id.encode()).hexdigest()[:24]}"


def check_id(instance: Instance) -> str:
    """The check's id holds the epoch, so that an old life's heartbeat never keeps a new life's check alive."""
    return f"{service_id(instance.node_id)}-{instance.node_epoch}"


def registration(instance: Instance, settings: ConsulSettings) -> str:
    """The body of a registration. Raises InvalidArgument for facts that do not fit."""
    host, _, port = instance.rpc.rpartition(":")
    times = settings.times
    # A dict of our own: py-consul's TTL check cannot say when an entry is to be reaped.
    check = {
        "CheckID": check_id(instance),
        "Name": HEARTBEAT,
        "TTL": f"{times.ttl_s:g}s",
        "Status": "passing" if status_word(instance) == "pass" else "warning",
        "DeregisterCriticalServiceAfter": f"{times.reap_s:g}s",
    }
    whole = {
        "Name": settings.service,
        "ID": service_id(instance.node_id),
        "Address": host.strip("[]"),
        "Port": int(port) if port else 0,
        "Meta": meta_of(instance),
        "Checks": [check],
    }
    return json.dumps(whole)


def status_word(instance: Instance) -> str:
    """What the heartbeat says: `warn` for a node that is not whole, such as one whose rdma is down while rpc works."""
    return "warn" if instance.readiness in {Readiness.DEGRADED, Readiness.STARTING} else "pass"


def status_note(instance: Instance) -> str:
    """The heartbeat's note for people; constant, since Consul stores each new one."""
    return f"{instance.readiness.value}: see the node's log" if status_word(instance) == "warn" else ""


def meta_of(instance: Instance) -> dict[str, str]:
    """The facts as Meta. Raises InvalidArgument."""
    meta: dict[str, str] = {
        "fabric": str(FORMAT),
        "needs": "1",
        "epoch": str(instance.node_epoch),
        "readiness": instance.readiness.value,
        "tls": str(int(instance.rpc_tls)),
    }
    cards = cards_facts(instance.cards)
    texts = {
        "node": instance.node_id, "host": instance.host_id, "local": instance.local, "rpc": instance.rpc,
        "rdma": instance.rdma, "rack": instance.rack, "devices": ",".join(instance.devices),
        "cards": _json(cards) if cards else "",
    }  # fmt: skip
    for key, value in texts.items():
        if value:
            meta.update(_pieces(key, value))
    if instance.models:
        told = _json(models_facts(instance.models))
        models = _pieces("models", told)
        if len(meta) + len(models) + 1 > KEYS_MAX:  # the sum comes behind
            models = _pieces("packed", b64encode(zlib.compress(told.encode(), 9)).decode())
        meta.update(models)
    meta["sum"] = _sum_of(meta)
    if len(meta) > KEYS_MAX:
        raise InvalidArgument(
            f"the facts of node {instance.node_id!r} take {len(meta)} keys of 512 bytes, and Consul holds {KEYS_MAX};"
            " offer fewer models from this node"
        )
    return meta


def _sum_of(meta: dict[str, str]) -> str:
    """A sum over what this format tells, so that an entry that was changed on its way and still reads is not believed.
    What others add to an entry is not in it."""
    told = sorted(item for item in meta.items() if item[0].partition("-")[0] in _SUMMED)
    return f"{zlib.crc32(repr(told).encode('utf-8', 'surrogatepass')):08x}"


def _json(facts: object) -> str:
    return json.dumps(facts, separators=(",", ":"))


def _pieces(key: str, told: str) -> dict[str, str]:
    if not told.isascii() or told.startswith('"'):
        told = json.dumps(told)  # its pieces must end between characters
    step = VALUE_BYTES_MAX
    parts = [told[at : at + step] for at in range(0, len(told), step)]
    return {f"{key}-{number}" if number else key: part for number, part in enumerate(parts)}


def _joined(meta: dict[str, str], key: str) -> str:
    first = meta.get(key, "")
    if len(first) < VALUE_BYTES_MAX:
        return _plain(first)
    parts, number = [first], 1
    while part := meta.get(f"{key}-{number}"):
        parts.append(part)
        number += 1
    return _plain("".join(parts))


def _plain(told: str) -> str:
    return text(json.loads(told) if told.startswith('"') else told)


def parse_meta(meta: dict[str, str]) -> Instance:
    """Reads Meta. Raises ProtocolError for what is no entry of a node that this version understands."""
    try:
        if not 1 <= int(meta["needs"]) <= FORMAT:
            raise ProtocolError(
                f"an entry needs a reader of format {meta['needs']}, this is {FORMAT}; update this side"
            )
        told = _sum_of(meta)
        if meta.get("sum", told) != told:  # entries of earlier versions have none
            raise ValueError("it is not what its node wrote")
        models = _joined(meta, "models")
        if packed := _joined(meta, "packed"):
            models = zlib.decompressobj().decompress(b64decode(packed, validate=True), _UNPACKED_BYTES_MAX).decode()
        devices = _joined(meta, "devices")
        cards = _joined(meta, "cards")
        node_id = _joined(meta, "node")
        if not node_id:
            raise ValueError("no node id")
        return Instance(
            node_id=node_id,
            node_epoch=parse_epoch(meta["epoch"]),
            host_id=_joined(meta, "host"),
            readiness=parse_readiness(meta["readiness"]),
            local=parse_address(_joined(meta, "local")),
            rpc=parse_address(_joined(meta, "rpc")),
            rpc_tls=meta["tls"] == "1",
            devices=tuple(devices.split(",")) if devices else (),
            models=parse_models(json.loads(models)) if models else (),
            rdma=parse_address(_joined(meta, "rdma")),
            rack=_joined(meta, "rack"),
            cards=parse_cards(json.loads(cards)) if cards else (),
        )
    except (*UNREADABLE, zlib.error) as error:
        raise ProtocolError(f"an entry's Meta is garbled ({type(error).__name__}); deregister it") from None
