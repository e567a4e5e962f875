"""Loaders of the sets that users bring themselves, on rows made here with the documented columns."""

from pathlib import Path

import pytest

from examples.dispatch.data import lade, mdrplib, meituan


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_meal_day_is_read(tmp_path: Path) -> None:
    write(tmp_path / "orders.txt", "order\tx\ty\tplacement_time\trestaurant\tready_time", "o1\t10\t20\t5\tr1\t15")
    write(tmp_path / "restaurants.txt", "restaurant\tx\ty", "r1\t30\t40")
    write(tmp_path / "couriers.txt", "courier\tx\ty\ton_time\toff_time", "c1\t1\t2\t0\t240", "c2\t3\t4\t15\t135")
    day = mdrplib.load_day(tmp_path)
    assert day.orders == (mdrplib.MealOrder("o1", 10, 20, 5, "r1", 15),)
    assert day.shops == (mdrplib.Shop("r1", 30, 40),)
    assert day.couriers == (mdrplib.Courier("c1", 1, 2, 0, 240), mdrplib.Courier("c2", 3, 4, 15, 135))
    write(tmp_path / "restaurants.txt", "restaurant\tx\ty", "r2\t30\t40")
    with pytest.raises(ValueError, match="r1"):
        mdrplib.load_day(tmp_path)
    write(tmp_path / "restaurants.txt", "restaurant\tx", "r2\t30")
    with pytest.raises(ValueError, match="no column y"):
        mdrplib.load_day(tmp_path)
    write(tmp_path / "restaurants.txt", "restaurant\tx\ty", "r2\t30")
    with pytest.raises(ValueError, match="short of columns"):
        mdrplib.load_day(tmp_path)


def test_meituan_waybills_are_read(tmp_path: Path) -> None:
    names = list(meituan.Waybill.__slots__)
    path = write(
        tmp_path / meituan.WAYBILL_FILE,
        "," + ",".join(reversed(names)),
        "0," + ",".join(str(1000 + k) for k in reversed(range(len(names)))),
    )
    (waybill,) = meituan.read_waybills(path)
    assert [getattr(waybill, name) for name in names] == list(range(1000, 1000 + len(names)))


def test_meituan_rounds_and_waves_are_read(tmp_path: Path) -> None:
    waves = write(
        tmp_path / meituan.WAVE_FILE,
        "dt,courier_id,wave_id,wave_start_time,wave_end_time,order_ids",
        '20990101,7,0,100,200,"[11, 12, 13]"',
    )
    assert list(meituan.read_waves(waves)) == [meituan.Wave(20990101, 7, 0, 100, 200, (11, 12, 13))]
    riders = write(
        tmp_path / meituan.DISPATCH_RIDER_FILE,
        ",dt,dispatch_time,courier_id,rider_lat,rider_lng,courier_waybills",
        "0,20990101,100,7,45000000,174000000,[]",
        '1,20990101,100,8,45000001,174000001,"[5, 6]"',
    )
    assert [rider.courier_waybills for rider in meituan.read_candidate_riders(riders)] == [(), (5, 6)]
    orders = write(tmp_path / meituan.DISPATCH_WAYBILL_FILE, ",dt,dispatch_time,order_id", "0,20990101,100,9")
    assert list(meituan.read_orders_to_assign(orders)) == [meituan.OrderToAssign(20990101, 100, 9)]
    bad = write(tmp_path / "bad.csv", "dt,courier_id,wave_id,wave_start_time,wave_end_time,order_ids", "1,2,3,4,5,none")
    with pytest.raises(ValueError, match="list of whole numbers"):
        list(meituan.read_waves(bad))


def test_the_acknowledgement_stands_in_the_loader() -> None:
    assert meituan.__doc__ is not None
    assert meituan.ACKNOWLEDGEMENT in meituan.__doc__


COMMON = {
    "order_id": "42",
    "region_id": "3",
    "city": "Town",
    "courier_id": "9",
    "lng": "120.5",
    "lat": "30.25",
    "aoi_id": "77",
    "aoi_type": "14",
    "accept_time": "01-01 00:01:00",
    "accept_gps_lng": "",
    "accept_gps_lat": "",
    "ds": "101",
}


def test_lade_deliveries_and_pickups_are_read(tmp_path: Path) -> None:
    row = COMMON | {
        "delivery_time": "01-02 00:00:05",
        "delivery_gps_lng": "120.6",
        "delivery_gps_lat": "30.3",
        "accept_gps_time": "",
    }
    path = write(tmp_path / "delivery.csv", ",".join(row), ",".join(row.values()))
    (parcel,) = lade.read_deliveries(path)
    assert (parcel.number, parcel.accepted_s, parcel.finished_s) == ("42", 60, 86405)
    assert (parcel.accepted_at, parcel.finished_at, parcel.window_s) == (None, (120.6, 30.3), None)
    row = COMMON | {
        "time_window_start": "01-01 09:00:00",
        "time_window_end": "01-01 11:00:00",
        "pickup_time": "01-01 10:00:00",
        "pickup_gps_lng": "1",
        "pickup_gps_lat": "2",
    }
    row["package_id"] = row.pop("order_id")
    path = write(tmp_path / "pickup.csv", ",".join(row), ",".join(row.values()))
    (parcel,) = lade.read_pickups(path)
    assert (parcel.number, parcel.window_s, parcel.finished_s) == ("42", (32400, 39600), 36000)
    row["pickup_time"] = "yesterday"
    write(path, ",".join(row), ",".join(row.values()))
    with pytest.raises(ValueError, match="yesterday"):
        list(lade.read_pickups(path))
    del row["package_id"]
    write(path, ",".join(row), ",".join(row.values()))
    with pytest.raises(ValueError, match="order_id"):
        list(lade.read_pickups(path))
