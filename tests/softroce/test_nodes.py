"""A real node in one guest and a real router in the other: rdma is taken, left when it breaks, and taken again.

What is asked and how it is checked stands in `tests/softroce/cuts.py`.
"""

from __future__ import annotations

import random
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.deadline import Deadline
from fabric.load_page import model_key
from overspill import Router
from tests.softroce.cuts import (
    CALL_S,
    CONFIG,
    REGISTRY,
    Load,
    Moments,
    Node,
    both_open,
    fell_back,
    links,
    on_rdma,
    report,
    stories,
    until,
)
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.guests(2),
    pytest.mark.timeout(400),
    pytest.mark.leaks("closed routers' memory goes with their last connection, seconds later on an emulated CPU"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moments]:
    made = Moments(monkeypatch)
    yield made
    made.end()


@pytest.mark.parametrize("wires", ["rdma,rpc", pytest.param("rdma", marks=pytest.mark.long)])
def test_a_call_that_names_rdma_is_answered_over_it(node: Node, wires: str) -> None:
    np.savez("/tmp/in.npz", x=np.arange(100, dtype=np.int64))
    words = ["call", "counted", "--registry", REGISTRY, "--input", "/tmp/in.npz", "--output", "/tmp/out.npz"]
    call = here.Process(0, "overspill", *words, "--timeout-s", "60", "--wires", wires)
    assert call.said(" over rdma, attempts 1", 100.0), "another wire answered, or none"
    assert call.wait(30.0) == 0
    with np.load("/tmp/out.npz") as answer:
        assert np.array_equal(answer["y"][1:], 2 * np.arange(1, 100))


def test_a_reply_tells_that_it_came_over_rdma(node: Node) -> None:
    """A small one and a large one, and the node's load page is read by the NIC."""
    with Router.connect(REGISTRY, config=CONFIG) as router:

        def wire_of(size: int) -> str:
            x = np.arange(time.monotonic_ns(), time.monotonic_ns() + size, dtype=np.int64)[:size]
            with router.infer("counted", {"x": x}, timeout_s=CALL_S) as reply:
                assert np.array_equal(reply["y"][1:], 2 * x[1:])
                return str(reply.trace.wire)

        until(lambda: wire_of(100) == "rdma", "rdma was not taken")
        assert wire_of(100_000) == "rdma"
        (link,) = links()
        reading = link.read_page(Deadline.after(CALL_S, time.monotonic()))
        assert reading.load.accepted >= 2
        assert reading.load.executors == 1
        assert model_key("counted") in {model.key for model in reading.models}


@pytest.mark.parametrize("cuts", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_rdma_is_cut_under_load_at_random_moments(node: Node, noted: Moments, cuts: int) -> None:
    """Its cable alone: requests go on over rpc, none is lost, wrong or run twice, and rdma is taken again."""
    moments, cuts_s, told = random.Random(20_260), list[float](), list[str]()
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            for _ in range(cuts):
                until(lambda: on_rdma(load), "rdma was not taken")
                time.sleep(moments.uniform(0.0, 1.0))
                until(both_open, "rpc does not stand by")
                cut_s = time.monotonic()
                here.cable(0, up=False)
                until(partial(fell_back, load, cut_s), "nothing was answered over rpc")
                told.append(stories())
                here.cable(0, up=True)
                cuts_s.append(cut_s)
            until(lambda: on_rdma(load), "rdma was not taken again")
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]
    report(load, cuts_s, told, noted)


@pytest.mark.long
def test_a_port_is_up_before_its_path(node: Node) -> None:
    """Its cable is plugged in again, and for seconds nothing passes: rdma is taken again when it carries something."""
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            until(lambda: on_rdma(load), "rdma was not taken")
            cut_s = time.monotonic()
            here.cable(0, up=False)
            until(partial(fell_back, load, cut_s), "nothing was answered over rpc")
            here.run(0, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%", "limit", "100000")
            here.cable(0, up=True)
            time.sleep(3.0)
            assert not on_rdma(load)
            here.run(0, "tc", "qdisc", "del", "dev", "eth0", "root")
            until(lambda: on_rdma(load), "rdma was not taken again")
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]


@pytest.mark.long
def test_acknowledgements_alone_are_lost(node: Node) -> None:
    """What the node sends over its RDMA card is dropped: requests arrive and run, and nobody there hears of it."""
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            until(lambda: on_rdma(load), "rdma was not taken")
            cut_s = time.monotonic()
            here.run(1, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%", "limit", "100000")
            until(partial(fell_back, load, cut_s), "nothing was answered over rpc")
            here.run(1, "tc", "qdisc", "del", "dev", "eth0", "root")
            until(lambda: on_rdma(load), "rdma was not taken again")
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]


@pytest.mark.long
def test_a_flapping_cable_changes_the_wire_seldom(node: Node) -> None:
    """Once a second for 30 s: at most one change of the wire in 5 s, and nothing lost."""
    with Router.connect(REGISTRY, config=CONFIG) as router:
        load = Load(router)
        try:
            until(lambda: on_rdma(load), "rdma was not taken")
            (link,) = links()
            began_s, before = time.monotonic(), link.statistics().changes
            for _ in range(15):
                here.cable(0, up=False)
                time.sleep(1.0)
                here.cable(0, up=True)
                time.sleep(1.0)
            wires, changes = load.since(began_s), link.statistics().changes - before
        finally:
            load.stop()
    assert not load.wrong, load.wrong[:5]
    assert len(wires) > 20, "nothing was asked meanwhile"
    assert "rpc" in wires
    assert changes <= 30.0 / 5.0, "at most one change of the wire in 5 s"
    sys.stdout.write(f"30 s of a flapping cable: {changes} changes of the wire, {len(wires)} answers\n")
