"""Several cards in one node, on fakes: uneven shards over unlike cards, a card that breaks, cards known by UUID.

Executors wait in place of computing, so that a card's speed is what the test says and the node itself is what is
measured. Short forms hold wide bounds, for other tests run beside them; the goals stand in the long ones. On real cards
the same is asked by `tests/hw/test_gpu_several.py`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from statistics import quantiles
from typing import TYPE_CHECKING

import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from fabric.errors import OverspillError
from tests.hw import several, several_faults
from tests.integration.bad_node import wait_until
from tests.integration.waiting_cards import WaitingNode, ask, makespan_s, uneven

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")

SPEEDS = {0: 4.0, 1: 2.0, 2: 1.0, 3: 4.0}
"""By card. The slowest is the first executor's, which whoever is blind to speed would give the largest shard."""
ROW_S = 0.001
"""What a row takes on the slowest card."""
SHARDS = 64
TRIES = 4
TASK_S = 0.02
LARGE = 1 << 16
"""Floats of a request whose memory is worth registering."""
MODELS = {
    "round": {card: ROW_S / speed for card, speed in SPEEDS.items()},
    "pair": {card: ROW_S / SPEEDS[card] for card in (1, 2)},
    **{f"round_on_{card}": {card: ROW_S / speed} for card, speed in SPEEDS.items()},
    "even": dict.fromkeys(SPEEDS, TASK_S),
    "even_on_2": {2: TASK_S},
    "large": dict.fromkeys(SPEEDS, 0.002 / LARGE),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingNode]:
    made = WaitingNode(tmp_path_factory.mktemp("cards"), MODELS)
    yield made
    made.close()


def split(node: WaitingNode, model: str, cards: tuple[int, ...], ideal_s: float) -> tuple[float, float]:
    """How many times the ideal a round took that the node placed, and one that was dealt out card by card."""
    rows = int(ideal_s * sum(SPEEDS[card] for card in cards) / ROW_S)
    shards = uneven(rows, SHARDS)
    makespan_s(node.router, [(model, shards)], 3 * len(cards))  # the node learns how fast the cards are
    placed_s = min(makespan_s(node.router, [(model, shards)], 3 * len(cards)) for _ in range(2))
    lines = [(f"round_on_{card}", shards[at :: len(cards)]) for at, card in enumerate(cards)]
    return placed_s / ideal_s, makespan_s(node.router, lines, 3) / ideal_s


@pytest.mark.parametrize(
    ("model", "cards", "ideal_s", "most"),
    [
        ("round", (0, 1, 2, 3), 0.3, 1.8),
        pytest.param("round", (0, 1, 2, 3), 1.5, 1.15, marks=pytest.mark.long),
        pytest.param("pair", (1, 2), 1.5, 1.15, marks=pytest.mark.long),
    ],
)
def test_uneven_shards_over_unlike_cards_end_near_the_ideal_split(
    node: WaitingNode, model: str, cards: tuple[int, ...], ideal_s: float, most: float
) -> None:
    """In one of some tries: other tests take the processor away meanwhile."""
    seen: list[tuple[float, float]] = []
    while len(seen) < TRIES and not any(placed <= most and placed < 0.8 * dealt for placed, dealt in seen):
        seen.append(split(node, model, cards, ideal_s))
    assert any(placed <= most and placed < 0.8 * dealt for placed, dealt in seen), seen


def rate(node: WaitingNode, model: str, callers: int, during_s: float) -> float:
    """Answers a second."""
    counts: list[int] = []
    began_s = time.monotonic()

    def call() -> None:
        count = 0
        while time.monotonic() < began_s + during_s:
            ask(node.router, model, 1)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began_s)


@pytest.mark.parametrize(("during_s", "goal"), [(0.5, 2.5), pytest.param(4.0, 3.6, marks=pytest.mark.long)])
def test_four_cards_do_the_work_of_four(node: WaitingNode, during_s: float, goal: float) -> None:
    """With tasks of 20 ms, so what is held is that node, router and wire are not what bounds them."""
    seen: list[float] = []
    while len(seen) < TRIES and max(seen, default=0.0) < goal:
        one = rate(node, "even_on_2", 3, during_s)
        seen.append(rate(node, "even", 12, during_s) / one)
    assert max(seen) >= goal, seen


def test_each_executor_registers_a_callers_memory_once_and_no_request_does(node: WaitingNode) -> None:
    def registrations() -> dict[str, int]:
        time.sleep(0.15)  # executors tell it ten times a second
        return {card: facts.registrations for card, facts in node.executors().items()}

    def ask_many(callers: int, count: int) -> None:
        makespan_s(node.router, [("large", [LARGE] * count)], callers)

    def all_have() -> bool:
        ask_many(12, 48)
        return min(registrations().values()) > 0

    def none_more() -> bool:
        """A crowd may hold more slots at once than the one before it, so this is asked more than once."""
        before = registrations()
        ask_many(12, 48)
        return registrations() == before

    assert wait_until(all_have, 20.0)
    assert wait_until(none_more, 20.0), "requests went on registering"
    assert all(facts.pinned_bytes > 0 for facts in node.executors().values())


