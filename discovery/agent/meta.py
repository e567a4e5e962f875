"""What a Consul entry says of a node: the registration that we write, and the health answer that we read.

Facts travel in the service's Meta, versioned: `fabric` is the writer's format, `needs` the oldest reader that
understands it. Consul takes 64 keys of 512 bytes, so a longer value goes on in `KEY-1`, `KEY-2` …, and models that do
not fit are compressed. Unknown keys are ignored; an entry that does not read is skipped and counted, and never
poisons the list. Checks have the last word on readiness: maintenance means draining, a warning degraded, critical not
there. Addresses come from Meta alone; Consul's own Address and Port are for its DNS. This module never talks to an
agent. Read `discovery/agent/follower.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

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
        if len(meta) + len(models) > KEYS_MAX:
            models = _pieces("packed", b64encode(zlib.compress(told.encode(), 9)).decode())
        meta.update(models)
    if len(meta) > KEYS_MAX:
        raise InvalidArgument(
            f"the facts of node {instance.node_id!r} take {len(meta)} keys of 512 bytes, and Consul holds {KEYS_MAX};"
            " offer fewer models from this node"
        )
    return meta


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


@dataclass(frozen=True, slots=True)
class Listing:
    """One health answer: who is there, on which Consul node each stands, and what was left out."""

    instances: tuple[Instance, ...]
    places: tuple[tuple[str, str], ...]
    """(node id, name of the Consul node whose agent holds it) of each instance."""
    critical: tuple[str, ...]
    """Entries that a critical check keeps out, each as a sentence."""
    unreadable: tuple[str, ...]
    """Ids of entries that are none of ours, or are garbled."""
    silent: tuple[tuple[str, int], ...] = ()
    """(node id, epoch) of those whose heartbeat alone keeps them out: an agent that stalls hears nobody."""


class ListingReader:  # mutable: remembers what it has read, so that a long list in motion is cheap
    """Reads health answers. An entry whose Meta did not change is not parsed again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[dict[str, str], Instance | None]] = {}
        self.skipped = 0

    def read(self, entries: Any) -> Listing:  # parsed JSON is anything until this has read it
        """Reads the parsed body of /v1/health/service. Raises ProtocolError where it is no list."""
        if not isinstance(entries, list):
            raise ProtocolError("Consul's health answer is no list; see whether a proxy stands between")
        seen: dict[tuple[str, str], tuple[dict[str, str], Instance | None]] = {}
        instances: list[Instance] = []
        places: list[tuple[str, str]] = []
        critical: list[str] = []
        unreadable: list[str] = []
        silent: list[tuple[str, int]] = []
        for entry in entries:
            try:
                place, service = str(entry["Node"]["Node"]), entry["Service"]
                key = place, str(service["ID"])
                instance = self._instance(key, service["Meta"] or {})
                seen[key] = self._seen[key]
                word = _verdict(entry["Checks"]) if instance is not None else ""
            except UNREADABLE:
                unreadable.append("an entry without node, service or checks")
                continue
            if instance is None:
                unreadable.append(f"{key[1]} on {place}")
            elif word.startswith("critical"):
                critical.append(f"{instance.node_id} on {place} is {word}")
                if word.startswith(f"critical: {HEARTBEAT}:"):
                    silent.append(instance.key)
            else:
                instances.append(_as_told(instance, word))
                places.append((instance.node_id, place))
        self._seen = seen
        return Listing(tuple(instances), tuple(places), tuple(critical), tuple(unreadable), tuple(silent))

    def _instance(self, key: tuple[str, str], meta: dict[str, str]) -> Instance | None:
        before = self._seen.get(key)
        if before is not None and before[0] == meta:
            return before[1]
        try:
            instance: Instance | None = parse_meta(meta)
        except ProtocolError:
            instance = None
            self.skipped += 1
        self._seen[key] = meta, instance
        return instance


def _verdict(checks: Any) -> str:  # parsed JSON is anything until this has read it
    """The word of all checks together: critical and why, maintenance, warning or passing."""
    word = "passing"
    for check in checks:
        status = check["Status"]
        if status == "passing":
            continue
        if str(check["CheckID"]).startswith(MAINTENANCE):
            word = "maintenance"
        elif status == "critical":
            return f"critical: {check['Name']}: {str(check['Output'])[:80] or 'no reason given'}"
        elif word == "passing":
            word = "warning"
    return word


def _as_told(instance: Instance, word: str) -> Instance:
    if word == "maintenance" and instance.readiness is not Readiness.DRAINING:
        return replace(instance, readiness=Readiness.DRAINING)
    if word == "warning" and instance.readiness is Readiness.READY:
        return replace(instance, readiness=Readiness.DEGRADED)
    return instance
