"""LaDe (Cainiao, arXiv 2306.10675, Apache-2.0): parcels picked up and delivered by real couriers in five cities.

Its smallest file is 4.74 MB on a hub, so it is not beside the other sets: the user names a CSV file of LaDe-D
(deliveries) or LaDe-P (pickups). Times are written `MM-DD HH:MM:SS` without a year and `ds` as MMDD; coordinates are
degrees. The parcel's number is called order_id in the files and package_id in the paper; both are read. Next:
sources.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from examples.dispatch.data.records import number, read_table, whole

YEAR = 2022  # the collection's year; files leave it out
_COMMON = (
    "region_id",
    "city",
    "courier_id",
    "lng",
    "lat",
    "aoi_id",
    "aoi_type",
    "accept_time",
    "accept_gps_lng",
    "accept_gps_lat",
    "ds",
)
DELIVERY_COLUMNS = (*_COMMON, "delivery_time", "delivery_gps_lng", "delivery_gps_lat")
PICKUP_COLUMNS = (*_COMMON, "time_window_start", "time_window_end", "pickup_time", "pickup_gps_lng", "pickup_gps_lat")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One parcel; accepted and finished are seconds since the year's beginning, places (longitude, latitude).

    window is the promised time of a pickup, None for deliveries; a GPS place is None where the file has none.
    """

    number: str
    region: int
    city: str
    courier: int
    place: tuple[float, float]
    area: int
    area_type: int
    day: int
    accepted_s: int
    accepted_at: tuple[float, float] | None
    finished_s: int
    finished_at: tuple[float, float] | None
    window_s: tuple[int, int] | None


def read_deliveries(path: Path) -> Iterator[Parcel]:
    """Yield the rows of a LaDe-D file. Raises ValueError where it is malformed."""
    for row in read_table(path, DELIVERY_COLUMNS):
        yield _parcel(row, path, "delivery", None)


def read_pickups(path: Path) -> Iterator[Parcel]:
    """Yield the rows of a LaDe-P file. Raises ValueError where it is malformed."""
    for row in read_table(path, PICKUP_COLUMNS):
        window = (_seconds(row["time_window_start"], path), _seconds(row["time_window_end"], path))
        yield _parcel(row, path, "pickup", window)


def _parcel(row: Mapping[str, str], path: Path, task: str, window_s: tuple[int, int] | None) -> Parcel:
    name = row.get("order_id") or row.get("package_id")
    if not name:
        raise ValueError(f"{path} must have a column order_id (or package_id)")
    return Parcel(
        name,
        whole(row, "region_id", path),
        row["city"],
        whole(row, "courier_id", path),
        (number(row, "lng", path), number(row, "lat", path)),
        whole(row, "aoi_id", path),
        whole(row, "aoi_type", path),
        whole(row, "ds", path),
        _seconds(row["accept_time"], path),
        _gps(row, "accept", path),
        _seconds(row[f"{task}_time"], path),
        _gps(row, task, path),
        window_s,
    )


def _gps(row: Mapping[str, str], task: str, path: Path) -> tuple[float, float] | None:
    if not row[f"{task}_gps_lng"] or not row[f"{task}_gps_lat"]:
        return None
    return number(row, f"{task}_gps_lng", path), number(row, f"{task}_gps_lat", path)


def _seconds(text: str, path: Path) -> int:
    try:
        moment = datetime.strptime(f"{YEAR}-{text.strip()}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"{path}: {text!r} must be a time MM-DD HH:MM:SS") from None
    return int((moment - datetime(YEAR, 1, 1, tzinfo=UTC)).total_seconds())
