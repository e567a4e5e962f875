"""Replies: read-only views that keep their memory, and what happens when callers keep too many."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from fabric.errors import Fate, InvalidArgument, ResourceExhausted
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import small_body, tensors_of, write_tensors
from fabric.transport import Answer
from router.reply import Holdings, Reply
from tests.unit.router.fleet import Fleet, answer


def leased(arena: Arena, rows: int = 16_384) -> Answer:
    sources = tensors_of({"y": np.arange(rows, dtype=np.float32)})
    layout = small_body(sources).layout
    lease = Lease.of(arena, layout.body_bytes)
    write_tensors(lease.view, layout, sources)
    made = answer()
    return Answer(layout, lease, made.generation, made.queue_us, made.compute_us, made.load, made.wire)


def reply_of(made: Answer) -> Reply:
    fleet = Fleet("a")
    life = fleet.life()
    fleet.send(life)
    fleet.now += 0.003
    return fleet.finish(life, made)


def test_a_reply_is_a_mapping_of_read_only_arrays() -> None:
    reply = reply_of(answer())
    assert dict(reply).keys() == {"y"}
    assert (len(reply), "y" in reply, "z" in reply) == (1, True, False)
    with pytest.raises(ValueError, match="read-only"):
        reply["y"][0] = 1.0
    with pytest.raises(KeyError, match="no output 'z'; it has y"):
        reply["z"]
    assert repr(reply) == "<Reply of y FP32[3] from a>"


def test_the_trace_outlives_the_outputs() -> None:
    with reply_of(answer(compute_us=1500)) as reply:
        pass
    assert reply.trace.compute_ms == 1.5
    assert reply.trace.transport_ms == pytest.approx(1.5)
    with pytest.raises(InvalidArgument, match="closed"):
        reply["y"]


def test_memory_goes_back_with_the_last_view() -> None:
    arena = Arena.create(1 << 20)
    reply = reply_of(leased(arena))
    view: np.ndarray[Any, Any] | None = reply["y"][5:]
    assert arena.lent_bytes() == 65_536
    reply.close()
    gc.collect()
    assert arena.lent_bytes() == 65_536, "a view is still alive, and its bytes must not change"
    assert view is not None
    np.testing.assert_array_equal(view, np.arange(5, 16_384, dtype=np.float32))
    view = None
    assert arena.lent_bytes() == 0


def test_close_gives_the_memory_back_at_once_where_no_view_is_left() -> None:
    arena = Arena.create(1 << 20)
    reply = reply_of(leased(arena))
    assert reply["y"][0] == 0.0
    reply.close()
    assert arena.lent_bytes() == 0


def test_replies_past_half_of_the_arena_are_copied_out_and_counted() -> None:
    arena, holdings = Arena.create(1 << 18), Holdings()
    kept = [reply_of(holdings.admit(leased(arena), "plan")) for _ in range(4)]
    assert holdings.copied_out == 2
    assert (holdings.held_bytes, arena.lent_bytes()) == (131_072, 131_072)
    assert "replies of plan hold 131072 bytes" in holdings.sentence()
    for reply in kept:
        np.testing.assert_array_equal(reply["y"], np.arange(16_384, dtype=np.float32))
        assert not reply["y"].flags.writeable
    del kept, reply
    gc.collect()
    assert (holdings.held_bytes, arena.lent_bytes(), holdings.sentence()) == (0, 0, "")
    holdings.admit(leased(arena), "plan")
    assert holdings.copied_out == 2


def test_an_error_of_a_full_arena_names_the_holders_and_keeps_its_fate() -> None:
    arena, holdings = Arena.create(1 << 18), Holdings()
    full = ResourceExhausted("no 4096 bytes are free", Fate.RAN)
    assert holdings.blamed(full) is full
    kept = holdings.admit(leased(arena), "plan")
    assert str(holdings.blamed(full)) == "no 4096 bytes are free, or close replies: replies of plan hold 65536 bytes"
    assert holdings.blamed(full).fate is Fate.RAN
    del kept
