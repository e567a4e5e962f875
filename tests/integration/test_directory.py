"""`dir:` against the world: dead, stopped and rival processes, full and read-only disks, litter, a crowd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from discovery.directory import DirectoryRegistry, DirectoryTimes
from discovery.instance import Change, Insert, Remove
from discovery.lease_file import LeaseFile, encode_lease, file_name
from discovery.lease_folder import LeaseFolder
from discovery.lease_reader import LeaseReader
from discovery.owner import Owner, this_process
from fabric.errors import ConfigError, RegistryUnavailable
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

ROOT = Path(__file__).resolve().parent.parent.parent
FAST = DirectoryTimes(heartbeat_s=0.1, ttl_s=0.8, full_read_s=0.1)
NODE = """
import sys, time
from discovery.directory import DirectoryRegistry, DirectoryTimes
from tests.unit.discovery.sample import instance
registry = DirectoryRegistry(sys.argv[1], DirectoryTimes(heartbeat_s=0.1, ttl_s=0.8))
lease = registry.register(instance("a", int(sys.argv[2])))
print("up", flush=True)
if len(sys.argv) > 3:
    sys.exit()  # without closing
time.sleep(60)
"""


def start_node(folder: Path, epoch: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", NODE, str(folder), str(epoch), *more]
    node = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stdout.readline() == b"up\n"
    return node


def end(node: subprocess.Popen[bytes]) -> None:
    node.kill()
    node.wait(5)
    assert node.stdout is not None
    node.stdout.close()


def put(folder: Path, owner: Owner, node_id: str = "a", beat_ns: int | None = None, ttl_s: float = 15.0) -> Path:
    raw = encode_lease(LeaseFile(owner, ttl_s, instance(node_id)))
    beat = time.monotonic_ns() if beat_ns is None else beat_ns
    os.close(LeaseFolder(folder).write(file_name(node_id), raw, beat))
    return folder / file_name(node_id)


def test_killed_process_is_gone_at_once_and_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    told = Told()
    node = start_node(folder, 1)
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        with closing(DirectoryRegistry(str(folder)).watch(told)):
            assert told.changes == [Insert(instance("a"))]
            node.kill()  # not waited for: a zombie is dead enough
            began = time.monotonic()
            told.wait(lambda changes: Remove("a", 1) in changes)
            assert told.times[-1] - began < 10.0, "one full read a second, not the time to live of 15 s"
        assert list(folder.iterdir()) == []
    finally:
        end(node)


def test_stopped_process_goes_after_its_time_and_comes_back(tmp_path: Path) -> None:
    told = Told()
    with closing(DirectoryRegistry(str(tmp_path), FAST).register(instance("other"))):
        node = start_node(tmp_path, 1)
        try:
            with closing(DirectoryRegistry(str(tmp_path), FAST).watch(told)):
                node.send_signal(signal.SIGSTOP)
                told.wait(lambda changes: Remove("a", 1) in changes)
                assert (tmp_path / file_name("a")).exists(), "who is only silent keeps its file"
                node.send_signal(signal.SIGCONT)
                told.wait(lambda changes: changes.count(Insert(instance("a"))) == 2)
        finally:
            end(node)


def test_restart_after_a_kill_replaces_the_lease(tmp_path: Path) -> None:
    end(start_node(tmp_path, 1))
    node = start_node(tmp_path, 2)
    try:
        assert DirectoryRegistry(str(tmp_path)).read() == (instance("a", 2),)
    finally:
        end(node)


def test_program_that_just_ends_leaves_no_lease(tmp_path: Path) -> None:
    node = start_node(tmp_path, 1, "exit")
    assert node.wait(30) == 0, "the heartbeat's thread must not keep the program"
    end(node)
    assert list(tmp_path.iterdir()) == []


def test_pid_of_another_process_is_no_life(tmp_path: Path) -> None:
    me = this_process()
    path = put(tmp_path, replace(me, started_ticks=me.started_ticks + 1))
    assert DirectoryRegistry(str(tmp_path)).read() == ()
    assert not path.exists()


def test_owner_elsewhere_is_judged_by_heartbeat_alone(tmp_path: Path) -> None:
    path = put(tmp_path, Owner("another machine", 1, 1), beat_ns=0)
    reader = LeaseReader(LeaseFolder(tmp_path))
    assert reader.read(100.0).instances == (instance("a"),)
    assert reader.read(115.0).instances == (instance("a"),)
    assert reader.read(115.1).instances == ()
    os.utime(path, ns=(5, 5))  # any change is a heartbeat, whatever clock wrote it
    assert reader.read(116.0).instances == (instance("a"),)
    assert reader.read(131.5).instances == ()
    assert path.exists()
    reader.read(116.0 + 150.1)
    assert not path.exists()


@pytest.mark.parametrize("beat_ns", [0, 1 << 62, 1_800_000_000_000_000_000])
def test_time_stamps_of_other_clocks_do_not_matter(tmp_path: Path, beat_ns: int) -> None:
    """A restored backup or a `touch` writes wall time, the future of any monotonic clock: the lease just lives."""
    owner = this_process() if beat_ns else Owner("another machine", 1, 1)
    put(tmp_path, owner, beat_ns=beat_ns)
    assert DirectoryRegistry(str(tmp_path)).read() == (instance("a"),)


def test_silence_shows_at_the_first_look_where_clocks_are_shared(tmp_path: Path) -> None:
    put(tmp_path, this_process(), beat_ns=time.monotonic_ns() - 16_000_000_000)
    assert DirectoryRegistry(str(tmp_path)).read() == ()


def test_litter_is_skipped_and_counted(tmp_path: Path) -> None:
    good = put(tmp_path, this_process())
    (tmp_path / "half.lease").write_bytes(good.read_bytes()[:99])
    (tmp_path / "copy.lease").write_bytes(good.read_bytes())
    (tmp_path / "empty.lease").touch()
    (tmp_path / "folder.lease").mkdir()
    (tmp_path / "link.lease").symlink_to(good)
    os.mkfifo(tmp_path / "pipe.lease")
    (tmp_path / "big.lease").write_bytes(b"x" * (2 << 20))
    (tmp_path / "notes.txt").touch()
    reader = LeaseReader(LeaseFolder(tmp_path))
    for now in (1.0, 2.0):
        assert reader.read(now).instances == (instance("a"),)
    assert reader.unreadable == 7, "each once, not once a read"


def test_lease_that_is_overwritten_keeps_its_last_good_facts(tmp_path: Path) -> None:
    path = put(tmp_path, this_process())
    reader = LeaseReader(LeaseFolder(tmp_path))
    reader.read(1.0)
    path.write_bytes(b"{")
    os.utime(path, ns=(time.monotonic_ns(),) * 2)
    assert reader.read(2.0).instances == (instance("a"),)
    assert reader.unreadable == 1


def test_every_change_within_one_tick_is_seen(tmp_path: Path) -> None:
    """A file system's clock stands still for some milliseconds: a file made just after a read has the same stamp."""
    told = Told()
    with closing(DirectoryRegistry(str(tmp_path), DirectoryTimes(full_read_s=60.0)).watch(told)):
        for number in range(40):
            put(tmp_path, this_process(), f"n{number}")
            time.sleep(0.003)
        told.wait(lambda changes: len(changes) == 40)


