"""Clients are known by the kernel's tables: addresses, users, processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fabric.errors import InvalidArgument
from frontdoor.clients import Owner, client_end, holder_of, parse_peer, read_sockets, start_time, still_holds

if TYPE_CHECKING:
    from pathlib import Path

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 0100007F:1F41 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0 20 4 30 10 -1
   2: 0100007F:C350 0100007F:1F41 01 00000000:00000000 00:00000000 00000000  1000        0 102 1 0 20 4 30 10 -1
   3: 0100007F:C351 0100007F:1F41 06 00000000:00000000 03:00001234 00000000  1000        0 0 3 0
 garbage
"""
_TAIL = "01 00000000:00000000 00:00000000 00000000"
_HERE, _V6 = "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"
TCP6 = f"""  sl  local_address remote_address st tx rx tr tm retrnsmt uid timeout inode
   0: {_HERE}:C352 {_HERE}:1F41 {_TAIL}  1001        0 103 1
   1: {_V6}:C353 {_V6}:1F41 {_TAIL}  1002        0 104 1
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TCP)
    (tmp_path / "net" / "tcp6").write_text(TCP6)
    return tmp_path


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50000", ("127.0.0.1", 50000)),
        ("ipv6:%5B::1%5D:50000", ("::1", 50000)),
        ("ipv6:[::ffff:127.0.0.1]:50000", ("127.0.0.1", 50000)),
        ("[fe80::1%25eth0]:7", ("fe80::1", 7)),
        ("10.0.0.1:7", ("10.0.0.1", 7)),
    ],
)
def test_addresses_are_read(peer: str, address: tuple[str, int]) -> None:
    assert parse_peer(peer) == address


@pytest.mark.parametrize("peer", ["unix:", "unix:/run/x", "", "host:1", "ipv4:127.0.0.1"])
def test_what_is_no_address_is_refused(peer: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_peer(peer)


@pytest.mark.parametrize(
    ("client", "uid"), [(("127.0.0.1", 50000), 1000), (("127.0.0.1", 50002), 1001), (("::1", 50003), 1002)]
)
def test_the_clients_end_tells_its_user(proc: Path, client: tuple[str, int], uid: int) -> None:
    end = client_end(read_sockets(proc), client, 8001)
    assert end is not None
    assert end.uid == uid


def test_an_end_that_is_elsewhere_or_over_is_none(proc: Path) -> None:
    sockets = read_sockets(proc)
    assert client_end(sockets, ("127.0.0.1", 50001), 8001) is None, "closed"
    assert client_end(sockets, ("10.0.0.1", 50000), 8001) is None, "of another host"
    assert client_end(sockets, ("127.0.0.1", 50000), 8000) is None, "to another port"


def test_a_socket_is_found_in_its_process(proc: Path) -> None:
    process = proc / "42"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "7").symlink_to("socket:[102]")
    (process / "stat").write_text(f"42 (a) b) S {' '.join(['0'] * 18)} 777 0 0")
    found = holder_of(102, proc)
    assert found is not None
    assert found[0] == (42, 777)
    assert holder_of(103, proc) is None
    assert still_holds(found[1], 102)
    found[1].unlink()
    assert not still_holds(found[1], 102), "the connection is over; another one may have its port"
    found[1].symlink_to("socket:[104]")
    assert not still_holds(found[1], 102)


def test_what_cannot_be_seen_is_not_gone(proc: Path) -> None:
    (proc / "45" / "stat").mkdir(parents=True)  # reading it fails, as it does without descriptors
    with pytest.raises(OSError, match="directory"):
        start_time(45, proc)


def test_a_zombie_is_gone(proc: Path) -> None:
    (proc / "43").mkdir()
    (proc / "43" / "stat").write_text(f"43 (x) Z {' '.join(['0'] * 18)} 777")
    assert start_time(43, proc) is None
    assert start_time(44, proc) is None
    assert start_time(os.getpid()) is not None


def test_who_is_the_same_client() -> None:
    first = Owner("uid 1", 1, (10, 1), ("127.0.0.1", 1))
    assert first.same_client(Owner("uid 1", 1, (10, 1), ("127.0.0.1", 2))), "another connection of the process"
    assert not first.same_client(Owner("uid 1", 1, (10, 2), ("127.0.0.1", 1))), "its number was given to another"
    assert first.same_client(Owner("uid 1", 1, None, ("127.0.0.1", 1)))
