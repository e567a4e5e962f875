"""Shows a comparison: a table for the terminal, and one self-contained HTML page with p99 against load.

Both are made from the same cells. The page loads nothing from anywhere: its plot is inline SVG. This module runs
nothing and judges nothing.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from router.policies.table import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.simulator.compare import Cell

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 960, 460, 70, 20, 40, 240
_COLOURS = (
    "#2a6fbb",
    "#d9822b",
    "#3f9b57",
    "#8a56ac",
    "#b03a48",
    "#5a9bd5",
    "#7a7a7a",
    "#b8860b",
    "#20808d",
    "#c05fa0",
)
_OURS, _ORACLE = "#000", "#888"
YARDSTICK = "oracle"
HEADING = (
    "policy", "load", "mean", "p50", "p90", "p99", "p99.9", "to oracle", "messages", "twice", "far", "busiest", "herd",
)  # fmt: skip


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """The table; the first row is its heading. Times in milliseconds."""
    yardstick = {cell.load: cell.figures.p99_ms for cell in cells if cell.policy == YARDSTICK}
    found: list[tuple[str, ...]] = [HEADING]
    for cell in sorted(cells, key=lambda cell: (cell.load, -cell.figures.p99_ms)):
        figures, best_ms = cell.figures, yardstick.get(cell.load)
        times = (figures.mean_ms, figures.p50_ms, figures.p90_ms, figures.p99_ms, figures.p999_ms)
        found.append(
            (
                cell.policy,
                f"{cell.load:.0%}",
                *(f"{ms:.1f}" if ms < 1000.0 else f"{ms:.0f}" for ms in times),
                f"{figures.p99_ms / best_ms:.2f}" if best_ms else "-",
                f"{figures.messages:.1f}",
                f"{figures.twice_share:.1%}",
                f"{figures.far_share:.0%}",
                f"{figures.busiest:.2f}",
                f"{figures.herd:.1f}",
            )
        )
    return found


def as_text(title: str, cells: Sequence[Cell]) -> str:
    """The table for a terminal."""
    table = rows(cells)
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADING))]
    lines = [title, ""]
    for row in table:
        first, *rest = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def as_html(title: str, command: str, cells: Sequence[Cell]) -> str:
    """One page that needs nothing else."""
    head, *body = rows(cells)
    table = "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"
    for row in body:
        told = escape(BY_NAME[row[0]].title)
        table += (
            f'<tr><td title="{told}">{escape(row[0])}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
        )
    titles = "".join(
        f"<li><b>{escape(name)}</b>: {escape(BY_NAME[name].title)}</li>"
        for name in dict.fromkeys(cell.policy for cell in cells)
    )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}"
        "table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}"
        "td:first-child,th:first-child{text-align:left}"
        "svg{width:100%;height:auto;background:#fafafa;border:1px solid #ddd}svg text{font-size:12px;fill:#444}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>p99 of what callers waited, in milliseconds, against load. Made by"
        f" <code>{escape(command)}</code>.</p>{_plot(cells)}<table>{table}</table><ul>{titles}</ul></body></html>\n"
    )


def _plot(cells: Sequence[Cell]) -> str:
    """p99 over load, on a logarithmic scale; a line for each policy, its name at the right end."""
    loads = sorted({cell.load for cell in cells})
    values = [max(cell.figures.p99_ms, 0.01) for cell in cells]
    low, high = floor(log10(min(values))), max(ceil(log10(max(values))), floor(log10(min(values))) + 1)
    span = (loads[-1] - loads[0]) or 1.0

    def x(load: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (load - loads[0]) / span

    def y(ms: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (log10(max(ms, 0.01)) - low) / (high - low)

    marks = []
    for power in range(low, high + 1):
        at = y(10.0**power)
        marks.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" stroke="#ddd"/>')
        marks.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    marks += [f'<text x="{x(load):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{load:.0%}</text>' for load in loads]
    lines = []
    for at, name in enumerate(dict.fromkeys(cell.policy for cell in cells)):
        points = sorted((cell.load, cell.figures.p99_ms) for cell in cells if cell.policy == name)
        colour = _OURS if name == "ours" else _ORACLE if name == YARDSTICK else _COLOURS[at % len(_COLOURS)]
        lines.append((y(points[-1][1]), name, colour, points))
    label_y = 0.0
    for end_y, name, colour, points in sorted(lines):
        label_y = max(end_y, label_y + 15.0)  # names of lines that end together stand below each other
        path = " ".join(f"{x(load):.1f},{y(ms):.1f}" for load, ms in points)
        width = 3 if name in {"ours", YARDSTICK} else 1.5
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        for load, ms in points:
            tip = f"<title>{escape(name)}: {ms:.1f} ms at {load:.0%}</title>"
            marks.append(f'<circle cx="{x(load):.1f}" cy="{y(ms):.1f}" r="3" fill="{colour}">{tip}</circle>')
        left, right = x(points[-1][0]) + 4, _WIDTH - _RIGHT + 18
        where = f'x1="{left:.1f}" y1="{end_y:.1f}" x2="{right}" y2="{label_y:.1f}"'
        marks.append(f'<line {where} stroke="{colour}" stroke-opacity=".4"/>')
        told = f"{escape(name)} {points[-1][1]:.0f} ms"
        marks.append(f'<text x="{right + 4}" y="{label_y + 4:.1f}" style="fill:{colour}">{told}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="p99 against load">{"".join(marks)}</svg>'
