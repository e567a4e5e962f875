"""Shows a finished round: the table on the terminal, and one self-contained HTML page with a timeline.

Both are made from the same records. The page loads nothing from anywhere: its plot is inline SVG, one dot for each
request. This module never decides whether a round was good: `overspill/demo/records.py` does.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from overspill.demo.records import Audit, Fault, Record, percentile, recovery_s

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 340, 60, 20, 40
_COLOURS = ("#2a6fbb", "#d9822b", "#3f9b57", "#8a56ac", "#555")
_BAD = "#d00"
_LEGEND_STEP = 150
_TICKS = 5
"""About as many on each axis; the step between them is a round number."""
ERRORS_MAX = 10
ERRORS_CAPTION = "Errors callers saw"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a report tells of one round. `alone_s` is the time that one executor alone would have needed for
    the round's computing, by its measured speed; `limit_s` the round's time limit."""

    title: str
    seed: int
    took_s: float
    limit_s: float
    alone_s: float
    records: Sequence[Record]
    faults: Sequence[Fault]
    audit: Audit


def tables(outcome: Outcome) -> list[tuple[str, list[tuple[str, ...]]]]:
    """The report's tables: (caption, rows); the first row is the heading."""
    counted = outcome.audit
    verdict = [
        ("tasks", "lost", "wrong", "duplicated", "unknown (ledger)", "retried"),
        tuple(
            str(value)
            for value in (
                counted.requests,
                counted.lost,
                counted.wrong,
                counted.duplicated,
                counted.unknown,
                counted.retried,
            )
        ),
    ]
    stages: list[tuple[str, ...]] = [("stage", "requests", "p50 ms", "p99 ms", "compute p50 ms")]
    for stage in sorted({record.stage for record in outcome.records}):
        good = [record for record in outcome.records if record.stage == stage and not record.error]
        latency = [record.latency_ms for record in good]
        compute = percentile([record.compute_ms for record in good], 0.5)
        cells = (len(good), percentile(latency, 0.5), percentile(latency, 0.99), compute)
        stages.append((stage, str(cells[0]), *(f"{value:.1f}" for value in cells[1:])))
    shares: list[tuple[str, ...]] = [("node", "wire", "requests", "share")]
    answered = [record for record in outcome.records if not record.error]
    for worker, wire in sorted({(record.worker, record.wire) for record in answered}):
        count = sum((record.worker, record.wire) == (worker, wire) for record in answered)
        shares.append((worker, wire, str(count), f"{100 * count / len(answered):.0f} %"))
    faults: list[tuple[str, ...]] = [("fault", "target", "at s", "callers felt it for")]
    for fault in outcome.faults:
        felt = recovery_s(outcome.records, fault)
        told = f"{felt * 1e3:.0f} ms" if felt else "nothing had to be tried again"
        faults.append((fault.kind, fault.target, f"{fault.at_s:.2f}", told))
    return [("Outcome", verdict), ("Stages", stages), ("Nodes and wires", shares), ("Faults", faults)]


def summary(outcome: Outcome) -> str:
    """The round in one sentence."""
    in_time = "within" if outcome.took_s <= outcome.limit_s else "OVER"
    return (
        f"The round took {outcome.took_s:.1f} s, {in_time} its limit of {outcome.limit_s:.1f} s; one executor alone"
        f" would have computed for {outcome.alone_s:.1f} s."
    )


def as_text(outcome: Outcome) -> str:
    """The tables for a terminal."""
    lines = [summary(outcome)]
    for caption, rows in tables(outcome):
        lines += ["", caption]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
    told = errors(outcome)
    lines += ["", f"{ERRORS_CAPTION}:", *(f"  {error}" for error in told)] if told else []
    return "\n".join(lines)


def errors(outcome: Outcome) -> list[str]:
    """What callers were told, each sentence once, and how many more there were."""
    found = sorted({record.error for record in outcome.records if record.error})
    more = [f"… and {len(found) - ERRORS_MAX} others"] if len(found) > ERRORS_MAX else []
    return [*found[:ERRORS_MAX], *more]


