"""Grubhub's meal-delivery days (github grubhub/mdrplib): orders, shops and couriers of one day, in metres and minutes.

The repository states no licence ("to advance research"), so nothing of it is shipped: the user names a folder of
public_instances, with orders.txt, restaurants.txt and couriers.txt, tab-separated. Times are minutes since the day's
beginning. Travel is straight-line metres over the instance's speed, 320 m/min, with 4 minutes of service at both ends.
Next: meituan.py.
"""

from dataclasses import dataclass
from pathlib import Path

from examples.dispatch.data.records import read_table, whole


@dataclass(frozen=True, slots=True)
class MealOrder:
    """One order: where it goes, when it was placed and when the meal is ready (minutes)."""

    name: str
    x: int
    y: int
    placement_min: int
    shop: str
    ready_min: int


@dataclass(frozen=True, slots=True)
class Shop:
    """One restaurant's place."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Courier:
    """One courier's shift: where it begins, and from when to when (minutes)."""

    name: str
    x: int
    y: int
    on_min: int
    off_min: int


@dataclass(frozen=True, slots=True)
class MealDay:
    """One instance."""

    name: str
    orders: tuple[MealOrder, ...]
    shops: tuple[Shop, ...]
    couriers: tuple[Courier, ...]


def load_day(folder: Path) -> MealDay:
    """Read one instance's folder.

    Raises ValueError where a file is malformed, FileNotFoundError where it is missing.
    """
    orders, shops, couriers = (folder / f"{kind}.txt" for kind in ("orders", "restaurants", "couriers"))
    day = MealDay(
        folder.name,
        tuple(
            MealOrder(
                row["order"],
                whole(row, "x", orders),
                whole(row, "y", orders),
                whole(row, "placement_time", orders),
                row["restaurant"],
                whole(row, "ready_time", orders),
            )
            for row in read_table(
                orders, ("order", "x", "y", "placement_time", "restaurant", "ready_time"), delimiter="\t"
            )
        ),
        tuple(
            Shop(row["restaurant"], whole(row, "x", shops), whole(row, "y", shops))
            for row in read_table(shops, ("restaurant", "x", "y"), delimiter="\t")
        ),
        tuple(
            Courier(
                row["courier"],
                whole(row, "x", couriers),
                whole(row, "y", couriers),
                whole(row, "on_time", couriers),
                whole(row, "off_time", couriers),
            )
            for row in read_table(couriers, ("courier", "x", "y", "on_time", "off_time"), delimiter="\t")
        ),
    )
    unknown = {order.shop for order in day.orders} - {shop.name for shop in day.shops}
    if unknown:
        raise ValueError(f"{orders} names restaurant {min(unknown)}, which {shops} does not list")
    return day