def break_a_busy_one(node: WaitingNode, answers: list[tuple[float, int, float, int]]) -> tuple[int, float]:
    """The card, and when: something ran there, and was tried again. Of four cards one may be idle under three callers,
    also one that had much to do until now."""
    for _ in range(10):
        (card, _), *_ = Counter(card for _, card, *_ in answers[-20:]).most_common()
        error = node.fake.file("error", card)
        error.write_text("700")
        broke_s = time.monotonic()
        if wait_until(lambda: any(attempts > 1 for *_, attempts in answers), 2.0):
            return card, broke_s
        error.unlink()
    raise AssertionError("no card was busy when it broke")


def p_of_others(node: WaitingNode, rows: int, percent: int) -> tuple[float, float]:
    """A percentile of the seconds that the other cards' requests took, before one card broke and while it was broken.

    What was on it ran elsewhere, and nothing of it was lost. Three callers: the other cards can carry the load.
    """
    stop, failures = threading.Event(), []
    answers: list[tuple[float, int, float, int]] = []

    def call() -> None:
        try:
            while not stop.is_set():
                card, took_s, attempts = ask(node.router, "even", rows)
                answers.append((time.monotonic() - took_s, card, took_s, attempts))
        except OverspillError as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    phase_s = 50 * rows * TASK_S
    time.sleep(phase_s)
    broken, broke_s = break_a_busy_one(node, answers)
    error = node.fake.file("error", broken)
    time.sleep(phase_s)
    stop.set()
    for thread in threads:
        thread.join(30)
    error.unlink()
    assert failures == []
    assert not [card for began_s, card, *_ in answers if card == broken and began_s > broke_s]
    assert wait_until(lambda: node.executors()[f"FAKE-{broken}"].ready, 30.0), node.fake.node.log
    others = [(began_s > broke_s, took_s) for began_s, card, took_s, attempts in answers
              if card != broken and attempts == 1]  # fmt: skip
    before_s, after_s = ([took_s for late, took_s in others if late is after] for after in (False, True))
    return quantiles(before_s, n=100)[percent - 1], quantiles(after_s, n=100)[percent - 1]


@pytest.mark.parametrize(("rows", "percent", "most"), [(1, 50, 3.0), pytest.param(5, 99, 1.2, marks=pytest.mark.long)])
def test_a_card_that_breaks_under_load_takes_nobody_along(
    node: WaitingNode, rows: int, percent: int, most: float
) -> None:
    """The others answer as fast as before, in one of some tries: other tests take the processor away meanwhile."""
    seen: list[tuple[float, float]] = []
    while len(seen) < TRIES and not any(after < most * before for before, after in seen):
        seen.append(p_of_others(node, rows, percent))
    assert any(after < most * before for before, after in seen), seen


def test_a_card_that_cannot_be_asked_or_named_costs_no_other_one(node: WaitingNode) -> None:
    def told(text: str) -> bool:
        return wait_until(lambda: text in node.fake.node.log, 10.0)

    before = node.executors()
    node.fake.file("lost", 0).touch()
    assert told("GPU FAKE-0 cannot be watched")
    (node.fake.folder / "fake-cards" / "xid").write_text("79\n")  # one fell off the bus, and nobody knows which
    assert told("GPU (it did not say which) reported Xid 79")
    node.fake.file("xid", 3).write_text("63\n")
    assert told("GPU FAKE-3 reported Xid 63")
    node.fake.file("lost", 0).unlink()
    assert told("GPU FAKE-0 is watched again")
    assert {card: (facts.pid, facts.ready) for card, facts in node.executors().items()} == {
        card: (facts.pid, True) for card, facts in before.items()
    }


def test_a_card_is_known_by_its_uuid_whatever_its_number(node: WaitingNode) -> None:
    """Numbers, folders and the order of CUDA_VISIBLE_DEVICES all differ here: metrics, health and what is ended must
    be those of one card."""
    before = node.executors()
    assert {card: facts.card_bytes >> 30 for card, facts in before.items()} == {f"FAKE-{n}": 10 + n for n in SPEEDS}
    for card in SPEEDS:
        assert ask(node.router, f"round_on_{card}", 1)[0] == card
    node.fake.file("xid", 1).write_text("43\n")
    assert wait_until(lambda: node.executors()["FAKE-1"].pid not in {0, before["FAKE-1"].pid}, 20.0)
    assert wait_until(lambda: node.executors()["FAKE-1"].ready, 20.0)
    after = node.executors()
    assert {card for card in after if after[card].pid != before[card].pid} == {"FAKE-1"}
    node.fake.file("recovery", 3).write_text("1")
    assert wait_until(lambda: not node.executors()["FAKE-3"].ready, 10.0)

    def out_of_use() -> list[str]:
        return [card.uuid for card in node.fake.instance().cards if "out of use" in card.state]

    assert wait_until(lambda: out_of_use() == ["FAKE-3"], 10.0), out_of_use()
    assert sorted(card for card, facts in node.executors().items() if facts.ready) == ["FAKE-0", "FAKE-1", "FAKE-2"]


@pytest.mark.long
def test_the_faults_for_real_cards_find_nothing_wrong_on_fake_ones() -> None:
    found = several_faults.run("fake:3", "full", 3)
    assert (found["wrong"], found["lost"], found["of_broken_after"]) == (0, [], 0)
    assert found["moved"] >= 3


@pytest.mark.long
def test_the_round_for_real_cards_runs_on_fake_ones(tmp_path: Path) -> None:
    plan = several.Plan(("fake", "fake"), (2,), rounds=2, processes=1)
    found = several.measure(tmp_path, plan, city_round(CityPlan(orders=60, riders=240)))
    assert found["cards_2"]["throughput"] > 0  # two processors' worth at most: nothing is claimed from it
