"""Where a model goes on unlike cards, what is told where it does not, and that memory is counted before it is used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fabric.errors import ModelBroken, ResourceExhausted
from workers.fitting import Fit, Room, Spot, fit, parse_bytes, told_bytes
from workers.hostmemory import host_bytes
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
CPUS = tuple(Spot(number, f"cpu:{number}") for number in range(4))
CARDS = (
    Spot(0, "cuda:0", "NVIDIA H200", 141 * GIB, 100 * GIB),
    Spot(1, "cuda:1", "NVIDIA L4", 24 * GIB, 2 * GIB),
    Spot(2, "cpu:2"),
)
PLENTY = Room(100 * GIB, 0, 100 * GIB)
MODEL = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


def placed(
    more: str = "", spots: tuple[Spot, ...] = CPUS, *, file_bytes: int = GIB, room: Room = PLENTY,
    held: dict[int, int] | None = None, **parameters: str,
) -> Fit:  # fmt: skip
    for key, value in parameters.items():
        more += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return fit(read_config(MODEL + more, "m", "m", "1", "/m/1"), file_bytes, spots, held or {}, room)


def test_a_model_goes_everywhere_unless_it_says_otherwise() -> None:
    found = placed()
    assert (found.numbers, found.refused, found.need_bytes, found.hosted) == (frozenset(range(4)), "", GIB, 4)


def test_a_count_takes_those_that_hold_the_least() -> None:
    assert placed("instance_group { count: 2 }").numbers == {0, 1}
    assert placed("instance_group { count: 2 kind: KIND_CPU }", held={0: 5, 1: 1, 3: 1}).numbers == {1, 2}
    assert placed("instance_group [ { count: 1 }, { count: 2 } ]").numbers == {0, 1, 2}
    assert placed("instance_group { count: 9 }").numbers == frozenset(range(4))
    assert placed("instance_group { count: 1 kind: KIND_GPU }", CARDS, file_bytes=1).numbers == {0, 1}  # of each card


def test_gpus_are_meant_by_their_number_among_the_cards() -> None:
    cards = tuple(replace(spot, index=5 - spot.number) if spot.card else spot for spot in CARDS)
    assert placed("instance_group { gpus: [ 5 ] }", cards, file_bytes=1).numbers == {0}
    assert placed("instance_group { gpus: [ 4, 5 ] }", cards, file_bytes=1).numbers == {0, 1}
    assert placed("instance_group [ { gpus: 4 }, { gpus: 5 } ]", cards, file_bytes=1).numbers == {0, 1}
    assert placed("instance_group [ { gpus: 4 }, { count: 1 } ]", cards, file_bytes=1).numbers == {0, 1, 2}
    with pytest.raises(ModelBroken, match=r"has instance_group gpus \[7\]"):
        placed("instance_group { gpus: 7 }", cards)
    for wrong in ("gpus: [ -1 ]", "kind: KIND_CPU gpus: [ 0 ]"):
        with pytest.raises(ModelBroken, match="give numbers from 0, and no KIND_CPU"):
            placed(f"instance_group {{ {wrong} }}", cards)


@pytest.mark.parametrize(
    ("requires", "numbers"),
    [
        ("gpu", {0, 1}), ("cpu", {2}), ("gpu, memory>=40GiB", {0}), ("card=l4", {1}), ("memory>=1.5 GB", {0, 1, 2}),
        ("", {0, 1, 2}),
    ],
)  # fmt: skip
def test_requires(requires: str, numbers: set[int]) -> None:
    assert placed(spots=CARDS, file_bytes=1, requires=requires).numbers == numbers


def test_what_is_refused_is_told_with_its_reason() -> None:
    assert placed(spots=CARDS, file_bytes=1, requires="card=H200").refused == (
        "not on cuda:1, cpu:2: it requires card=H200"
    )
    assert "has profiles for h200, a10 only" in placed(spots=CARDS, file_bytes=1, profiles="h200, a10").refused
    with pytest.raises(
        ModelBroken, match="fits no device of this node: not on cpu:0, cpu:1, cpu:2, cpu:3: it requires"
    ):
        placed(requires="gpu")
    with pytest.raises(ModelBroken, match="KIND_GPU"):
        placed("instance_group { kind: KIND_GPU }")
    with pytest.raises(ModelBroken, match="give gpu, cpu"):
        placed(requires="cuda>12")


def test_the_hosts_memory_is_counted_for_all_instances_together() -> None:
    room = Room(10 * GIB, 4 * GIB, 8 * GIB)
    assert placed(memory_bytes="1.5GiB", room=room).hosted == 4
    with pytest.raises(ResourceExhausted, match=r"needs 1\.6 GiB for each of 4 instances; 6\.0 GiB are left"):
        placed(memory_bytes="1.6GiB", room=room)
    assert placed("instance_group { count: 3 }", memory_bytes="1.6GiB", room=room).hosted == 3
    with pytest.raises(ResourceExhausted, match=r"the system has 3\.0 GiB free"):
        placed(room=Room(10 * GIB, 0, 3 * GIB))
    with pytest.raises(ModelBroken, match="give a size"):
        placed(memory_bytes="much")


def test_each_cards_memory_is_its_own() -> None:
    with pytest.raises(ResourceExhausted, match=r"needs 3\.0 GiB on cuda:1; 2\.0 GiB of 24\.0 GiB are free"):
        placed(spots=CARDS, memory_bytes="3GiB", requires="gpu")
    found = placed(spots=CARDS, memory_bytes="3GiB", requires="card=H200", room=Room(0, 0, 0))
    assert (found.numbers, found.hosted) == ({0}, 0)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("2KiB", 2048), ("1.5 MB", 3 << 19), ("3G", 3 * GIB), ("1tib", 1 << 40), ("12 B", 12)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "-1", "GiB", "1.2.3", "5 bytes", "1e9"])
def test_no_sizes(text: str) -> None:
    assert parse_bytes(text) is None


def test_sizes_are_told_for_people() -> None:
    assert [told_bytes(count) for count in (5, 2048, 3 << 19, 40 * GIB)] == [
        "5 bytes", "2.0 KiB", "1.5 MiB", "40.0 GiB",
    ]  # fmt: skip


def test_a_containers_limit_counts_where_it_is_lower(tmp_path: Path) -> None:
    total, free = host_bytes()
    assert 0 < free <= total
    (tmp_path / "proc").mkdir()
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n")
    assert host_bytes(str(tmp_path)) == (1_024_000, 819_200)
    (cgroup / "memory.max").write_text("max\n")
    assert host_bytes(str(tmp_path)) == (1_024_000, 819_200)
    (cgroup / "memory.max").write_text("500000\n")
    (cgroup / "memory.current").write_text("300000\n")
    (cgroup / "memory.stat").write_text("anon 1\ninactive_file 1000\nactive_file 200\n")
    assert host_bytes(str(tmp_path)) == (500_000, 201_200)
