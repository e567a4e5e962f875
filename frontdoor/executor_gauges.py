"""What a node's executors have been through, as figures for the metrics page.

This module asks nobody: `frontdoor/desk.py` does. Read `frontdoor/metrics.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from frontdoor.engine import Gauge

if TYPE_CHECKING:
    from fabric.control import ExecutorFacts


def gauges_of(executors: tuple[ExecutorFacts, ...]) -> tuple[Gauge, ...]:
    """A figure of each kind, with a value for each executor or each card."""
    labels = [(("executor", str(each.number)), ("device", each.device)) for each in executors]
    cards = {each.card: each for each in executors if each.card}  # several executors may sit on one

    def memory(name: str, tells: str, values: list[float]) -> Gauge:
        of_cards = tuple(((("gpu_uuid", card),), value) for card, value in zip(cards, values, strict=True))
        return Gauge(f"nv_gpu_memory_{name}_bytes", tells, counts=False, samples=of_cards)

    def gauge(name: str, tells: str, values: list[float], *, counts: bool = False) -> Gauge:
        return Gauge(f"overspill_executor_{name}", tells, counts, tuple(zip(labels, values, strict=True)))

    return (
        gauge("generation", "Processes of this executor so far, standbys too", [e.generation for e in executors]),
        gauge("ready", "Whether it takes work", [float(each.ready) for each in executors]),
        gauge("restarts", "Processes after the first", [e.generation - 1 for e in executors], counts=True),
        gauge(
            "registrations",
            "Times that its process has registered callers' memory with its GPU",
            [each.registrations for each in executors],
            counts=True,
        ),
        gauge("pinned_bytes", "Callers' memory registered with its GPU", [each.pinned_bytes for each in executors]),
        gauge(
            "passed_card_bytes",
            "What steps of ensembles have given the next executor's in memory of this one's GPU",
            [each.passed_card_bytes for each in executors],
            counts=True,
        ),
        gauge(
            "passed_host_bytes",
            "What steps of ensembles have given the next executor's in the host's memory",
            [each.passed_host_bytes for each in executors],
            counts=True,
        ),
        gauge(
            "passed_fallbacks",
            "Times that what could have gone from GPU to GPU went by way of the host's memory",
            [each.passed_fallbacks for each in executors],
            counts=True,
        ),
        memory("total", "Memory of the GPU", [each.card_bytes for each in cards.values()]),
        memory("used", "Memory of the GPU in use", [each.card_used_bytes for each in cards.values()]),
    )
