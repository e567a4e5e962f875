"""The page of metrics in Prometheus' text format: Triton's names, so that existing dashboards work, and our own.

It is written here and not by a library because the kept one appends `_total` to every counter, and Triton's names have
none (docs/decisions tells more). The figures are the engine's and the door's; nothing is measured here. Read
`frontdoor/counters.py` next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import OverspillError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fabric.control import ModelStatistics
    from frontdoor.door import Door

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples. `kind` is `counter` or `gauge`."""

    name: str
    tells: str
    kind: str
    samples: tuple[tuple[Labels, float], ...]


def exposition(families: Iterable[Family]) -> bytes:
    """The families as text (prometheus.io, Exposition formats)."""
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.tells}", f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            number = repr(int(value)) if float(value).is_integer() else repr(float(value)).replace("inf", "+Inf")
            lines.append(f"{family.name}{{{told}}} {number}" if told else f"{family.name} {number}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


async def page(door: Door) -> bytes:
    """The page as it is now. What the engine cannot tell is left out."""
    try:
        statistics = await door.engine.statistics("", "")
        gauges = await door.engine.gauges()
    except OverspillError:
        statistics, gauges = (), ()
    own = [Family(each.name, each.tells, "counter" if each.counts else "gauge", each.samples) for each in gauges]
    return exposition([*_of_models(statistics), *own, *_of_door(door), *_of_machine()])


def _of_models(figures: tuple[ModelStatistics, ...]) -> Iterator[Family]:
    def family(name: str, tells: str, kind: str, values: Sequence[float]) -> Family:
        labelled = tuple((_labels(each), value) for each, value in zip(figures, values, strict=True))
        return Family(name, tells, kind, labelled)

    def us(name: str) -> list[float]:
        return [getattr(each, name).ns // 1000 for each in figures]

    def counter(name: str, tells: str, values: Sequence[float]) -> Family:
        return family(f"nv_inference_{name}", tells, "counter", values)

    yield counter("request_success", "Successful inference requests", [each.success.count for each in figures])
    failed = []
    for each in figures:
        counts = dict(each.failures)
        failed += [((*_labels(each), ("reason", reason)), counts.get(reason, 0)) for reason in _REASONS]
    yield Family("nv_inference_request_failure", "Failed inference requests", "counter", tuple(failed))
    yield counter("count", "Inferences performed, rows of a batch each", [each.inference_count for each in figures])
    yield counter("exec_count", "Runs of the model, a batch each", [each.execution_count for each in figures])
    total = [(each.success.ns + each.fail.ns) // 1000 for each in figures]
    yield counter("request_duration_us", "Time of requests from end to end, in microseconds", total)
    yield counter("queue_duration_us", "Time of requests in the queue, in microseconds", us("queue"))
    yield counter("compute_input_duration_us", "Time of gathering inputs, in microseconds", us("compute_input"))
    yield counter("compute_infer_duration_us", "Time of runs, in microseconds", us("compute_infer"))
    yield counter("compute_output_duration_us", "Time of handing outputs over, in microseconds", us("compute_output"))
    pending: list[float] = [each.pending for each in figures]
    yield family("nv_inference_pending_request_count", "Requests that wait or run", "gauge", pending)


def _labels(figures: ModelStatistics) -> Labels:
    return ("model", figures.name), ("version", figures.version)


def _of_door(door: Door) -> Iterator[Family]:
    counters = door.counters
    asked = tuple(
        ((("protocol", protocol), ("status", status)), float(count))
        for (protocol, status), count in sorted(counters.requests.items())
    )
    yield Family("overspill_frontdoor_requests", "Inferences by protocol and status", "counter", asked)
    for name, counter in (("in", counters.bytes_in), ("out", counters.bytes_out)):
        samples = tuple(((("way", way),), float(count)) for way, count in sorted(counter.items()))
        yield Family(f"overspill_frontdoor_bytes_{name}", f"Bytes of tensors that came {name}", "counter", samples)
    expired = door.leases.expired if door.leases is not None else 0
    traced = tuple(((("state", state),), float(count)) for state, count in sorted(door.traces.counts.items()))
    yield Family("overspill_frontdoor_traces", "Traces of requests by what became of them", "counter", traced)
    yield Family("overspill_frontdoor_running", "Inferences on their way", "gauge", (((), counters.running),))
    yield Family("overspill_shm_regions", "Registered regions of shared memory", "gauge", (((), len(door.regions)),))
    yield Family(
        "overspill_frontdoor_copier_deaths", "Processes that copied regions, and ended", "counter",
        (((), door.copies.copier_deaths),),
    )  # fmt: skip
    yield Family("overspill_shm_bytes", "Bytes of them", "gauge", (((), door.regions.nbytes),))
    yield Family(
        "overspill_shm_lease_expiries", "Regions dropped as their client was gone", "counter", (((), expired),)
    )


def _of_machine() -> Iterator[Family]:
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):  # a system that tells it otherwise
        return
    yield Family("nv_cpu_memory_total_bytes", "Memory of the machine", "gauge", (((), total),))
    yield Family("nv_cpu_memory_used_bytes", "Memory of the machine in use", "gauge", (((), total - free),))
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    yield Family(
        "nv_cpu_utilization",
        "Share of the processors in use, from the load of a minute",
        "gauge",
        (((), min(load, 1.0)),),
    )
