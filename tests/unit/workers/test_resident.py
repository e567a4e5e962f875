"""The residents of a node: what is kept, what makes room, and what is never dropped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.dtypes import DType
from fabric.errors import InvalidArgument, ResidentMissing
from fabric.layout import TensorSpec, layout_of
from workers.lending import Lending
from workers.resident import Residents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.handover import Control


def descriptors(*names: str, carried: bool, nbytes: int = 100) -> bytes:
    specs = [
        TensorSpec(f"t{at}", DType.UINT8, (nbytes,), nbytes, hashlib.sha256(name.encode()).digest(), not carried)
        for at, name in enumerate(names)
    ]
    return layout_of(tuple(specs)).encoded


@pytest.fixture
def residents() -> Iterator[Residents]:
    made = Residents(250)
    yield made
    made.close()


def keep(residents: Residents, name: str, nbytes: int = 100) -> None:
    uses = residents.claim(descriptors(name, carried=True, nbytes=nbytes))
    for use in uses:
        use.kept.whole = use.kept.whole or use.fills
    residents.ended(uses)


def has(residents: Residents, name: str) -> bool:
    try:
        residents.ended(residents.claim(descriptors(name, carried=False)))
    except ResidentMissing:
        return False
    return True


def test_what_was_brought_once_may_be_referred_to(residents: Residents) -> None:
    assert not has(residents, "a")
    keep(residents, "a")
    assert has(residents, "a")
    assert (residents.nbytes, residents.missed) == (100, 1)


def test_what_was_not_filled_is_not_kept(residents: Residents) -> None:
    residents.ended(residents.claim(descriptors("a", carried=True)))
    assert not has(residents, "a")
    assert residents.nbytes == 0


def test_the_least_recently_used_makes_room_and_executors_hear_of_it(residents: Residents) -> None:
    dropped: list[int] = []
    residents.dropped = dropped.append
    for name in "ab":
        keep(residents, name)
    assert has(residents, "a")
    keep(residents, "c")
    assert [has(residents, name) for name in "abc"] == [True, False, True]
    assert dropped == [2]
    assert residents.nbytes == 200


def test_what_a_request_refers_to_is_not_dropped_and_the_newcomer_is_used_without_being_kept(
    residents: Residents,
) -> None:
    for name in "ab":
        keep(residents, name)
    held = residents.claim(descriptors("a", "b", carried=False))
    assert residents.claim(descriptors("c", carried=True)) == ()
    assert has(residents, "a")
    residents.ended(held)
    keep(residents, "c")
    assert has(residents, "c")


def test_more_than_the_budget_is_used_without_being_kept(residents: Residents) -> None:
    assert residents.claim(descriptors("a", carried=True, nbytes=251)) == ()
    assert len(residents) == 0


def test_a_name_has_one_size(residents: Residents) -> None:
    keep(residents, "a")
    with pytest.raises(InvalidArgument, match="its own shape"):
        residents.claim(descriptors("a", carried=True, nbytes=99))
    with pytest.raises(InvalidArgument, match="its own shape"):
        residents.claim(descriptors("a", carried=False, nbytes=101))


def test_a_refused_request_holds_nothing(residents: Residents) -> None:
    keep(residents, "a")
    with pytest.raises(ResidentMissing):
        residents.claim(descriptors("a", "b", carried=False))
    for name in "cd":
        keep(residents, name)
    assert not has(residents, "a"), "it was held by a request that never was"


def test_a_second_request_that_brings_what_is_being_filled_reads_its_own_body(residents: Residents) -> None:
    first = residents.claim(descriptors("a", carried=True))
    assert [use.fills for use in first] == [True]
    assert residents.claim(descriptors("a", carried=True)) == ()
    waiting = residents.claim(descriptors("a", carried=False))  # stands behind the one that fills it
    assert [use.fills for use in waiting] == [False]
    residents.ended(first)
    residents.ended(waiting)
    assert len(residents) == 0


def test_the_same_content_twice_in_one_request_is_kept_once(residents: Residents) -> None:
    uses = residents.claim(descriptors("a", "a", carried=True))
    assert [use.fills for use in uses] == [True, False]
    uses[0].kept.whole = True
    residents.ended(uses)
    assert residents.nbytes == 100
    assert has(residents, "a")


def test_the_number_of_residents_has_a_bound() -> None:
    residents = Residents(1 << 30, kept_max=16)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(16 + 8):
        keep(residents, f"n{number}", 1)
    assert len(residents) == 16
    assert not has(residents, "n0")
    residents.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_executor_is_told_once_of_what_is_whole_and_of_what_it_is_to_fill(residents: Residents) -> None:
    told: list[tuple[str, int]] = []
    filler, other = Lending(), Lending()
    uses = residents.claim(descriptors("a", carried=True))

    def send(control: Control, descriptors: tuple[int, ...] = ()) -> None:
        told.append((control.word, len(descriptors)))

    filler.tell(uses, send)
    other.tell(residents.claim(descriptors("a", carried=False)), send)
    assert told == [("fill", 1)], "what is not whole is lent to its filler alone"
    other.filled(uses[0].kept.number)
    assert not uses[0].kept.whole, "only who was to fill it says that it is filled"
    filler.filled(uses[0].kept.number)
    assert uses[0].kept.whole
    more = residents.claim(descriptors("a", carried=False))
    for lending in (filler, other, other):
        lending.tell(more, send)
    assert told == [("fill", 1), ("resident", 1)]
    other.drop(uses[0].kept.number, send)
    other.drop(uses[0].kept.number, send)
    assert told[2:] == [("let_go", 0)]
