"""The lab itself: what tests may rely on inside guests, and that its faults are what they are called."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.softroce.lab import here

PING = ("ping", "-c1", "-W1", "-q")


@pytest.mark.guests(1)
def test_one_guest_has_a_device() -> None:
    assert here.nodes() == 1
    states = [path.read_text() for path in Path("/sys/class/infiniband").glob("*/ports/*/state")]
    assert any("ACTIVE" in state for state in states)
    assert (os.cpu_count() or 1) >= 2


@pytest.mark.guests(2)
def test_two_guests_meet() -> None:
    assert here.nodes() == 2
    for node in (0, 1):
        for net in ("10.77.0", "10.78.0"):
            here.run(node, *PING, f"{net}.{2 - node}")


@pytest.mark.guests(2)
def test_a_cable_is_one_cable() -> None:
    """The one that carries RDMA goes and comes back, the other one stays; nobody's card says that its link is down."""
    here.cable(0, up=False)
    with pytest.raises(here.AskError, match="100% packet loss"):
        here.run(0, *PING, "10.77.0.2")
    here.run(0, *PING, "10.78.0.2")
    here.cable(0, up=True)
    end_s = time.monotonic() + 20
    while True:
        try:
            here.run(0, *PING, "10.77.0.2")
            break
        except here.AskError:
            assert time.monotonic() < end_s


@pytest.mark.guests(2)
def test_a_guest_dies_and_comes_back() -> None:
    here.ask("kill", 1)
    with pytest.raises(here.AskError):
        here.run(0, *PING, "10.78.0.2")
    here.ask("restart", 1)
    here.run(0, *PING, "10.78.0.2")
    here.run(1, *PING, "10.77.0.1")


@pytest.mark.guests(2)
def test_lost_packets_by_netem() -> None:
    here.run(1, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "loss", "100%")
    with pytest.raises(here.AskError, match="100% packet loss"):
        here.run(0, *PING, "10.77.0.2")
    here.run(1, "tc", "qdisc", "del", "dev", "eth0", "root")
    here.run(0, *PING, "10.77.0.2")
