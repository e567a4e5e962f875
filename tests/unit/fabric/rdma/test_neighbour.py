"""What the kernel's table of neighbours tells of an address that did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.rdma.neighbour import is_resolved

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """IP address       HW type     Flags       HW address            Mask     Device
10.77.0.2        0x1         0x2         52:54:00:12:34:01     *        eth0
10.77.0.9        0x1         0x0         00:00:00:00:00:00     *        eth0
"""


def test_a_known_neighbour_is_resolved_and_one_that_is_asked_for_is_not(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    table.write_text(TABLE)
    assert is_resolved("10.77.0.2", table)
    assert not is_resolved("10.77.0.9", table)


def test_an_address_behind_a_router_is_not_in_the_table(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    table.write_text(TABLE)
    assert is_resolved("192.0.2.1", table)
    assert is_resolved("192.0.2.1", tmp_path / "none")


def test_nothing_is_known_of_ipv6() -> None:
    assert not is_resolved("2001:db8::1")
