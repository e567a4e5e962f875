"""Each thing that can keep RDMA away has a sentence of its own, with the command that mends it, and no other one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabric.rdma.facts import DeviceFacts, GidFacts, Host, PortFacts
from overspill.findings import Grade
from overspill.rdma_doctoring import UNLIMITED, Machine, look, rdma_findings

V2 = GidFacts(1, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2", "eth0")
V1 = GidFacts(0, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "IB/RoCE v1", "eth0")
CARD = DeviceFacts("rxe0", -1, (PortFacts(1, "ACTIVE", "Ethernet", 0, (V1, V2)),))
GOOD = Machine(
    host=Host((CARD,), device_nodes=True, usable=True, rxe_module=True),
    container=False,
    memlock_bytes=UNLIMITED,
    may_lock=False,
    soft_module=True,
    netdev="eth0",
    pinned_bytes=4 << 30,
    library="",
    user="ann",
    node_group="rdma",
)
NOTHING = Host((), device_nodes=False, usable=False, rxe_module=False)


def port(state: str, *gids: GidFacts) -> Host:
    return replace(GOOD.host, devices=(DeviceFacts("rxe0", -1, (PortFacts(1, state, "Ethernet", 0, gids),)),))


CASES = {
    "no device, soft one possible": (
        replace(GOOD, host=NOTHING),
        "rdma device",
        "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
    ),
    "no device, module loaded": (
        replace(GOOD, host=replace(NOTHING, rxe_module=True)),
        "rdma device",
        "make one: rdma link add rxe0 type rxe netdev eth0",
    ),
    "no device, no module": (replace(GOOD, host=NOTHING, soft_module=False), "rdma device", "no soft-RoCE module"),
    "no device in a container": (
        replace(GOOD, host=NOTHING, container=True),
        "rdma device",
        "--network host --device /dev/infiniband",
    ),
    "no node": (
        replace(GOOD, host=replace(GOOD.host, device_nodes=False, usable=False)),
        "rdma device",
        "modprobe ib_uverbs",
    ),
    "no node in a container": (
        replace(GOOD, host=replace(GOOD.host, device_nodes=False, usable=False), container=True),
        "rdma device",
        "--device /dev/infiniband",
    ),
    "node not ours": (
        replace(GOOD, host=replace(GOOD.host, usable=False)),
        "rdma device node",
        "usermod -aG rdma ann",
    ),
    "node of root": (
        replace(GOOD, host=replace(GOOD.host, usable=False), node_group="root"),
        "rdma device node",
        "apt install rdma-core",
    ),
    "port down": (replace(GOOD, host=port("DOWN", V2)), "rdma device", "bring its network link up"),
    "RoCE v1 only": (replace(GOOD, host=port("ACTIVE", V1)), "rdma device", "an IP address"),
    "no GID": (replace(GOOD, host=port("ACTIVE")), "rdma device", "an IP address"),
    "memlock": (replace(GOOD, memlock_bytes=8 << 20), "pinned memory", "ulimit -l unlimited"),
    "memlock in a container": (
        replace(GOOD, memlock_bytes=8 << 20, container=True),
        "pinned memory",
        "--cap-add IPC_LOCK",
    ),
    "no pyverbs": (replace(GOOD, library="apt install python3-pyverbs"), "pyverbs", "apt install python3-pyverbs"),
}


def test_a_good_machine_has_nothing_to_mend() -> None:
    assert {finding.grade for finding in rdma_findings(GOOD)} == {Grade.OK}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_its_command(case: str) -> None:
    machine, subject, mend = CASES[case]
    bad = [finding for finding in rdma_findings(machine) if finding.grade is not Grade.OK]
    assert [finding.subject for finding in bad] == [subject]
    assert mend in bad[0].sentence
    assert "\n" not in bad[0].sentence


def test_the_sentences_differ() -> None:
    """And none says that something is broken: every node can be reached without RDMA."""
    said = [
        finding.sentence
        for machine, _, _ in CASES.values()
        for finding in rdma_findings(machine)
        if finding.grade is Grade.MISSING
    ]
    assert len(said) == len(set(said)) == len(CASES)


def test_who_may_lock_has_no_limit() -> None:
    machine = replace(GOOD, memlock_bytes=8 << 20, may_lock=True)
    assert {finding.grade for finding in rdma_findings(machine)} == {Grade.OK}


def test_this_machine_can_be_looked_at() -> None:
    machine = look()
    assert machine.pinned_bytes > 0
    assert list(rdma_findings(machine))
