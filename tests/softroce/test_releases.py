"""Two releases of the rdma wire talk as the older one does, within the smaller limits of both; where that cannot be,
requests go over rpc and the reason is told.

The other release is scripted (`tests/softroce/other_release.py`): a real node, or a real router, in processes whose
version and limits differ. The rest of the protocol has one version so far.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.contract.world import wait_until
from tests.softroce.cuts import Node
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.guests(1, "native"), pytest.mark.long]
ADDRESS = "127.0.0.1:7071"
WIRE_S = 60.0
ROUNDS = 3
"""Of each size."""


class Release(NamedTuple):
    """What differs: the versions that it speaks, receives of each pair, and the room of each."""

    oldest: int
    newest: int
    depth: int
    room: int

    def runs(self, module: str) -> tuple[str, ...]:
        """The program that is `module` of this release."""
        return ("tests.softroce.other_release", *map(str, self), module)


LATER = Release(1, 3, 64, 8192)
EARLIER = Release(1, 1, 16, 2048)
ODD = Release(1, 2, 8, 1536)
"""Its room is no power of two."""
FAR = Release(7, 9, 32, 4096)


@contextmanager
def asking(release: Release | None) -> Iterator[here.Process]:
    program = ("tests.softroce.asker",) if release is None else release.runs("tests.softroce.asker")
    asker = here.Process(0, program[0], *program[1:], ADDRESS)
    try:
        yield asker
    finally:
        if asker.alive():
            asker.signal(9)
            asker.wait(WIRE_S)


@contextmanager
def serving(release: Release | None) -> Iterator[None]:
    node = Node(0, ADDRESS) if release is None else Node(0, ADDRESS, release.runs("overspill"))
    try:
        yield
    finally:
        node.close()


def ends_well(asker: here.Process) -> None:
    """It was answered all the time, and rightly."""
    assert asker.said(f"all {ROUNDS}", WIRE_S)
    asker.end_input()
    assert asker.said(" 0", WIRE_S), "answers were wrong, or it did not end"
    assert asker.wait(WIRE_S) == 0


@pytest.mark.parametrize("release", [LATER, EARLIER, ODD], ids=["later", "earlier", "odd"])
@pytest.mark.parametrize("which", ["node", "caller"])
def test_two_releases_talk_over_rdma(release: Release, which: str) -> None:
    """Bodies of 8 bytes to 2.4 MB: frames that fit behind a body's end at one side only, and regions that grow."""
    with (
        serving(release if which == "node" else None),
        asking(release if which == "caller" else None) as asker,
    ):
        assert asker.said("wire rdma", WIRE_S), "they did not come to rdma"
        ends_well(asker)


@pytest.mark.parametrize("which", ["node", "caller"])
def test_releases_that_are_too_far_apart_go_over_rpc(which: str) -> None:
    before = here.run(0, "rdma", "res", "show")
    with serving(FAR if which == "node" else None), asking(FAR if which == "caller" else None) as asker:
        assert asker.said("wire rpc", WIRE_S)
        assert asker.said("update the older side", WIRE_S)
        ends_well(asker)
    assert wait_until(lambda: here.run(0, "rdma", "res", "show") == before, WIRE_S)
