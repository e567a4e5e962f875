"""Residents at the router: who is sent the content, what a missing one costs, and that nobody gets all of the work."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.deadline import Deadline
from fabric.errors import Fate, InvalidArgument, NodeLost, ResidentMissing
from fabric.frame import Load
from fabric.memory.arena import Arena
from router.config import RouterConfig
from router.resident import Resident
from tests.unit.router.fleet import Fleet, answer, facts, instance, name_of

if TYPE_CHECKING:
    from router.dispatch import Attempt
    from tests.unit.router.fleet import Life

TABLE = np.arange(100_000, dtype=np.float32).reshape(-1, 4)
_ROOM = Arena.create(32 << 20)
MISSING = ResidentMissing("the node keeps no resident now; send it once")


def life(fleet: Fleet, resident: Resident, timeout_s: float = 10.0) -> Life:
    core = fleet.core
    staged = core.staging.stage(core.offer("plan").facts, {"x": resident, "n": np.zeros(1, np.int32)})
    return core.life("plan", staged, Deadline(fleet.now + timeout_s), 0, core.offer("plan").idempotent)


def brings(attempt: Attempt) -> bool:
    """Whether the call has the content in its body."""
    layout = attempt.call.body.layout
    assert layout.residents == 1
    carried = not next(spec for spec in layout.specs if spec.resident).referred
    assert (layout.body_bytes > TABLE.nbytes) is carried
    return carried


def test_a_handle_is_a_private_copy_named_by_its_content() -> None:
    source = TABLE.copy()
    one, same = Resident(source), Resident(np.asfortranarray(source))
    source[:] = 0
    np.testing.assert_array_equal(one.array, TABLE)
    assert one.digest == same.digest != Resident(source).digest
    with pytest.raises(ValueError, match="read-only"):
        one.array[0] = 1
    for wrong in (np.zeros((0, 4)), ["text"]):
        with pytest.raises(InvalidArgument, match="resident"):
            Resident(wrong)
    assert "FP32[25000, 4]" in repr(one)


def test_the_content_goes_once_and_again_only_where_it_is_missing() -> None:
    fleet, resident = Fleet("a"), Resident(TABLE)
    for number in range(3):
        request = life(fleet, resident)
        sent = fleet.send(request)
        assert brings(sent) is (number == 0)
        if number == 0:
            view = sent.call.body.view()
            at = sent.call.body.layout.offsets[0]
            np.testing.assert_array_equal(np.frombuffer(view[at : at + TABLE.nbytes], np.float32), TABLE.ravel())
        fleet.finish(request, answer())
    request = life(fleet, resident)
    assert not brings(fleet.send(request))
    again = fleet.send(request, MISSING)
    assert brings(again)
    assert again.call.attempt == 0, "it counts as the same attempt"
    fleet.finish(request, answer())
    statistics = fleet.core.statistics()
    assert (statistics.residents_sent, statistics.residents_missed, statistics.retries) == (2, 1, 0)
    fleet.assert_idle()


def test_a_node_that_always_lacks_it_ends_the_request_with_an_error() -> None:
    fleet = Fleet("a")
    request = life(fleet, Resident(TABLE), timeout_s=1.0)
    fleet.send(request)
    with pytest.raises(ResidentMissing):  # noqa: PT012 - it ends somewhere in the loop
        for _ in range(20):
            fleet.send(request, ResidentMissing(str(MISSING)))
    fleet.assert_idle()


def test_what_was_sent_with_a_request_that_failed_is_not_counted_on() -> None:
    fleet, resident = Fleet("a"), Resident(TABLE)
    request = life(fleet, resident)
    assert brings(fleet.send(request))
    assert brings(fleet.send(request, NodeLost("gone", Fate.UNKNOWN)))
    request.close()
    assert brings(fleet.send(life(fleet, resident)))


def test_no_room_for_the_content_leaves_nothing_behind() -> None:
    fleet = Fleet("a")
    large = Resident(np.zeros((200_000, 4), np.float32))  # the arena of these tests has 1 MiB
    request = life(fleet, large)
    with pytest.raises(Exception, match="fit"):
        fleet.send(request)
    fleet.assert_idle()
    assert not fleet.worker("a").holds


def test_a_new_life_of_a_node_holds_nothing() -> None:
    fleet, resident = Fleet("a"), Resident(TABLE)
    request = life(fleet, resident)
    fleet.send(request)
    fleet.finish(request, answer())
    fleet.remove("a")
    fleet.lose("a")
    fleet.add(instance("a", epoch=2))
    assert brings(fleet.send(life(fleet, resident)))


def test_requests_go_where_their_resident_is_until_the_queue_there_costs_more_than_the_bound() -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, affinity_ms_max=5.0))
    resident = Resident(TABLE)
    request = life(fleet, resident)
    first = name_of(fleet.send(request))
    fleet.finish(request, answer(Load(1, 1, 0, 1)))
    other = fleet.worker("b" if first == "a" else "a")
    holder = fleet.worker(first)
    for worker in (holder, other):
        for _ in range(20):
            worker.line.learn(0, 1.0, fleet.now)
            worker.line.learn(1 << 20, 400.0, fleet.now)  # 40 ms for this content
        worker.speed.learn(fleet.core.table.work.kind("plan", 64 + TABLE.nbytes), 2.0, fleet.now)
    for queue_us, where in ((0, first), (4_000, first), (9_000, other.name)):
        holder.ahead.reported(Load(queue_us + 2, 1, queue_us, 1), fleet.now)
        request = life(fleet, resident)
        sent = fleet.send(request)
        assert name_of(sent) == where, queue_us
        assert sent.picked.terms[0] == pytest.approx(sum(sent.picked.terms[1:]))
        request.close()


def test_what_nobody_keeps_goes_to_an_idle_worker_and_not_to_a_saturated_one_that_keeps_least() -> None:
    fleet, counts = Fleet("busy", "idle", local=("busy",)), Counter[str]()
    for number in range(60):
        fleet.worker("busy").ahead.reported(Load(2 * number + 1, 0, 500_000, 1), fleet.now)  # others keep it so
        request = life(fleet, Resident(np.full((50, 4), number, np.float32)))
        sent = fleet.send(request)
        name = name_of(sent)
        counts[name] += 1
        for worker in fleet.core.table.workers:
            worker.speed.learn(sent.kind, 5.0, fleet.now)  # both are as fast, and the busy one is nearer
        fleet.now += 0.007
        left_us = 500_000 if name == "busy" else 0
        fleet.finish(request, answer(Load(2 * number + 2, counts[name], left_us, 1), compute_us=5000))
    assert counts["busy"] <= 2
    fleet.assert_idle()


def shares(fleet: Fleet, keys: list[int], residents: dict[int, Resident], rng: Random) -> tuple[Counter[str], int]:
    """Sends a request for each key to workers that take 5 ms each, 70 % busy, where a content takes 20 ms on its way;
    gives the work of each and the hits."""
    count = len(fleet.core.table.workers)
    free = {worker.name: fleet.now for worker in fleet.core.table.workers}
    work, hits, sequence = Counter[str](), 0, 0
    due: list[tuple[float, int, Life, str, float, int]] = []
    for number, key in enumerate(keys):
        fleet.now += rng.expovariate(0.7 * count / 0.005)
        while due and due[0][0] <= fleet.now:
            at_s, _, request, name, wait_s, accepted = heappop(due)
            sequence += 1
            load = Load(sequence, accepted, int(max(0.0, free[name] - at_s) * 1e6), 1)
            late_s, fleet.now = fleet.now, at_s
            fleet.finish(request, answer(load, compute_us=5000, queue_us=int(wait_s * 1e6)))
            fleet.now = late_s
        request = life(fleet, residents[key])
        sent = fleet.send(request)
        name = name_of(sent)
        hits += not sent.missing
        work[name] += 1
        there_s = fleet.now + (0.02 if sent.missing else 0.0002)
        begin_s = max(free[name], there_s)
        free[name] = begin_s + 0.005
        heappush(due, (free[name], number, request, name, begin_s - there_s, work[name]))
    for each in due:
        each[2].close()
    return work, hits


def small_fleet() -> Fleet:
    table = facts("plan", *instance("x").models[0].inputs)
    fleet = Fleet(config=RouterConfig(seed=1, remote_sample=8), arena=_ROOM)
    for number in range(8):
        fleet.add(instance(f"w{number}", table))
    return fleet


def test_one_key_with_all_of_the_traffic_is_spread_over_all() -> None:
    fleet, rng = small_fleet(), Random(3)
    residents = {0: Resident(np.zeros((6000, 4), np.float32))}
    work, _ = shares(fleet, [0] * 4000, residents, rng)
    assert max(work.values()) <= 1.3 * 4000 / 8


def test_many_keys_mostly_find_their_resident_where_they_go() -> None:
    fleet, rng = small_fleet(), Random(3)
    residents = {key: Resident(np.full((12_000, 4), key, np.float32)) for key in range(1000)}
    keys = rng.choices(range(1000), [1.0 / (key + 1) for key in range(1000)], k=8000)
    work, hits = shares(fleet, keys, residents, rng)
    once = len(set(keys))  # pure hashing misses each key's first request only
    assert hits >= 0.9 * (8000 - once), "requests go where their resident is"
    assert max(work.values()) <= 1.5 * 8000 / 8, "and yet no worker has all of them"
