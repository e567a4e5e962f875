"""What CUDA_VISIBLE_DEVICES leaves to a node: numbers, UUIDs, slices, and what cannot be known."""

from __future__ import annotations

import pytest

from fabric.errors import ConfigError
from workers.cuda.visible import ALONG_THE_BUS, shown_cards
from workers.device import Card, asked_devices, chosen_cards

ALIKE = tuple(Card(number, f"GPU-{name}{name}", "H200", 80 << 30) for number, name in enumerate("abcd"))
UNLIKE = (Card(0, "GPU-l", "L4", 24 << 30), Card(1, "GPU-h", "H200", 141 << 30))
SLICED = (
    Card(0, "MIG-p", "H200 MIG 3g.71gb", 71 << 30, "GPU-one"),
    Card(1, "MIG-q", "H200 MIG 3g.71gb", 71 << 30, "GPU-one"),
    Card(2, "GPU-two", "H200", 141 << 30),
)


def names(visible: str | None, cards: tuple[Card, ...] = ALIKE, order: str = "") -> list[str]:
    return [card.uuid[4:] for card in shown_cards(visible, order, cards)]


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        (None, ["aa", "bb", "cc", "dd"]),
        ("3,1", ["bb", "dd"]),
        (" 0 , 2 ", ["aa", "cc"]),
        ("GPU-dd,GPU-aa", ["aa", "dd"]),
        ("GPU-c", ["cc"]),  # the beginning of a UUID, as CUDA takes it
        ("GPU-", []),  # the beginning of more than one
        ("1,4,0", ["bb"]),  # what follows a word that names nothing is hidden
        ("1,-1,0", ["bb"]),
        ("1,,0", ["bb"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-zz,0", []),
        ("²", []),
    ],
)
def test_values_as_cuda_reads_them(visible: str | None, left: list[str]) -> None:
    assert names(visible) == left


def test_slices_by_their_own_name_and_by_their_card() -> None:
    assert names("MIG-q", SLICED) == ["q"]
    assert names("MIG-q,MIG-p", SLICED) == ["p", "q"]
    assert names("GPU-one", SLICED) == ["p", "q"]
    assert names("1", SLICED) == ["two"]  # numbers count cards
    assert names("0,1", SLICED) == ["p", "q", "two"]


def test_numbers_of_unlike_cards_are_refused_unless_they_count_along_the_bus() -> None:
    with pytest.raises(ConfigError, match=r"counts to 0 and the cards differ \(H200, L4\)"):
        shown_cards("0", "FASTEST_FIRST", UNLIKE)
    assert names("0", UNLIKE, ALONG_THE_BUS) == ["l"]
    assert names("GPU-h", UNLIKE) == ["h"]


def test_a_node_takes_the_cards_that_are_shown_under_their_own_numbers() -> None:
    shown = shown_cards("GPU-dd,1", "", ALIKE)
    assert chosen_cards(asked_devices("cuda:all"), ALIKE, shown) == (ALIKE[1], ALIKE[3])
    assert chosen_cards(asked_devices("cuda:3,cuda:GPU-bb"), ALIKE, shown) == (ALIKE[3], ALIKE[1])
    with pytest.raises(ConfigError, match=r"'0' is hidden by CUDA_VISIBLE_DEVICES, which leaves 1 \(GPU-bb\), 3 \(GPU"):
        chosen_cards(asked_devices("cuda:0"), ALIKE, shown)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES hides all 4 GPUs"):
        chosen_cards(asked_devices("cuda:all"), ALIKE, ())