def test_deleted_lease_is_entered_again(tmp_path: Path) -> None:
    told = Told()
    registry = DirectoryRegistry(str(tmp_path), FAST)
    with closing(registry.register(instance("a"))), closing(registry.watch(told)):
        (tmp_path / file_name("a")).unlink()
        end_s = time.monotonic() + 10.0
        while registry.read() != (instance("a"),):
            assert time.monotonic() < end_s, "it is not entered again"
            time.sleep(0.05)
        assert told.changes == [Insert(instance("a"))], "an empty folder is no news for a while"


def test_full_disk(tmp_path: Path) -> None:
    """A heartbeat needs no space, and what cannot be written leaves the old lease as it was."""
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=32k,mode=0700", "none", str(small)], check=False
        ).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        registry = DirectoryRegistry(str(small), FAST)
        with closing(registry.register(instance("a"))) as registration:
            with pytest.raises(OSError, match="No space"):
                (small / "fill").write_bytes(b"x" * (1 << 20))
            with pytest.raises(RegistryUnavailable, match="free some space"):
                registry.register(instance("b"))
            with pytest.raises(RegistryUnavailable, match="free some space"):
                registration.update(replace(instance("a"), devices=("cpu:0", "cpu:1")))
            end_s = time.monotonic() + 10.0
            time.sleep(1.2)
            while registry.read() != (instance("a"),):  # a heartbeat may be late, and none comes where space is needed
                assert time.monotonic() < end_s, "dead past its time to live"
                time.sleep(0.05)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    def never(changes: tuple[Change, ...]) -> None:
        raise AssertionError(changes)

    missing = DirectoryRegistry(str(tmp_path / "missing"))
    with pytest.raises(RegistryUnavailable, match="start a node"):
        missing.read()
    with pytest.raises(RegistryUnavailable, match="start a node"):
        missing.watch(never)
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match="no folder"):
        DirectoryRegistry(str(tmp_path / "file" / "below")).register(instance())
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod o-w"):
        DirectoryRegistry(str(everybodys)).register(instance())
    with pytest.raises(ConfigError, match="node id"):
        DirectoryRegistry(str(tmp_path)).register(instance("x" * 300))


def test_read_only_folder(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        if subprocess.run(["mount", "--bind", "-o", "ro", str(tmp_path), str(tmp_path)], check=False).returncode:
            pytest.skip("needs the right to mount, or another user than root")
    else:
        tmp_path.chmod(0o500)
    try:
        registry = DirectoryRegistry(str(tmp_path))
        assert registry.read() == ()
        with pytest.raises(RegistryUnavailable, match="another folder"):
            registry.register(instance())
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(tmp_path)], check=True)
        else:
            tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("within_s", "share_max"), [(5.0, 0.4), pytest.param(0.1, 0.15, marks=pytest.mark.long)], ids=["busy", "quiet"]
)
def test_a_thousand_nodes(tmp_path: Path, within_s: float, share_max: float) -> None:
    """All are seen, a watch of them takes a small share of one core, and a new one is still told within 100 ms."""
    owner = this_process()
    for number in range(1000):
        put(tmp_path, owner, f"n{number}")
    told = Told()
    with closing(DirectoryRegistry(str(tmp_path)).watch(told)):
        assert len(told.changes) == 1000
        began, cpu = time.monotonic(), time.process_time()
        time.sleep(3.0)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        delays = []
        for number in range(5):
            began = time.monotonic()
            put(tmp_path, owner, f"new{number}")
            told.wait(lambda changes, count=1001 + number: len(changes) == count)  # type: ignore[misc]
            delays.append(told.times[-1] - began)
    assert sorted(delays)[2] <= within_s, delays
    assert share < share_max, f"{share:.1%} of a core"
