"""R25 on a fake card: an idle executor is asked beside other work that keeps the card busy, and a full one is not.

On a real card the same kernel proves each context before it serves (`tests/hw/test_gpu_device.py`).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.bad_node import wait_until
from workers.canary import ANSWER_S, EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.fake_cards import FakeNode

pytestmark = [
    pytest.mark.long,
    pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies"),
]
SLOW_S = 6.0
"""Of each question to a card that others keep busy: far above a run's, and below what a probe is granted."""


def test_a_probe_that_waits_for_a_busy_card_is_no_fault(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node()
    assert node.ask() == (1, 1)
    node.file("slow").write_text(str(SLOW_S))
    time.sleep(2 * (EVERY_S + 2 * SLOW_S))  # two probes, each of which waits for the card twice
    node.file("slow").unlink()
    assert node.ask(timeout_s=30.0)[0] == 1
    assert "did not answer a probe" not in node.node.log


def test_a_card_that_never_answers_a_probe_costs_a_generation(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node()
    assert node.ask() == (1, 1)
    node.file("slow").write_text("3600")
    try:
        assert wait_until(lambda: "did not answer a probe" in node.node.log, EVERY_S + ANSWER_S + 20.0), node.node.log
    finally:
        node.file("slow").unlink()
    assert wait_until(lambda: node.ask()[0] == 2, 20.0)


def test_a_card_that_is_never_idle_is_not_asked_and_nothing_is_restarted(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node()
    node.file("slow").write_text("0.01")
    over = time.monotonic() + 3 * EVERY_S
    generations: set[int] = set()

    def ask_on() -> None:
        while time.monotonic() < over:
            generations.add(node.ask()[0])

    callers = [threading.Thread(target=ask_on) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60.0)
    assert generations == {1}
    assert "generation" not in node.node.log
