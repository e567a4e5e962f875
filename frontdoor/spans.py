"""Traces as OpenTelemetry tells them: OTLP in its JSON form, one document for some traces.

A request is a span of kind SERVER, and what its node did lies within it: `queue`, `h2d` (inputs gathered, on a GPU
copied there), `compute`, `d2h` (outputs brought back). Field names and forms are those of opentelemetry-proto 1.x with
its JSON rules: ids in hexadecimal, 64-bit numbers as texts. This module sends nothing. Read `frontdoor/trace_writer.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fabric.control import TracedRun
    from frontdoor.traces import Trace

_INTERNAL, _SERVER = 1, 2  # SpanKind
_ERROR: Final = 2  # Status.StatusCode
PARTS: Final = ("queue", "h2d", "compute", "d2h")

Attribute = tuple[str, str | int | float]


def document(
    traces: Iterable[tuple[Trace, TracedRun | None]], name: str, version: str, bits: Callable[[int], int]
) -> bytes:
    """One line of JSON: the traces of the front door `name`, each with what its node says of it."""
    spans = [span for trace, run in traces for span in _spans(trace, run, bits)]
    resource = {"attributes": _attributes((("service.name", "overspill"), ("service.instance.id", name)))}
    scope = {"scope": {"name": "overspill.frontdoor", "version": version}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode() + b"\n"


def _spans(trace: Trace, run: TracedRun | None, bits: Callable[[int], int]) -> list[dict[str, Any]]:
    facts: tuple[Attribute, ...] = (("overspill.model", trace.model), *trace.facts)
    whole = _span(trace, "infer", trace.span_id, trace.parent_id, (trace.began_ns, trace.ended_ns), facts)
    whole["kind"] = _SERVER
    if trace.error:
        whole["status"] = {"code": _ERROR, "message": trace.error}
    found = [whole]
    if run is not None:
        at_ns = run.arrived_us * 1000
        took_us = (run.queue_us, run.input_us, run.infer_us, run.output_us)
        for part, part_us in zip(PARTS, took_us, strict=True):
            until_ns = at_ns + part_us * 1000
            where = _where(run) if part == "compute" else ()
            found.append(_span(trace, part, f"{bits(64) or 1:016x}", trace.span_id, (at_ns, until_ns), where))
            at_ns = until_ns
    return found


def _where(run: TracedRun) -> tuple[Attribute, ...]:
    return (
        ("overspill.executor", run.executor), ("overspill.generation", run.generation), ("overspill.rows", run.rows),
        ("overspill.batch_rows", run.batch_rows),
    )  # fmt: skip


def _span(
    trace: Trace, name: str, span_id: str, parent_id: str, times_ns: tuple[int, int], facts: tuple[Attribute, ...]
) -> dict[str, Any]:
    began_ns, ended_ns = (at_ns + trace.epoch_ns for at_ns in times_ns)
    told: dict[str, Any] = {
        "traceId": trace.trace_id, "spanId": span_id, "name": name, "kind": _INTERNAL,
        "startTimeUnixNano": str(began_ns), "endTimeUnixNano": str(ended_ns),
    }  # fmt: skip
    if parent_id:
        told["parentSpanId"] = parent_id
    if trace.state:
        told["traceState"] = trace.state
    if facts:
        told["attributes"] = _attributes(facts)
    return told


def _attributes(facts: tuple[Attribute, ...]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in facts]


def _value(value: str | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
