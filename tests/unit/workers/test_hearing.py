"""What an executor says of its models is taken for no more than it can be: any of them may write to its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from workers.handover import Control
from workers.hearing import ModelTalk
from workers.sentinel import ExecutorEvent, ExecutorMachine

if TYPE_CHECKING:
    from workers.life import Life


class LifeThatLoads:
    anew = True

    def check_told(self, control: Control) -> None:
        pass


def test_only_libraries_that_we_know_go_to_the_next_executors_command_line() -> None:
    machine, nobody = ExecutorMachine(), cast("Any", None)
    machine.handle(ExecutorEvent.START_ASKED, 0.0)
    talk = ModelTalk(0, machine, tuple, nobody, nobody, nobody)
    told = ("torch", "a\0b", "\ud800", "cupy", "../os", "x" * (1 << 20), "torch")
    talk.hear(cast("Life", LifeThatLoads()), Control("libraries", models=told))
    assert talk.libraries == ("cupy", "torch")
