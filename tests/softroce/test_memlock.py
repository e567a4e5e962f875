"""Too little memory may be locked: requests go over rpc and the reason names the limit; once it is raised, at either
end and with nothing started again, they go over rdma.

The process whose limit it is runs as a plain user: root is not held to it.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.softroce.cuts import Node
from tests.softroce.lab import here
from tests.softroce.plain import PID_FILE

pytestmark = [pytest.mark.guests(1, "native"), pytest.mark.long]
ADDRESS = "127.0.0.1:7071"
LITTLE = 1 << 20
"""Below the 4 MiB that a peer starts with."""
WIRE_S = 90.0
"""A wire that could not be opened is tried again after half a minute at most."""


def raise_limit(pid: int) -> None:
    """Of a process, and of those that it has started."""
    resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for status in Path("/proc").glob("[0-9]*/status"):
        if f"PPid:\t{pid}\n" in status.read_text():
            raise_limit(int(status.parent.name))


def comes_to_rdma(asker: here.Process) -> None:
    assert asker.said("wire rpc", WIRE_S)
    assert asker.said("memlock", WIRE_S), "the reason does not name the limit"
    raise_limit(int(PID_FILE.read_text()))
    assert asker.said("wire rdma", WIRE_S), "rdma did not come once the limit was raised"
    assert asker.said("all ", WIRE_S), "nothing was answered any more"
    asker.end_input()
    assert asker.said(" 0", WIRE_S), "answers were wrong, or none came"
    assert asker.wait(WIRE_S) == 0


def test_the_callers_limit_is_raised() -> None:
    node = Node(0, ADDRESS)
    try:
        comes_to_rdma(here.Process(0, "tests.softroce.plain", str(LITTLE), "tests.softroce.asker", ADDRESS))
    finally:
        node.close()


def test_the_nodes_limit_is_raised() -> None:
    node = Node(0, ADDRESS, ("tests.softroce.plain", str(LITTLE), "overspill"))
    try:
        comes_to_rdma(here.Process(0, "tests.softroce.asker", ADDRESS))
    finally:
        node.close()
