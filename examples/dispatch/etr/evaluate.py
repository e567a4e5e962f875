"""How good the shipped networks are, by one command and without torch.

    python -m examples.dispatch.etr.evaluate --data DIR      etr_mini on the real test rows, etr on simulated rounds
    python -m examples.dispatch.etr.evaluate                 the simulated part only

The real rows are split by row index: test is index % 5 == 0, never trained on nor used to pick an epoch. The
simulated rounds are of a seed of their own. Weights are only read. Next: `bench.py`, which tells the speed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr import rounds
from examples.dispatch.etr.deliveries import Deliveries, Split, UnreadableRows, read_deliveries, split
from examples.dispatch.etr.modelfile import BrokenModelFile, shipped
from examples.dispatch.etr.network import MINI_WEEKDAYS
from examples.dispatch.etr.serve import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TEST_SEED, TEST_PAIRS = 3, 4096
FLOOR_DRAWS = 41  # enough draws that their median is within a few hundredths of a minute


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One row of a table. All in minutes but `within_3_min`, a share of 1."""

    model: str
    mae_min: float
    rmse_min: float
    within_3_min: float
    p90_min: float

    @classmethod
    def of(cls, model: str, answer: NDArray[np.floating], truth: NDArray[np.floating]) -> Accuracy:
        """Compare answers with the truth, both [N]."""
        error = np.abs(answer.astype(np.float64) - truth)
        return cls(
            model,
            float(error.mean()),
            float(np.sqrt((error**2).mean())),
            float((error <= 3.0).mean()),
            float(np.quantile(error, 0.9)),
        )


def _linear_columns(rows: Deliveries) -> NDArray[np.float64]:
    """Hour, miles, item counts, one column per weekday (which hold the intercept too)."""
    weekday = rows.inputs.ids[:, :1] == np.arange(MINI_WEEKDAYS)
    return np.concatenate((rows.inputs.dense, weekday), axis=1).astype(np.float64)


def real_table(parts: Split) -> tuple[Accuracy, ...]:
    """Median, linear least squares and the shipped `etr_mini` on the test rows; raises BrokenModelFile."""
    train, test = parts.train, parts.test
    median = np.full(len(test.minutes), np.median(train.minutes))
    slopes = np.linalg.lstsq(_linear_columns(train), train.minutes.astype(np.float64), rcond=None)[0]
    mini = Session(shipped("etr_mini"), threads=1).mini(test.inputs)
    return (
        Accuracy.of("median of training rows", median, test.minutes),
        Accuracy.of("linear", _linear_columns(test) @ slopes, test.minutes),
        Accuracy.of("etr_mini", mini, test.minutes),
    )


def simulated_table(pairs: int = TEST_PAIRS) -> tuple[Accuracy, ...]:
    """The plan alone, the plan corrected by one line, the shipped `etr`, and the floor, on SIMULATED deliveries."""
    city = rounds.make_city()
    test = rounds.simulate(city, pairs, TEST_SEED)
    pick, truth = test.is_delivery, test.true_min[test.is_delivery]
    fitted = rounds.simulate(city, pairs, TEST_SEED + 1)
    slope, intercept = np.polyfit(fitted.planned_min[fitted.is_delivery], fitted.true_min[fitted.is_delivery], 1)
    answer = Session(shipped("etr"), threads=1).etr(test.inputs)
    floor = rounds.best_possible(city, pairs, TEST_SEED, FLOOR_DRAWS)
    return (
        Accuracy.of("the plan itself", test.planned_min[pick], truth),
        Accuracy.of("linear in the plan", slope * test.planned_min[pick] + intercept, truth),
        Accuracy.of("etr", answer[pick], truth),
        Accuracy.of("knowing every hidden factor", floor[pick], truth),
    )


def format_table(title: str, table: tuple[Accuracy, ...]) -> str:
    """The rows as text."""
    lines = [title, f"{'model':<30}{'MAE min':>9}{'RMSE min':>10}{'within 3 min':>14}{'p90 min':>9}"]
    lines += [
        f"{row.model:<30}{row.mae_min:>9.3f}{row.rmse_min:>10.3f}{row.within_3_min:>14.1%}{row.p90_min:>9.2f}"
        for row in table
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.dispatch.etr.evaluate", description="Accuracy of the shipped networks."
    )
    parser.add_argument("--data", type=Path, help="the data folder with the real delivery rows")
    arguments = parser.parse_args(argv)
    try:
        if arguments.data is not None:
            parts = split(read_deliveries(arguments.data))
            print(
                format_table(
                    f"real deliveries of one restaurant, {len(parts.test.minutes)} test rows", real_table(parts)
                ),
                "\n",
            )
        print(format_table(f"SIMULATED rounds, deliveries of {TEST_PAIRS} pairs", simulated_table()))
    except (UnreadableRows, BrokenModelFile) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
