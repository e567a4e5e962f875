"""Regions of shared memory, over files of a folder: bounds, names by user, use after the end, closing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.errors import InvalidArgument, OverspillError
from frontdoor.clients import Owner
from frontdoor.cuda_regions import CudaRegion
from frontdoor.failures import Refusal, Status, status_of
from frontdoor.regions import REGIONS_MAX, Region, Regions
from frontdoor.values import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = Owner("uid 5", None, (10, 1), ("127.0.0.1", 1000))
MY_OTHER_PROCESS = Owner("uid 5", None, (11, 1), ("127.0.0.1", 1001))
ANOTHER = Owner("uid 6", None, (12, 1), ("127.0.0.1", 1002))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(bytes(range(100)))
    return tmp_path


@pytest.fixture(params=[False, True], ids=["copied", "mapped"])
def regions(request: pytest.FixtureRequest, folder: Path) -> Iterator[Regions]:
    made = Regions(trusted=request.param, folder=folder)
    yield made
    made.close()


def refused(regions: Regions, owner: Owner, name: str, key: str, offset: int, nbytes: int) -> Status:
    with pytest.raises(OverspillError) as raised:
        regions.register(owner, name, key, offset, nbytes)
    return status_of(raised.value)


def region_of(regions: Regions, owner: Owner, name: str) -> Region:
    (region,) = regions.of_kind(owner, name, Region)
    return region


def test_bytes_go_both_ways(regions: Regions, folder: Path) -> None:
    regions.register(ME, "r", "/key", 10, 50)
    region = regions.find(ME, "r")
    found = bytearray(5)
    region.read_into(3, memoryview(found))
    assert found == bytes(range(13, 18))
    region.write_from(40, memoryview(b"hello"))
    assert (folder / "key").read_bytes()[50:55] == b"hello"
    region.read_into(0, memoryview(bytearray()))


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 51), (50, 1), (2**62, 2**62), (51, 0)])
def test_a_place_outside_is_refused(regions: Regions, offset: int, nbytes: int) -> None:
    regions.register(ME, "r", "key", 10, 50)
    with pytest.raises(InvalidArgument):
        regions.find(ME, "r").check(Place("r", offset, nbytes))
    regions.find(ME, "r").check(Place("r", 50, 0))


def test_memory_that_was_cut_is_told(folder: Path) -> None:
    regions = Regions(folder=folder)
    regions.register(ME, "r", "key", 0, 100)
    os.truncate(folder / "key", 60)
    region = regions.find(ME, "r")
    with pytest.raises(InvalidArgument, match="shorter"):
        region.read_into(50, memoryview(bytearray(20)))
    with pytest.raises(InvalidArgument, match="shorter"):
        region.write_from(50, memoryview(bytes(20)))
    assert (folder / "key").stat().st_size == 60
    regions.close()


def test_parts_of_a_large_output_are_told_when_their_memory_was_cut(folder: Path) -> None:
    nbytes = 3 << 20
    (folder / "large").write_bytes(bytes(nbytes))
    regions = Regions(folder=folder)
    regions.register(ME, "r", "large", 100, nbytes - 100)
    region, words = regions.find(ME, "r"), bytes(range(1, 251)) * 8000
    region.write_part(7, 5, memoryview(words))
    assert (folder / "large").read_bytes()[112 : 112 + len(words)] == words
    # In the last page, where nothing comes up short; before it; and all of it.
    for size in (112 + len(words) - 1, 1 << 20, 0):
        os.truncate(folder / "large", size)
        with pytest.raises(InvalidArgument, match="shorter"):
            region.write_part(7, 5, memoryview(words))
        assert (folder / "large").stat().st_size == size
    regions.close()


def test_a_system_without_memory_is_told(folder: Path) -> None:
    regions = Regions(folder=folder)
    regions.register(ME, "r", "key", 0, 100)

    def full(_fd: int, _views: list[memoryview], _at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OverspillError) as raised:
        region_of(regions, ME, "r")._move(full, 0, memoryview(bytes(1)))
    assert status_of(raised.value) is Status.RESOURCE_EXHAUSTED
    regions.close()


def test_regions_of_all_kinds_have_one_space_of_names(regions: Regions) -> None:
    closed: list[int] = []
    regions.register(ME, "system", "key", 0, 10)
    regions.add(CudaRegion("cuda", ME, 64, 0, 7, closed.append))
    for name in ("system", "cuda"):
        with pytest.raises(Refusal, match="registered already"):
            regions.add(CudaRegion(name, ME, 64, 0, 8, closed.append))
        assert refused(regions, ME, name, "key", 0, 10) is Status.ALREADY_EXISTS
    assert [region.name for region in regions.of_kind(ME, "", CudaRegion)] == ["cuda"]
    with pytest.raises(Refusal, match="another kind"):
        regions.of_kind(ME, "system", CudaRegion)
    regions.unregister(ME, "cuda", Region)
    assert len(regions) == 2, "one of another kind is left alone"
    region = regions.find(ME, "cuda")
    region.hold()
    regions.unregister(ME, "", CudaRegion)
    assert (len(regions), closed) == (1, []), "in use"
    region.let_go()
    assert closed == [7]
    regions.close()


def test_names_are_each_users_own(regions: Regions) -> None:
    for owner in (ME, ANOTHER):
        regions.register(owner, "r", "key", 0, 10)
    assert refused(regions, MY_OTHER_PROCESS, "r", "key", 0, 10) is Status.ALREADY_EXISTS
    assert [region.name for region in regions.of_kind(ANOTHER, "", Region)] == ["r"]
    regions.unregister(ANOTHER, "r")
    assert region_of(regions, MY_OTHER_PROCESS, "r").key == "key"
    with pytest.raises(OverspillError):
        regions.find(ANOTHER, "r")


def test_unregistering_all_leaves_those_of_other_processes(regions: Regions) -> None:
    regions.register(ME, "mine", "key", 0, 10)
    regions.register(MY_OTHER_PROCESS, "its", "key", 0, 10)
    regions.unregister(ME, "")
    assert [region.name for region in regions.of_kind(ME, "", Region)] == ["its"]
    regions.unregister(ME, "its")  # by name one may
    assert len(regions) == 0
    regions.unregister(ME, "its")


def test_a_region_in_use_is_closed_after_its_last_user(regions: Regions) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    regions.register(ME, "r", "key", 0, 10)
    region = regions.find(ME, "r")
    region.hold()
    regions.unregister(ME, "r")
    found = bytearray(10)
    region.read_into(0, memoryview(found))
    assert found == bytes(range(10))
    region.let_go()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_cannot_be_registered_leaves_nothing_open(regions: Regions, folder: Path) -> None:
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to(folder / "key")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for key in ("", "/", "..", "a/b", "/a\0b", "x" * 300, "triton_python_backend_shm_region_7"):
        assert refused(regions, ME, "r", key, 0, 1) is Status.INVALID_ARGUMENT, key
    for key in ("none", "folder", "fifo", "link"):
        assert refused(regions, ME, "r", key, 0, 1) is Status.INTERNAL, key
    for offset, nbytes in ((0, 101), (100, 1), (2**63, 2**63), (0, 0)):
        assert refused(regions, ME, "r", "key", offset, nbytes) is Status.INVALID_ARGUMENT
    assert refused(regions, ME, "", "key", 0, 1) is Status.INVALID_ARGUMENT
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(regions) == 0


def test_a_user_gets_what_the_files_mode_gives_it(folder: Path) -> None:
    regions = Regions(folder=folder)
    file_uid = (folder / "key").stat().st_uid
    cases = [
        (file_uid, 0o600, True), (file_uid, 0o400, file_uid == 0), (file_uid + 1, 0o600, False),
        (file_uid + 1, 0o644, False), (file_uid + 1, 0o606, True), (None, 0o000, True),
    ]  # fmt: skip
    for number, (uid, mode, allowed) in enumerate(cases):
        (folder / "key").chmod(mode)
        owner = Owner(f"uid {uid}", uid, None, ("127.0.0.1", number))
        if allowed:
            regions.register(owner, "r", "key", 0, 1)
            regions.unregister(owner, "r")
        else:
            assert refused(regions, owner, "r", "key", 0, 1) is Status.INTERNAL
    regions.close()


def test_the_number_of_regions_is_bounded(folder: Path) -> None:
    regions = Regions(folder=folder)
    for number in range(REGIONS_MAX):
        regions.register(ME, f"r{number}", "key", 0, 1)
    assert refused(regions, ME, "more", "key", 0, 1) is Status.RESOURCE_EXHAUSTED
    regions.register(ANOTHER, "r", "key", 0, 1)
    assert regions.reap(ME) == REGIONS_MAX
    assert len(regions) == 1
    regions.close()
