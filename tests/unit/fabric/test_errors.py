"""Errors keep class, fate and words over a wire and over pickle, and each number belongs to one class."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from fabric import errors
from fabric.errors import Fate, OverspillError, ReplyTooLarge, from_wire


def _tree(cls: type[OverspillError] = OverspillError) -> list[type[OverspillError]]:
    """The public tree; what a room refines for itself travels as the class that it refines."""
    found = [cls, *(below for sub in cls.__subclasses__() for below in _tree(sub))]
    return [each for each in found if each.__module__ == errors.__name__]


def test_codes_are_unique() -> None:
    codes = Counter(cls.code for cls in _tree())
    assert [code for code, count in codes.items() if count > 1] == []


@pytest.mark.parametrize("cls", _tree())
@pytest.mark.parametrize("fate", [None, *Fate])
def test_errors_travel(cls: type[OverspillError], fate: Fate | None) -> None:
    error = cls("do this", fate)
    back = from_wire(error.code, error.fate, str(error), 77)
    assert type(back) is cls
    assert back.fate is error.fate
    assert str(back) == "do this"
    assert not isinstance(back, ReplyTooLarge) or back.needed_bytes == 77
    assert error.fate is (cls.default_fate if fate is None else fate)


@pytest.mark.parametrize("cls", _tree())
def test_errors_pickle(cls: type[OverspillError]) -> None:
    back = pickle.loads(pickle.dumps(cls("do this", Fate.RAN)))
    assert (type(back), str(back), back.fate) == (cls, "do this", Fate.RAN)


def test_what_we_do_not_know_is_unknown() -> None:
    error = from_wire(9999, 200, "from a later version")
    assert type(error) is OverspillError
    assert error.fate is Fate.UNKNOWN


@pytest.mark.parametrize("cls", [errors.QueueFull, errors.Draining, errors.UnknownModel, errors.StaleEpoch])
def test_refusals_never_ran(cls: type[OverspillError]) -> None:
    assert cls("full").fate is Fate.NEVER_RAN


@pytest.mark.parametrize("cls", [errors.NodeLost, errors.ExecutorLost, errors.DeadlineExceeded])
def test_losses_do_not_pretend_to_know(cls: type[OverspillError]) -> None:
    assert cls("gone").fate is Fate.UNKNOWN
