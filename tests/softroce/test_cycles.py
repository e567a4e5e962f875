"""Connections that come and go leave nothing: no descriptor, queue pair, region, completion queue, domain or memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.world import wait_until
from tests.softroce.echo import EchoWorld, after
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.guests(1)
WARM = 4
"""Cycles until caches, pools and the allocator have what they want."""
GROWTH_KIB_MAX = 8192
"""Of resident memory in all cycles: two leaked arenas would pass it. A thousand cycles grew by 5,820 KiB under
emulation, which is taken for free memory that the allocator held: see the last test for what stays."""
FLAT_KIB_MAX = 1024


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    gc.collect()
    gc.disable()  # what is closed goes by itself: a collection may be minutes away
    yield
    gc.enable()


def _descriptors() -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            kind = str(entry.readlink()).split(":")[0]
        except OSError:
            continue
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _resident_kib() -> int:
    gc.collect()  # what was asked for once, such as modules, leaves circles too
    return int(Path("/proc/self/statm").read_text().split()[1]) * (os.sysconf("SC_PAGESIZE") // 1024)


def _circles() -> set[str]:
    """Kinds of ours that only the garbage collector finds: each holds the memory of its connection until then."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = {f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage}
    gc.garbage.clear()
    return {name for name in found if name.startswith(("fabric.", "pyverbs."))}


def _cycle(world: EchoWorld) -> None:
    """One connection with a small and a large call each way."""
    channel = world.open()
    world.echoes(channel, 100)
    world.echoes(channel, 100_000)
    channel.close(after(5.0))


def _quiet(world: EchoWorld) -> tuple[str, dict[str, int]]:
    """What there is once all closed connections are fenced."""
    assert wait_until(lambda: not world.caller.links and not world.node.links)
    assert wait_until(lambda: world.listener.peers == 0)
    for engine in (world.caller, world.node):  # a loop's thread lets go of what it did last when it does something else
        done = threading.Event()
        engine.call_soon(done.set)
        assert done.wait(20)
    return here.run(0, "rdma", "res", "show"), _descriptors()


@pytest.mark.parametrize("cycles", [8, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_connections_that_come_and_go_leave_nothing(cycles: int) -> None:
    with EchoWorld() as world:
        for _ in range(WARM):
            _cycle(world)
        before, began_kib = _quiet(world), _resident_kib()
        began_s = time.monotonic()
        for _ in range(cycles):
            _cycle(world)
        took_s = time.monotonic() - began_s
        assert wait_until(lambda: _quiet(world) == before), (_quiet(world), before)
        assert _circles() == set()
        assert world.caller.budget.pinned_bytes == world.node.budget.pinned_bytes == 0
        grown_kib = _resident_kib() - began_kib
        sys.stdout.write(f"{cycles} cycles in {took_s:.1f} s, resident memory grew by {grown_kib} KiB\n")  # for -rP
        assert grown_kib <= GROWTH_KIB_MAX


@pytest.mark.long
@pytest.mark.guests(1, "native")
@pytest.mark.timeout(1700)
def test_a_thousand_connections_need_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resident memory is taken when all of them are fenced and the allocator has given back what is free: after the
    first few hundred, a thousand more add some 30 bytes each, which is what pyverbs keeps of a work request. Each adds
    no descriptor and nothing to what the kernel counts. (Ten thousand would show no more, and take an hour on a busy
    machine.)"""
    monkeypatch.setattr("fabric.rdma.listener.OFFERS_PER_S", 10_000)
    with EchoWorld() as world:

        def cycles(count: int) -> tuple[tuple[str, dict[str, int]], int]:
            for _ in range(count):
                world.offer_at_once()
                _cycle(world)
            quiet = _quiet(world)
            ctypes.CDLL(None).malloc_trim(0)
            return quiet, _resident_kib()

        before, began_kib = cycles(300)
        began_s = time.monotonic()
        found = [cycles(500) for _ in range(2)]
        took_s = time.monotonic() - began_s
    grown_kib = [kib - began_kib for _, kib in found]
    sys.stdout.write(f"1000 cycles in {took_s:.0f} s, resident memory grew by {grown_kib} KiB\n")  # for -rP
    assert [quiet for quiet, _ in found] == [before, before]
    assert grown_kib[-1] <= FLAT_KIB_MAX
