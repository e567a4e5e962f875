"""What is wrong between this process and Consul, found by asking, one sentence each with the mend.

It goes the way that a request of ours goes: the settings, the address, TLS, the agent, its servers, ACLs, the
datacenter, the list, each entry. The first step that fails ends it, since all later ones would fail for the same
reason. Nothing is written and each question has a deadline. This module never prints: `overspill/doctoring.py` does.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING

from discovery.agent.coordinates import parse_coordinates
from discovery.agent.faults import ConsulError, Fault
from discovery.agent.last_good import fabric_of, load, usual_place
from discovery.agent.listing import ListingReader
from discovery.agent.watch import read_listing
from discovery.consul import ConsulClient, parsed
from discovery.remark import Remark, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discovery.agent.listing import Listing
    from discovery.agent.url import ConsulSettings

ANSWER_S = 2.0
TTL_CHECKS_MAX = 800
"""Above this many TTL checks on one agent, some expired although they were renewed (hashicorp/consul, issue 6016)."""
_VARIABLES = (
    "CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_HTTP_SSL", "CONSUL_HTTP_SSL_VERIFY",
    "CONSUL_CACERT", "CONSUL_CLIENT_CERT", "CONSUL_NAMESPACE", "CONSUL_PARTITION",
)  # fmt: skip


def diagnose(settings: ConsulSettings) -> Iterator[Remark]:
    """Looks at everything. Raises ConfigError or MissingDependency where no question can even be asked."""
    client = ConsulClient(settings, ANSWER_S)
    try:
        yield from _environment(settings)
        if (agent := _agent(client, settings)).weight is Weight.BROKEN:
            yield agent
            yield from _start_without(settings)
            return
        yield agent
        yield from _servers(client, settings)
        yield from _rights(client, settings)
        yield from _entries(client, settings)
        yield from _network(client, settings)
        yield from _checks(client, settings)
    finally:
        client.close()


def _environment(settings: ConsulSettings) -> Iterator[Remark]:
    for name in _VARIABLES:
        if os.environ.get(name):
            yield Remark(
                Weight.NOTE, "environment", f"{name} is set and is not used; only the registry URL counts, put it there"
            )
    if settings.times.ttl_s < 10.0:
        yield Remark(
            Weight.NOTE,
            "settings",
            f"ttl_s={settings.times.ttl_s:g} makes workers flap when an agent stalls for some seconds; give 15 or more,"
            " a dead worker is noticed by its link long before",
        )


def _agent(client: ConsulClient, settings: ConsulSettings) -> Remark:
    """Whether an agent answers at all; its version where we may know it."""
    try:
        client.get("/v1/status/leader")
    except ConsulError as error:
        if error.fault not in {Fault.NO_LEADER, Fault.BROKEN}:
            return Remark(Weight.BROKEN, "consul", str(error))
    try:
        told = parsed(client.get("/v1/agent/self"), settings.place)
        version, name = str(told["Config"]["Version"]), str(told["Config"]["NodeName"])
    except ConsulError as error:
        if error.fault in {Fault.DENIED, Fault.ACL_UNKNOWN, Fault.NO_LEADER, Fault.BROKEN}:
            return Remark(Weight.FINE, "consul", f"{settings.place} answers")
        return Remark(Weight.BROKEN, "consul", str(error))
    except (TypeError, KeyError):
        return Remark(Weight.BROKEN, "consul", str(ConsulError(Fault.NO_CONSUL, settings.place)))
    return Remark(Weight.FINE, "consul", f"{settings.place} is agent {name} of version {version}")


def _servers(client: ConsulClient, settings: ConsulSettings) -> Iterator[Remark]:
    try:
        leader = parsed(client.get("/v1/status/leader"), settings.place)
    except ConsulError as error:
        yield Remark(Weight.BROKEN, "consul servers", str(error))
        return
    if leader:
        yield Remark(Weight.FINE, "consul servers", f"{leader} leads")
    else:
        yield Remark(Weight.BROKEN, "consul servers", str(ConsulError(Fault.NO_LEADER, settings.place)))


def _rights(client: ConsulClient, settings: ConsulSettings) -> Iterator[Remark]:
    """What the token may do, asked of Consul itself: a list that ACLs emptied looks like no list at all."""
    wanted = (
        ("service", "read", 'watch: no worker is seen; add `service_prefix "" { policy = "read" }` to its policy'),
        ("node", "read", 'watch: no worker is seen; add `node_prefix "" { policy = "read" }` to its policy'),
        ("service", "write", f'register nodes; add `service "{settings.service}" {{ policy = "write" }}` if it should'),
    )
    body = [{"Resource": resource, "Access": access, "Segment": settings.service} for resource, access, _ in wanted]
    token = f"the token of {settings.token_file}" if settings.token_file else "no token is given, so we"
    try:
        allowed = parsed(client.post("/v1/internal/acl/authorize", json.dumps(body)), settings.place)
    except ConsulError as error:
        if error.fault is Fault.NO_ACL:
            if settings.token_file:
                yield Remark(Weight.NOTE, "acl", str(error))
            return
        if error.fault in {Fault.ACL_UNKNOWN, Fault.DENIED}:
            yield Remark(Weight.BROKEN, "acl", str(error))
        return  # an agent without this question: what follows asks for the list itself
    for (_, access, lack), one in zip(wanted, allowed if isinstance(allowed, list) else (), strict=False):
        if not (isinstance(one, dict) and one.get("Allow")):
            weight = Weight.BROKEN if access == "read" else Weight.NOTE
            yield Remark(weight, "acl", f"{token} may not {lack}")


def _entries(client: ConsulClient, settings: ConsulSettings) -> Iterator[Remark]:
    params = (("dc", settings.dc),) if settings.dc else ()
    path = f"/v1/health/service/{settings.service}"
    try:
        answer = client.get(path, params)
    except ConsulError as error:
        yield Remark(Weight.BROKEN, "consul list", str(error))
        try:
            answer = client.get(path, (("cached", ""), *params))
        except ConsulError:
            return
        yield Remark(
            Weight.NOTE, "consul list",
            f"the agent still answers from its memory, {answer.age_s:.0f} s old; routers go on with that",
        )  # fmt: skip
    try:
        listing = read_listing(ListingReader(), answer, settings)
    except ConsulError as error:
        yield Remark(Weight.BROKEN, "consul list", str(error))
        return
    if answer.filtered:
        yield Remark(Weight.BROKEN, "acl", str(ConsulError(Fault.FILTERED, settings.place)))
    yield from _listed(listing, settings)


def _listed(listing: Listing, settings: ConsulSettings) -> Iterator[Remark]:
    for sentence in listing.critical:
        yield Remark(
            Weight.NOTE,
            "consul list",
            f"{sentence}; see whether that node lives (if it does, it enters itself again)",
        )
    for name in listing.unreadable:
        yield Remark(
            Weight.NOTE, "consul list",
            f"{name} is no node's entry, or is garbled, and is skipped; give others a service name of their own, or"
            f" nodes another one than {settings.service!r} with service=NAME",
        )  # fmt: skip
    for name, count in Counter(one.node_id for one in listing.instances).items():
        if count > 1:
            yield Remark(
                Weight.NOTE, "consul list",
                f"node id {name!r} is entered {count} times and the latest life counts; give each its own --node-id",
            )  # fmt: skip
    for address, count in Counter(one.rpc for one in listing.instances if one.rpc).items():
        if count > 1:
            yield Remark(
                Weight.NOTE, "consul list",
                f"{count} nodes name the address {address}; all but one are entries of nodes that are gone, which links"
                " find out, or nodes that listen on 127.0.0.1 of different hosts: give --listen an address of the host",
            )  # fmt: skip


def _network(client: ConsulClient, settings: ConsulSettings) -> Iterator[Remark]:
    try:
        told = parsed(client.get("/v1/coordinate/nodes"), settings.place)
    except ConsulError:
        return  # nothing depends on coordinates
    if not parse_coordinates(told):
        yield Remark(
            Weight.NOTE, "consul coordinates",
            "none are told (agents need 15 s to find them, and ACLs hide them without a word); routers measure anyway",
        )  # fmt: skip


def _checks(client: ConsulClient, settings: ConsulSettings) -> Iterator[Remark]:
    try:
        told = parsed(client.get("/v1/agent/checks"), settings.place)
    except ConsulError:
        return
    count = len(told) if isinstance(told, dict) else 0
    if count > TTL_CHECKS_MAX:
        yield Remark(
            Weight.NOTE, "consul",
            f"{count} checks live on this one agent, and above {TTL_CHECKS_MAX} some expire although they are renewed;"
            " run an agent on each host",
        )  # fmt: skip


def _start_without(settings: ConsulSettings) -> Iterator[Remark]:
    path = usual_place(settings)
    stale = load(path, fabric_of(settings)) if path is not None else None
    if stale is not None and stale.instances:
        workers = "one worker" if len(stale.instances) == 1 else f"{len(stale.instances)} workers"
        yield Remark(
            Weight.NOTE, "consul",
            f"callers can start without it, from {workers} of {stale.age_s:.0f} s ago in {path}",
        )  # fmt: skip
