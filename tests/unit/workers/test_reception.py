"""A node that is told to go stays while somebody is owed an answer, whoever has the task in hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from workers.admission import Admission
from workers.desks import ExecutorDesk
from workers.reception import Reception


def test_what_a_replaced_process_has_in_hand_keeps_a_node_from_being_idle() -> None:
    reactor = cast("Any", SimpleNamespace(call_later=lambda *_: None))
    reception = Reception(reactor, 1, Admission((), (ExecutorDesk(0),), 8), lambda: None)
    replaced = SimpleNamespace(in_hand={4: "one of a batch, which runs once more when the process is gone"})
    reception.crew = cast("Any", SimpleNamespace(shells=(SimpleNamespace(lives=(replaced,)),)))
    assert not reception.idle
    replaced.in_hand.clear()
    assert reception.idle