def as_html(outcome: Outcome) -> str:
    """One page that needs nothing else."""
    parts = [
        f"<h1>{escape(outcome.title)}</h1><p>{escape(summary(outcome))} Seed {outcome.seed}.</p>",
        _timeline(outcome),
    ]
    for caption, rows in tables(outcome):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
        parts.append(f"<h2>{escape(caption)}</h2><table><tr>{head}</tr>{body}</table>")
    if told := errors(outcome):
        items = "".join(f"<li>{escape(error)}</li>" for error in told)
        parts.append(f"<h2>{ERRORS_CAPTION}</h2><ul>{items}</ul>")
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}"
        "table{border-collapse:collapse}td,th{padding:.25em .9em;border-bottom:1px solid #ddd;text-align:left}"
        "svg{width:100%;height:auto;background:#fafafa;border:1px solid #ddd}svg text{font-size:11px;fill:#444}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(outcome.title)}</title>'
        f"<style>{style}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _timeline(outcome: Outcome) -> str:
    """Latency over time, a dot for each request, a colour for each node, a line for each fault."""
    records = outcome.records
    ticks_ms = ticks(max((record.latency_ms for record in records), default=1.0) or 1.0)
    ticks_s = ticks(max([outcome.took_s, *(record.ended_s for record in records)]) or 1.0)
    top_ms, end_s = ticks_ms[-1], ticks_s[-1]
    workers = sorted({record.worker for record in records if record.worker})
    colours = {worker: _COLOURS[index % len(_COLOURS)] for index, worker in enumerate(workers)}

    def x(at_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * at_s / end_s

    def y(latency_ms: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * latency_ms / top_ms

    marks = [f'<line x1="{_LEFT}" y1="{y(0)}" x2="{_WIDTH - 10}" y2="{y(0)}" stroke="#888"/>']
    for at_s in ticks_s:
        anchor = "end" if at_s == end_s else "middle"  # the last label would be cut by the edge
        marks.append(f'<text x="{x(at_s):.0f}" y="{_HEIGHT - 22}" text-anchor="{anchor}">{at_s:g} s</text>')
    marks += [
        f'<text x="{_LEFT - 6}" y="{y(at_ms) + 4:.0f}" text-anchor="end">{at_ms:g} ms</text>' for at_ms in ticks_ms
    ]
    for record in records:
        colour = _BAD if record.error or not record.right else colours.get(record.worker, "#000")
        size = 3.5 if record.attempts > 1 or record.error else 2
        place = f"{record.worker} over {record.wire}" if record.worker else "no node"
        tip = f"{record.stage} on {place}, attempts {record.attempts}"
        marks.append(
            f'<circle cx="{x(record.ended_s):.1f}" cy="{y(record.latency_ms):.1f}" r="{size}" fill="{colour}"'
            f' fill-opacity=".65"><title>{escape(tip)}, {record.latency_ms:.1f} ms</title></circle>'
        )
    for fault in outcome.faults:
        at = f"{x(fault.at_s):.1f}"
        marks.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{y(0)}" stroke="{_BAD}" stroke-dasharray="4 3"/>')
        marks.append(f'<text x="{at}" y="{_TOP - 6}" text-anchor="middle">{escape(fault.kind)}</text>')
    legend = [(worker, colours[worker]) for worker in workers] + [("failed or wrong", _BAD)]
    for index, (name, colour) in enumerate(legend):
        left = _LEFT + _LEGEND_STEP * index
        marks.append(f'<circle cx="{left}" cy="{_HEIGHT - 8}" r="4" fill="{colour}"/>')
        marks.append(f'<text x="{left + 8}" y="{_HEIGHT - 4}">{escape(name)}</text>')
    told = "Each dot is a request: what its caller waited, over when it was answered. Larger dots were tried again."
    return f'<p>{told}</p><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Timeline">{"".join(marks)}</svg>'


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, about five of them: steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(most / _TICKS))
    step = next(power * each for each in (1, 2, 5, 10) if power * each * _TICKS >= most)
    return [number * step for number in range(ceil(most / step) + 1)]
