"""From figures to a table and to the goals: every goal is a ratio of medians taken in one run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.timing import Figure

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a ratio, and what this run gave."""

    sentence: str
    bound: float
    ratio: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the run kept the bound."""
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


def medians(figures: Sequence[Figure]) -> dict[Key, tuple[float, float]]:
    """The median (p50_us, per_s) of each (name, size) over the rounds."""
    groups: defaultdict[Key, list[Figure]] = defaultdict(list)
    for figure in figures:
        groups[figure.name, figure.size_bytes].append(figure)
    return {
        key: (statistics.median(f.p50_us for f in group), statistics.median(f.per_s for f in group))
        for key, group in groups.items()
    }


def size_text(size: int) -> str:
    """64 B, 4 KiB, 16 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def as_text(found: dict[Key, tuple[float, float]], goals: Sequence[Goal]) -> str:
    """The table and the goals, for people."""
    lines = [f"{'what':44} {'size':>8} {'p50 us':>12} {'per s':>10}"]
    for (name, size), (p50, rate) in sorted(found.items(), key=lambda item: (item[0][0], item[0][1])):
        timed, counted = f"{p50:12.1f}" if p50 else " " * 12, f"{rate:10.0f}" if rate else ""
        lines.append(f"{name:44} {size_text(size):>8} {timed} {counted}".rstrip())
    lines.append("")
    for goal in goals:
        sign = "<=" if goal.at_most else ">="
        verdict = "met" if goal.met else "MISSED"
        lines.append(f"{verdict:7} {goal.ratio:8.2f} {sign} {goal.bound:<8g} {goal.sentence}")
    return "\n".join(lines)


def as_json(found: dict[Key, tuple[float, float]], goals: Sequence[Goal]) -> dict[str, object]:
    """The same for machines."""
    rows = [
        {"name": name, "size_bytes": size, "p50_us": p50, "per_s": rate} for (name, size), (p50, rate) in found.items()
    ]
    return {"figures": rows, "goals": [{**asdict(goal), "met": goal.met} for goal in goals]}
