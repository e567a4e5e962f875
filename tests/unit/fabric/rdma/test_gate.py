"""What a loop watches: it is not woken for what another thread takes, nor again and again while it has to wait."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from fabric.rdma.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Watched:
    """A gate over an event that stays until it is read, as a channel's does."""

    def __init__(self) -> None:
        self.channel = os.eventfd(0, os.EFD_NONBLOCK)
        self.gate = Gate(self.channel)
        self._poll = select.poll()
        self._poll.register(self.gate.fileno(), select.POLLIN)

    def wakes(self) -> bool:
        return bool(self._poll.poll(0))


@pytest.fixture
def watched() -> Iterator[_Watched]:
    made = _Watched()
    yield made
    made.gate.close()
    os.close(made.channel)


def test_it_wakes_for_an_event_unless_it_is_shut(watched: _Watched) -> None:
    gate = watched.gate
    assert not watched.wakes()
    os.eventfd_write(watched.channel, 1)
    assert watched.wakes()
    gate.shut()
    assert (gate.is_shut, watched.wakes()) == (True, False)
    gate.open(poked=False)
    assert (gate.is_shut, watched.wakes()) == (False, True)


def test_a_poke_wakes_once_where_there_is_no_event(watched: _Watched) -> None:
    watched.gate.shut()
    watched.gate.open(poked=True)
    assert watched.wakes()
    watched.gate.heard()
    assert not watched.wakes()
    watched.gate.heard()  # again, for nothing


@pytest.mark.parametrize("poked", [False, True])
def test_a_loop_that_waits_for_the_turn_is_not_woken_until_it_is_over(watched: _Watched, *, poked: bool) -> None:
    """Of a poke that is under way: it may be readable before whoever pokes can say so."""
    gate = watched.gate
    os.eventfd_write(watched.channel, 1)
    if poked:
        gate.shut()
        gate.open(poked=True)
    gate.wait()
    assert (gate.is_waited_for, watched.wakes()) == (True, False)
    gate.waited_for()
    assert (gate.is_waited_for, watched.wakes()) == (False, True)


def test_a_turn_that_ends_behind_a_shut_gate_leaves_it_shut(watched: _Watched) -> None:
    gate = watched.gate
    os.eventfd_write(watched.channel, 1)
    gate.wait()
    gate.shut()
    gate.waited_for()
    assert not watched.wakes()
    gate.wait()
    gate.open(poked=False)  # whatever was waited for before, it is watched now
    assert watched.wakes()
