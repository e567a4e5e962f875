"""What the price does to traffic, in simulated time: spill, unequal speeds, exploring, and a node that turns slow."""

from __future__ import annotations

import pytest

from fabric.transport import WireName
from tests.unit.router.fleet import NamedLink, instance
from tests.unit.router.town import Node, Town, shares

MS = 0.001


def test_alone_everything_stays_near_and_under_load_it_spills_by_what_each_can_carry() -> None:
    town = Town(near=Node(10 * MS, 0.05 * MS, 1), far=Node(10 * MS, 2 * MS, 2))
    town.run(1, 50)
    assert shares(town.run(1, 200))["near"] > 0.9
    crowd = shares(town.run(9, 900))
    assert crowd["far"] == pytest.approx(2 / 3, abs=0.08)


def test_a_slow_wire_keeps_work_near_without_any_threshold() -> None:
    for wire_ms, least, most in ((0.2, 0.40, 0.55), (40.0, 0.0, 0.30)):
        town = Town(near=Node(10 * MS, 0.05 * MS, 1), far=Node(10 * MS, wire_ms * MS, 1))
        town.run(2, 100)
        assert least <= shares(town.run(2, 400)).get("far", 0.0) <= most


def test_work_is_shared_by_measured_speed() -> None:
    town = Town(slow=Node(40 * MS, MS, 1), middle=Node(20 * MS, MS, 1), fast=Node(10 * MS, MS, 1))
    town.run(10, 200)
    found = shares(town.run(10, 1400))
    assert found["slow"] == pytest.approx(1 / 7, abs=0.05)
    assert found["middle"] == pytest.approx(2 / 7, abs=0.06)
    assert found["fast"] == pytest.approx(4 / 7, abs=0.07)


def test_a_node_that_nobody_tried_is_tried_and_used_if_it_is_better() -> None:
    town = Town(near=Node(20 * MS, 0.05 * MS, 1))
    town.run(1, 100)
    town.nodes["new"] = Node(2 * MS, MS, 1)
    town.add(instance("new"))
    town.run(1, 600, pause_s=10 * MS)
    assert shares(town.run(1, 100))["new"] > 0.9


def test_a_node_that_nobody_tried_is_tried_and_left_if_it_is_worse() -> None:
    town = Town(near=Node(2 * MS, 0.05 * MS, 1))
    town.run(1, 100)
    town.nodes["new"] = Node(200 * MS, MS, 1)
    town.add(instance("new"))
    found = shares(town.run(1, 3000, pause_s=10 * MS))
    assert 0.0 < found["new"] < 0.01


@pytest.mark.parametrize("callers", [1, 6], ids=["no queue tells it", "in a crowd"])
def test_a_node_that_turns_ten_times_slower_loses_its_share_within_twenty_requests(callers: int) -> None:
    town = Town(a=Node(5 * MS, MS, 1), b=Node(5 * MS, MS, 1), c=Node(5 * MS, MS, 1))
    town.run(callers, 300)
    town.nodes["a"].service_s = 50 * MS
    town.run(callers, 20)
    fair = (1 / 50) / (1 / 50 + 1 / 5 + 1 / 5)
    assert shares(town.run(callers, 400)).get("a", 0.0) < 2 * fair


def test_a_node_that_was_ten_times_slower_and_is_not_any_more_has_its_share_again_soon() -> None:
    town = Town(a=Node(5 * MS, MS, 1), b=Node(5 * MS, MS, 1), c=Node(5 * MS, MS, 1))
    town.run(6, 300)
    town.nodes["a"].service_s = 50 * MS
    town.run(6, 400)
    town.nodes["a"].service_s = 5 * MS
    mended_s = town.now
    while town.now < mended_s + 15.0:
        town.run(2, 200, pause_s=5 * MS)
    assert shares(town.run(6, 400))["a"] > 0.25


def test_lockstep_waves_of_equal_requests_spread_evenly() -> None:
    """800 equal requests in ten waves over eight nodes: no node gets much more than its part of any wave."""
    town = Town(**{f"n{number}": Node(5 * MS, MS, 1) for number in range(8)})
    town.wave(80)
    for _ in range(10):
        found = shares(town.wave(80))
        assert max(found.values()) / (1 / 8) <= 1.15


def test_a_wire_that_falls_back_moves_the_remote_share_within_a_second() -> None:
    town = Town(near=Node(10 * MS, 0.05 * MS, 1), far=Node(10 * MS, 0.2 * MS, 1))
    far = town.worker("far")
    link = far.link
    assert isinstance(link, NamedLink)
    link.uses = WireName.RDMA
    town.core.table.wire_changed(far)
    town.run(2, 400)
    before = shares(town.run(2, 400))["far"]
    link.uses, town.nodes["far"].wire_s = WireName.RPC, 30 * MS
    town.core.table.wire_changed(far)
    began_s = town.now
    served = town.run(2, 300)
    late = [one for one in served if one.began_s > began_s + 1.0]
    assert len(late) > 50
    assert shares(late).get("far", 0.0) < 0.6 * before
    # What was learned of the slow wire is not held against the one that came back.
    link.uses, town.nodes["far"].wire_s = WireName.RDMA, 0.2 * MS
    town.core.table.wire_changed(far)
    assert shares(town.run(2, 100))["far"] > 0.8 * before
