"""The real rows: one restaurant's deliveries, their fixed split, and the tensors that `etr_mini` reads.

The file is `food_delivery_time/deliveries.csv` of the data folder (a published teaching set, MIT, from
tidymodels/modeldata): minutes from order to receipt, decimal hour, weekday, miles, and the counts of 27 menu items.
It is read from where the user keeps it and never copied. One restaurant, no rider, no route and little noise: it
proves the pipeline, not couriers' habits. Next: `evaluate.py`, which prints the accuracy table.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr.network import MINI_ITEMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from examples.dispatch.etr.features import Float32, Int32

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FILE = Path("food_delivery_time") / "deliveries.csv"
HEADER = ("time_to_delivery", "hour", "day", "distance", *(f"item_{item:02d}" for item in range(1, MINI_ITEMS + 1)))


class UnreadableRows(ValueError):
    """The delivery file is missing or not in its documented form."""


@dataclass(frozen=True, slots=True)
class MiniInputs:
    """The tensors of `etr_mini`, N orders.

    ids: int32 [N, 2] = weekday (Monday 0), half hour of the week (0 to 335). dense: float32 [N, 29] = decimal hour of
    the day, miles from the restaurant, then how many of each of the 27 menu items.
    """

    ids: Int32
    dense: Float32

    def rows(self, pick: slice | NDArray[np.intp]) -> MiniInputs:
        """The same tensors for some of the orders."""
        return MiniInputs(self.ids[pick], self.dense[pick])


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Orders with the truth: minutes from order to receipt, float32 [N]."""

    inputs: MiniInputs
    minutes: Float32

    def rows(self, pick: NDArray[np.intp]) -> Deliveries:
        """Some of the orders."""
        return Deliveries(self.inputs.rows(pick), self.minutes[pick])


@dataclass(frozen=True, slots=True)
class Split:
    """The fixed split by row index modulo 5: 0 is test, 1 is validation, the rest is for training."""

    train: Deliveries
    validation: Deliveries
    test: Deliveries


def mini_inputs(day: NDArray[np.integer], hour: NDArray[np.floating], dense_rest: NDArray[np.floating]) -> MiniInputs:
    """Tensors from weekday [N] (Monday 0), decimal hour [N] and miles plus item counts [N, 28]."""
    slot = day * 48 + np.clip(np.floor(hour * 2.0), 0, 47).astype(np.int64)
    ids = np.stack((day, slot), axis=1).astype(np.int32)
    return MiniInputs(ids, np.concatenate((hour[:, None], dense_rest), axis=1).astype(np.float32))


def read_deliveries(data: Path) -> Deliveries:
    """All rows of the file in the data folder, in file order; raises UnreadableRows."""
    path = data / FILE
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            header, *rows = csv.reader(stream)
    except (OSError, ValueError, csv.Error) as error:
        raise UnreadableRows(f"Cannot read {path}: give the data folder that holds {FILE} with --data.") from error
    if tuple(header) != HEADER or not rows:
        raise UnreadableRows(
            f"{path} has other columns than time_to_delivery, hour, day, distance, item_01 to item_27."
        )
    try:
        day = np.array([WEEKDAYS.index(row[2]) for row in rows])
        numbers = np.array([[row[0], row[1], *row[3:]] for row in rows], dtype=np.float64)
    except (ValueError, IndexError) as error:
        raise UnreadableRows(f"{path} holds a row that is not numbers and a weekday: fetch the file again.") from error
    return Deliveries(mini_inputs(day, numbers[:, 1], numbers[:, 2:]), numbers[:, 0].astype(np.float32))


def split(deliveries: Deliveries) -> Split:
    """The fixed split."""
    fold = np.arange(len(deliveries.minutes)) % 5
    test, validation, train = (np.flatnonzero(which) for which in (fold == 0, fold == 1, fold > 1))
    return Split(deliveries.rows(train), deliveries.rows(validation), deliveries.rows(test))
