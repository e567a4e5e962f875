"""Grubhub's single-courier problems: travel matrices of observed meal deliveries, and their proved optima.

Format of a .pdt file: `GRUBHUB: name`, `DIMENSION: N`, then N rows of N integers; node 0 is the courier, nodes 2i-1
and 2i pickup and delivery of order i; column 0 is zero, for the route is open. That is route_plan's own numbering.
Next: dumitrescu.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.data.records import read_lines, read_table, whole, whole_numbers


@dataclass(frozen=True, slots=True)
class GrubhubProblem:
    """One problem; travel is int32 [2n + 1, 2n + 1]."""

    name: str
    orders: int
    travel: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GrubhubOptimum:
    """A proved optimum: cost, and one optimal sequence in route_plan's stop codes."""

    name: str
    orders: int
    cost: int
    stops: tuple[int, ...]


def load_problem(path: Path) -> GrubhubProblem:
    """Read one .pdt file. Raises ValueError where it is not one."""
    lines = read_lines(path)
    if len(lines) < 2 or not lines[0].startswith("GRUBHUB:") or not lines[1].startswith("DIMENSION:"):
        raise ValueError(f"{path} does not begin with GRUBHUB: and DIMENSION:, give a .pdt file")
    (size,) = whole_numbers(lines[1].removeprefix("DIMENSION:"), path, 1)
    if size < 3 or size % 2 == 0 or len(lines) != size + 2:
        raise ValueError(f"{path}: DIMENSION {size} must be odd and followed by as many rows")
    travel = np.array([whole_numbers(line, path, size) for line in lines[2:]], np.int64)
    if travel.min() < 0 or travel.max() > 2**31 - 1 or travel[:, 0].any():
        raise ValueError(f"{path}: travel must lie in 0..2^31-1 with a zero first column")
    return GrubhubProblem(lines[0].removeprefix("GRUBHUB:").strip(), size // 2, travel.astype(np.int32))


def load_problems(folder: Path) -> tuple[GrubhubProblem, ...]:
    """Read all .pdt files of a folder by name."""
    return tuple(load_problem(path) for path in sorted(folder.glob("*.pdt")))


def load_optima(path: Path) -> tuple[GrubhubOptimum, ...]:
    """Read optimal.csv: `+i` is the pickup of order i, `-i` its delivery.

    Raises ValueError where a row is malformed.
    """
    optima = []
    for row in read_table(path, ("instance", "pairs", "optimal_cost", "optimal_sequence")):
        signed = whole_numbers(row["optimal_sequence"], path)
        stops = tuple(2 * stop - 1 if stop > 0 else -2 * stop for stop in signed)
        orders = whole(row, "pairs", path)
        if sorted(stops) != list(range(1, 2 * orders + 1)):
            raise ValueError(f"{path}: the sequence of {row['instance']} must visit each of its stops once")
        optima.append(GrubhubOptimum(row["instance"], orders, whole(row, "optimal_cost", path), stops))
    return tuple(optima)
