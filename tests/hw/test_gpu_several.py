"""Several real cards in one node: throughput, uneven shards, one card that breaks, cards known by UUID, peer copies.

Needs two cards; four and eight are measured where they are. `make hw ARGS='tests/hw -k several'` fills the report's
sections `several_*`. What can be tried without a card is in `tests/integration/test_gpu_several.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from fabric.errors import MissingDependency
from tests.hw import several, several_faults
from tests.integration.bad_node import wait_until
from workers.cuda.nvml import Nvml
from workers.cuda.visible import ALONG_THE_BUS, ORDER_VARIABLE, VARIABLE, shown_cards
from workers.device import OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report
    from workers.device import Card

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(900),
    pytest.mark.leaks("numba keeps its threads, and the driver's library its descriptors, for the life of a process"),
]

ROOT = Path(__file__).parents[2]
COUNTS = (2, 4, 8)
THROUGHPUT_MIN = {2: 1.9, 4: 3.6}
OF_IDEAL_MAX = {2: 1.15, 4: 1.15}
REGISTRATIONS_MAX = 0.01
"""Of the requests meanwhile: a crowd may hold more slots at once than the one before it."""
P99_MOVES_MAX = 1.2
TRIALS = int(os.environ.get("OVERSPILL_HW_TRIALS", "10"))


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    try:
        return Nvml()
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def cards(nvml: Nvml, report: Report) -> tuple[Card, ...]:
    found = shown_cards(os.environ.get(VARIABLE), os.environ.get(ORDER_VARIABLE, ""), nvml.cards())
    if len(found) < 2:
        pytest.skip(f"{len(found)} GPU may be used here, and this takes two")
    report.device = f"{found[0].model} x{len(found)}"
    return found


def keep(report: Report, section: str, **figures: Any) -> None:
    """Writes at once: should time run out, what was measured is there."""
    report.add(f"several_{section}", **figures)
    report.write()


def test_what_several_cards_copy_among_each_other(cards: tuple[Card, ...], report: Report) -> None:
    """No goal: these figures decide whether copies from card to card are worth their fences."""
    words = [sys.executable, "-m", "tests.hw.peers"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    keep(report, "peers", **json.loads(ended.stdout))


@pytest.mark.parametrize("form", ["numbers", "uuids", "beginnings", "one"])
def test_the_order_of_several_cards_outside_swaps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml, cards: tuple[Card, ...], report: Report, form: str
) -> None:
    """Each process has its memory on the card that the node says; what breaks is what the driver reports about."""
    turned = cards[::-1]
    value, shown = {
        "numbers": (",".join(str(card.index) for card in turned), turned),
        "uuids": (",".join(card.uuid for card in turned), turned),
        "beginnings": (",".join(card.uuid[:16] for card in turned), turned),
        "one": (cards[1].uuid, cards[1:2]),
    }[form]
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setenv(ORDER_VARIABLE, ALONG_THE_BUS)  # else numbers of unlike cards are refused
    scene = several_faults.Scene(tmp_path, "cuda:all", "off")
    try:
        assert wait_until(scene.settled, 30.0, 0.05), scene.node.log
        before = {each.card: each for each in scene.executors()}
        assert set(before) == {card.uuid for card in shown}
        ours = {each.pid for each in before.values()}
        held = {uuid: ours & {holder.pid for holder in nvml.holders(uuid)} for uuid in before}
        assert held == {uuid: {each.pid} for uuid, each in before.items()}, "memory is on another card than it is said"
        scene.flag.touch()
        with scene.router.infer("gpu_where", {"x": np.ones(8, np.float32)}, timeout_s=30.0) as reply:
            assert reply["y"][0] == 2
        assert wait_until(lambda: all(each.ready and each.pid for each in scene.executors()), 30.0, 0.05)
        (broken,) = [each.card for each in scene.executors() if each.pid != before[each.card].pid]
        assert wait_until(lambda: f"GPU {broken} reported Xid" in scene.node.log, 10.0, 0.05), scene.node.log
        others = [card.uuid for card in cards if card.uuid != broken]
        assert not [uuid for uuid in others if f"GPU {uuid} reported" in scene.node.log]
        keep(report, "order", **{form: "as named"})
    finally:
        scene.close()


def test_a_round_on_several_cards(tmp_path: Path, cards: tuple[Card, ...], report: Report) -> None:
    """Answers equal this process's, and requests register no memory that was registered before."""
    warm = "from examples.dispatch.route_plan.planner import planner_for; planner_for('gpu').warm_up()"
    subprocess.run([sys.executable, "-c", warm], check=True, timeout=300.0, cwd=ROOT)
    counts = tuple(count for count in COUNTS if count <= len(cards))
    plan = several.Plan(tuple(f"cuda:{card.uuid}" for card in cards), counts)
    found = several.measure(tmp_path, plan, city_round(CityPlan()))
    keep(report, "round", **found)
    for count in counts:
        figures: dict[str, Any] = found[f"cards_{count}"]
        assert figures["registrations_meanwhile"] <= REGISTRATIONS_MAX * figures["requests_meanwhile"]
        assert min(figures["registrations"]) > 0
        assert figures["throughput"] >= THROUGHPUT_MIN.get(count, 0.0), figures
        assert figures["round_of_ideal"] <= OF_IDEAL_MAX.get(count, float("inf")), figures


@pytest.mark.parametrize("standby", ["off", "full"])
def test_one_of_several_cards_breaks_under_load(cards: tuple[Card, ...], report: Report, standby: str) -> None:
    found = several_faults.run("cuda:all", standby, TRIALS)
    keep(report, f"faults_{standby}", **found)
    assert (found["wrong"], found["lost"], found["of_broken_after"]) == (0, [], 0)
    assert found["moved"] >= TRIALS
    assert found["others_p99_after_ms"] <= P99_MOVES_MAX * found["others_p99_before_ms"]
