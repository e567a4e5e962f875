"""The INFORMS TSL-Meituan challenge data: waybills, courier waves, and the dispatcher's view at 24 lunch peaks.

Licence: CC BY-NC 4.0, "distribution to third parties is not allowed", so nothing of it is shipped and commercial use is
not allowed; the user names the folder of the four files. Whoever publishes research on it must write:

    This research was supported by data provided by Meituan.

Coordinates are integers, shifted degrees x 10^6; times are Unix seconds, 0 where a thing did not happen. Next: lade.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.dispatch.data.records import read_table, whole

ACKNOWLEDGEMENT = "This research was supported by data provided by Meituan."
WAYBILL_FILE = "all_waybill_info_meituan_0322.csv"
WAVE_FILE = "courier_wave_info_meituan.csv"
DISPATCH_RIDER_FILE = "dispatch_rider_meituan.csv"
DISPATCH_WAYBILL_FILE = "dispatch_waybill_meituan.csv"


@dataclass(frozen=True, slots=True)
class Waybill:
    """One offer of one order to one courier, grabbed or not."""

    dt: int
    order_id: int
    waybill_id: int
    courier_id: int
    da_id: int
    is_courier_grabbed: int
    is_weekend: int
    estimate_arrived_time: int
    is_prebook: int
    poi_id: int
    sender_lng: int
    sender_lat: int
    recipient_lng: int
    recipient_lat: int
    grab_lng: int
    grab_lat: int
    dispatch_time: int
    grab_time: int
    fetch_time: int
    arrive_time: int
    estimate_meal_prepare_time: int
    order_push_time: int
    platform_order_time: int


@dataclass(frozen=True, slots=True)
class Wave:
    """What one courier carried between two empty moments."""

    dt: int
    courier_id: int
    wave_id: int
    wave_start_time: int
    wave_end_time: int
    order_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CandidateRider:
    """A courier in one dispatch round, with the waybills in hand."""

    dt: int
    dispatch_time: int
    courier_id: int
    rider_lat: int
    rider_lng: int
    courier_waybills: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderToAssign:
    """An order in one dispatch round."""

    dt: int
    dispatch_time: int
    order_id: int


def read_waybills(path: Path) -> Iterator[Waybill]:
    """Yield the waybill table, row by row (it has 654,343). Raises ValueError where it is malformed."""
    names = tuple(Waybill.__slots__)
    for row in read_table(path, names):
        yield Waybill(*(whole(row, name, path) for name in names))


def read_waves(path: Path) -> Iterator[Wave]:
    """Yield the wave table. Raises ValueError where it is malformed."""
    for row in read_table(path, tuple(Wave.__slots__)):
        yield Wave(
            whole(row, "dt", path),
            whole(row, "courier_id", path),
            whole(row, "wave_id", path),
            whole(row, "wave_start_time", path),
            whole(row, "wave_end_time", path),
            _listed(row["order_ids"], path),
        )


def read_candidate_riders(path: Path) -> Iterator[CandidateRider]:
    """Yield the riders of the dispatch rounds. Raises ValueError where the table is malformed."""
    for row in read_table(path, tuple(CandidateRider.__slots__)):
        yield CandidateRider(
            whole(row, "dt", path),
            whole(row, "dispatch_time", path),
            whole(row, "courier_id", path),
            whole(row, "rider_lat", path),
            whole(row, "rider_lng", path),
            _listed(row["courier_waybills"], path),
        )


def read_orders_to_assign(path: Path) -> Iterator[OrderToAssign]:
    """Yield the orders of the dispatch rounds. Raises ValueError where the table is malformed."""
    names = tuple(OrderToAssign.__slots__)
    for row in read_table(path, names):
        yield OrderToAssign(*(whole(row, name, path) for name in names))


def _listed(text: str, path: Path) -> tuple[int, ...]:
    """Read a list of numbers as the files write it: `[1, 2]`, or with other separators."""
    if re.fullmatch(r"[\[\](){}\d\s,;.']*", text) is None:
        raise ValueError(f"{path}: {text[:60]!r} must be a list of whole numbers")
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
