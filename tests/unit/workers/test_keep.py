"""Kept replies: found until acknowledged, in the slot or in own memory, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import keep
from workers.keep import KeptReply, ReplyKeep

if TYPE_CHECKING:
    import pytest


def reply(tenant_no: int, size: int = 4, at_s: float = 0.0) -> KeptReply:
    return KeptReply(tenant_no, memoryview(bytearray(b"x" * size)), b"d", 1, at_s)


def test_found_until_acknowledged() -> None:
    table = ReplyKeep()
    table.put(1, 5, reply(9))
    assert table.find(1, 5) is not None
    assert table.find(2, 5) is None
    table.acknowledge(1, 5)
    assert table.find(1, 5) is not None
    table.acknowledge(1, 6)
    assert table.find(1, 5) is None
    table.acknowledge(7, 6)


def test_own_memory_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "OWN_BYTES_MAX", 10)
    table = ReplyKeep()
    for number in (1, 2, 3):
        table.put(1, number, reply(0, 4))
    assert table.own_bytes == 8
    assert table.find(1, 1) is None
    table.put(1, 2, reply(0, 6))
    assert table.own_bytes == 10
    table.put(1, 4, reply(0, 11))
    assert table.own_bytes == 11, "the newest is about to be fetched"
    assert table.find(1, 2) is None
    table.put(1, 5, reply(0, 4))
    assert (table.own_bytes, table.find(1, 4)) == (4, None)


def test_a_leaving_tenant_takes_its_memory_but_not_its_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ReplyKeep()
    theirs, other = reply(9), reply(8)
    table.put(1, 1, theirs)
    table.put(1, 2, other)
    table.leave(9)
    kept = table.find(1, 1)
    assert kept is not None
    theirs.memory[0] = ord("!")
    assert (kept.tenant_no, bytes(kept.memory)) == (0, b"xxxx")
    assert table.find(1, 2) is other
    monkeypatch.setattr(keep, "LEAVING_BYTES_MAX", 5)
    table.put(2, 1, reply(7))
    table.put(2, 2, reply(7))
    table.leave(7)
    assert table.find(2, 2) is not None
    assert table.find(2, 1) is None


def test_lapse_and_per_client_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "KEPT_PER_CLIENT_MAX", 2)
    table = ReplyKeep()
    for number in (1, 2, 3):
        table.put(1, number, reply(0, 4, at_s=float(number)))
    assert table.find(1, 1) is None
    table.lapse(2.0 + keep.KEPT_S)
    assert table.find(1, 2) is None
    assert table.find(1, 3) is not None
    table.lapse(3.0 + keep.KEPT_S)
    assert table.own_bytes == 0
