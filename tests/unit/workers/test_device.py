"""The words that name devices, and which cards an executor gets."""

from __future__ import annotations

import pytest

from fabric.errors import ConfigError
from workers.child import child_environment
from workers.device import Asked, Card, asked_devices, chosen_cards, device_word

CARDS = (Card(0, "GPU-a", "A", 80 << 30), Card(1, "GPU-b", "B", 24 << 30), Card(2, "MIG-c", "A slice", 10 << 30))


def test_words_of_the_command_line() -> None:
    assert asked_devices("cpu:2") == (Asked("cpu", "2"),)
    assert asked_devices("cuda:all, cpu:1") == (Asked("cuda", "all"), Asked("cpu", "1"))
    assert asked_devices("cuda:0,cuda:0,cuda:GPU-b") == (Asked("cuda", "0"), Asked("cuda", "0"), Asked("cuda", "GPU-b"))
    assert asked_devices("fake:3") == (Asked("fake", "3"),)


@pytest.mark.parametrize(
    "text", ["", "cuda", "cuda:", "cuda:-1", "cuda:x", "gpu:0", "cpu:0", "cpu:65", "fake:0", "cpu:²"]
)
def test_other_words_are_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ConfigError, match="give cpu:N"):
        asked_devices(text)


def test_a_drill_is_never_mixed_with_a_gpu() -> None:
    with pytest.raises(ConfigError, match="mix"):
        asked_devices("cuda:0,fake:1")


def test_too_many_executors_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 64"):
        asked_devices("cpu:33,cpu:33")
    with pytest.raises(ConfigError, match="at most 64"):
        chosen_cards(asked_devices("cpu:62,cuda:all"), CARDS)


def test_cards_are_found_by_index_and_by_uuid_and_may_be_shared() -> None:
    a, b, c = CARDS
    assert chosen_cards(asked_devices("cuda:all"), CARDS) == CARDS
    assert chosen_cards(asked_devices("cuda:GPU-b,cuda:0,cuda:0,cuda:MIG-c,cpu:2"), CARDS) == (b, a, a, c, None, None)


def test_each_item_of_fakes_is_cards_of_its_own() -> None:
    a, b, c = CARDS
    assert chosen_cards(asked_devices("fake:2,cpu:1,fake:1"), CARDS) == (a, b, None, c)
    assert chosen_cards(asked_devices("fake:2,fake:1"), CARDS, (b, c)) == (b, c)


def test_a_card_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"no GPU '3' here; GPUs are 0 \(GPU-a\)"):
        chosen_cards(asked_devices("cuda:3"), CARDS)
    with pytest.raises(ConfigError, match="no GPU is here"):
        chosen_cards(asked_devices("cuda:all"), ())


def test_an_executor_sees_its_own_card_only_whatever_the_order_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """R38: a card is named by its UUID, so that another numbering swaps nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert child_environment(2, "cuda:GPU-b")["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert child_environment(2, "cpu")["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert child_environment(2, "fake:1:/x")["CUDA_VISIBLE_DEVICES"] == "FAKE-1"


def test_an_executor_is_told_a_card_by_its_uuid() -> None:
    assert device_word("cuda", CARDS[1], "/x") == "cuda:GPU-b"
    assert device_word("fake", Card(0, "FAKE-1", "F", 1), "/x") == "fake:1:/x"
    assert device_word("cuda", None, "/x") == "cpu"
