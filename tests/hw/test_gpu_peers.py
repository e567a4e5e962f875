"""An ensemble on two real cards of one node: what one step leaves on its card is read by the other, and who may die.

Every answer is compared, the whole of it or a sum that any other bytes would miss. Both ways are timed: from card to
card, and by way of the host's memory, which is taken where the first step gives its tensor there. Needs two cards.
`make hw ARGS='tests/hw -k peers'` fills the report's sections `peers_*`; without a card the same is tried by
`tests/integration/test_gpu_legs.py`.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.errors import MissingDependency
from tests.integration.bad_node import wait_until
from tests.integration.nodes import IDEMPOTENT, write_model
from tests.integration.split_chains import LARGE, READS_CARDS, SHOWN, Load, SplitNode, on_cards, write_chain
from workers.cuda.nvml import Nvml
from workers.cuda.visible import ORDER_VARIABLE, VARIABLE, shown_cards
from workers.device import OverseerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.control import ExecutorFacts
    from tests.hw.conftest import Report
    from workers.device import Card

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(600),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process, answers their frames"),
]

MIB = 1 << 20
SIZES = (1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
TRIES = 15
KILLS = int(os.environ.get("OVERSPILL_HW_KILLS", "16"))
FASTER_MIN = 2.0
"""From card to card over the host's way, from 16 MiB on. The copies alone were 10 to 14 times as fast."""
MAKE = (
    SHOWN
    + """
import cupy
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        count, seed = int(inputs["count"][0]), int(inputs["seed"][0])
        made = cupy.arange(count, dtype=cupy.int32) * cupy.int32(seed)
        y = outputs.on_card("y", "INT32", (count,))
        if y is None:
            made.get(out=outputs.allocate("y", "INT32", (count,)))
        else:
            shown(y)[:] = made
"""
)
SUM = (
    SHOWN
    + """
import cupy
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        y = inputs.on_card("y")
        there = cupy.asarray(inputs["y"]) if y is None else shown(y)
        outputs["total"] = there.sum(dtype=cupy.int64).reshape(1).get()
        seed, wrong = int(inputs["seed"][0]), 0
        if seed < 0:  # every element is looked at
            wrong = int((there != cupy.arange(there.size, dtype=cupy.int32) * cupy.int32(seed)).sum())
        outputs["wrong"] = __import__("numpy").array([wrong])
        outputs["on_card"] = __import__("numpy").array([y is not None])
"""
)
MAKE_CONFIG = """
backend: "python"
input [ { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] } ]
output { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
SUM_CONFIG = """
backend: "python"
input [ { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [
  { name: "total" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "wrong" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "on_card" data_type: TYPE_BOOL dims: [ 1 ] }
]
"""
SUMS = """
platform: "ensemble"
input [ { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [
  { name: "total" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "wrong" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "on_card" data_type: TYPE_BOOL dims: [ 1 ] }
]
parameters { key: "memory_bytes" value { string_value: "2GiB" } }
ensemble_scheduling { step [
  { model_name: "MAKE"
    input_map { key: "count" value: "count" } input_map { key: "seed" value: "seed" }
    output_map { key: "y" value: "y" } },
  { model_name: "sum" input_map { key: "y" value: "y" } input_map { key: "seed" value: "seed" }
    output_map { key: "total" value: "total" } output_map { key: "wrong" value: "wrong" }
    output_map { key: "on_card" value: "on_card" } }
] }
"""


@pytest.fixture(scope="module")
def cards(report: Report) -> tuple[Card, ...]:
    try:
        found = shown_cards(os.environ.get(VARIABLE), os.environ.get(ORDER_VARIABLE, ""), Nvml().cards())
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))
    if len(found) < 2:
        pytest.skip(f"{len(found)} GPU may be used here, and this takes two")
    report.device = f"{found[0].model} x{len(found)}"
    return found[:2]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, cards: tuple[Card, ...]) -> Iterator[SplitNode]:
    folder = tmp_path_factory.mktemp("peers")
    models = folder / "models"
    first, second = (on_cards(card.index) for card in cards)
    plenty = 'parameters { key: "memory_bytes" value { string_value: "2GiB" } }\n'
    write_chain(models, first, second, IDEMPOTENT + plenty)
    write_model(models, "make", MAKE, MAKE_CONFIG + IDEMPOTENT + READS_CARDS + first)
    write_model(models, "make_on_host", MAKE, MAKE_CONFIG + IDEMPOTENT + first)
    write_model(models, "sum", SUM, SUM_CONFIG + IDEMPOTENT + READS_CARDS + second)
    for name, maker in (("sums", "make"), ("sums_on_host", "make_on_host")):
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(SUMS.replace("MAKE", maker) + IDEMPOTENT)
    settings = f'quarantine_faults = 10000\ninject = "illegal_address@chain:flag={folder / "break"}"\n'
    words = ",".join(f"cuda:{card.uuid}" for card in cards)
    made = SplitNode(folder, devices=words, settings=settings)
    yield made
    made.close()


def keep(report: Report, section: str, **figures: Any) -> None:
    """Writes at once: should time run out, what was measured is there."""
    report.add(f"peers_{section}", **figures)
    report.write()


def total(node: SplitNode, model: str, count: int, seed: int) -> bool:
    """One request, whose sum is checked, and with a negative seed every element; gives whether the tensor lay on the
    second card."""
    inputs = {"count": np.array([count], np.int64), "seed": np.array([seed], np.int64)}
    with node.router.infer(model, inputs, timeout_s=60.0) as reply:
        wanted = int((np.arange(count, dtype=np.int32) * np.int32(seed)).sum(dtype=np.int64))
        assert (int(reply["total"][0]), int(reply["wrong"][0])) == (wanted, 0), "a wrong answer"
        return bool(reply["on_card"][0])


def has_ended(node: SplitNode, before: list[ExecutorFacts]) -> bool:
    """Whether one of the executors that there were is another process now."""
    return any(old.generation != new.generation for old, new in zip(before, node.executors(), strict=True))


def passed(node: SplitNode, nbytes: int) -> bool:
    """Whether the first card has handed on so much."""
    return node.executors()[0].passed_card_bytes >= nbytes


def timed(node: SplitNode, model: str, count: int) -> int:
    """Microseconds of a request, the median of some."""
    taken: list[float] = []
    for seed in range(TRIES):
        inputs = {"count": np.array([count], np.int64), "seed": np.array([seed], np.int64)}
        began = time.perf_counter()
        with node.router.infer(model, inputs, timeout_s=60.0):
            taken.append(time.perf_counter() - began)
    return round(median(taken) * 1e6)


def both_ready(node: SplitNode) -> bool:
    return wait_until(lambda: all(each.ready for each in node.executors()), 30.0, 0.01)


def test_peers_hand_on_every_byte_and_both_ways_are_timed(node: SplitNode, report: Report) -> None:
    figures: dict[str, Any] = {}
    for size in SIZES[:-1]:  # a caller's memory does not hold the largest twice
        x = np.random.default_rng(size).random(size // 4, dtype=np.float32)
        node.ask(x, timeout_s=60.0)
        assert node.ask(x, timeout_s=60.0).on_card, node.node.log
    for size in SIZES:
        for model in ("sums", "sums_on_host"):
            for seed in (3, -5, -7):  # rooms are made, slots are registered
                assert total(node, model, size // 4, seed) == (model == "sums"), node.node.log
            way = "card" if model == "sums" else "host"
            figures[f"{way}_{size // MIB}_mib_us"] = timed(node, model, size // 4)
    figures["small_us"] = timed(node, "sums", 1)
    first, _ = node.executors()
    figures["fallbacks"] = first.passed_fallbacks
    keep(report, "chain", **figures)
    assert first.passed_fallbacks == 0, node.node.log
    for size in SIZES[1:]:
        faster = figures[f"host_{size // MIB}_mib_us"] / figures[f"card_{size // MIB}_mib_us"]
        assert faster >= FASTER_MIN, figures


def test_peers_what_was_handed_on_outlives_the_process_that_made_it(node: SplitNode, report: Report) -> None:
    x = np.random.default_rng(11).random(16 * MIB // 4, dtype=np.float32)
    assert both_ready(node)
    node.ask(x)
    right = 0
    for _ in range(5):
        assert both_ready(node)
        maker, reader = node.executors()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(node.ask, x, 1.0)
            time.sleep(0.3)
            second = pool.submit(node.ask, x)  # it waits for the second card, which is busy
            assert wait_until(partial(passed, node, maker.passed_card_bytes + 2 * x.nbytes))
            time.sleep(0.1)  # counted, it is sent
            os.kill(maker.pid, signal.SIGKILL)
            assert first.result(60).attempts == 1
            answer = second.result(60)
        assert (answer.attempts, answer.pids) == (1, [maker.pid, reader.pid])
        assert answer.on_card
        right += 1
    keep(report, "outlives", right=right)


def test_peers_are_killed_and_broken_under_load_and_only_right_answers_come(node: SplitNode, report: Report) -> None:
    """Each of the executors by SIGKILL, and either by an illegal address: the other one never ends."""
    draw = np.random.default_rng(5)
    told = {"killed_first": 0, "killed_second": 0, "broken": 0}
    with Load(node, 4, (LARGE, 8 * LARGE)) as load:
        for number in range(KILLS):
            assert both_ready(node), node.node.log
            assert load.round(), node.node.log  # so that no request meets two deaths
            assert not load.errors, load.errors
            before = node.executors()
            time.sleep(float(draw.uniform(0.0, 0.2)))
            if number % 3 == 2:
                (node.folder / "break").touch()
                told["broken"] += 1
            else:
                os.kill(before[number % 2].pid, signal.SIGKILL)
                told["killed_second" if number % 2 else "killed_first"] += 1
            assert wait_until(partial(has_ended, node, before), 30.0, 0.01), node.node.log
            assert both_ready(node), node.node.log
            lost = [old.number for old, new in zip(before, node.executors(), strict=True) if old.pid != new.pid]
            assert len(lost) == 1, f"executors {lost} ended: {node.node.log}"
        assert load.round()
    assert not load.errors, load.errors
    count, retried = len(load.attempts), sum(each > 1 for each in load.attempts)
    keep(report, "killed", **told, right=count, attempts_max=max(load.attempts), retried=retried)
    assert max(load.attempts) <= 2, "one death cost a request more than one retry"
    assert node.ask(np.ones(LARGE, np.float32)).on_card
