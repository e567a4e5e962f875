"""What follows from what in a model's life."""

from __future__ import annotations

import pytest

from fabric.errors import IllegalTransition
from workers.lifecycle import TABLE, ModelCommand, ModelEvent, ModelMachine, ModelStage

_E, _C = ModelEvent, ModelCommand


def walk(*events: ModelEvent) -> tuple[ModelMachine, tuple[ModelCommand, ...]]:
    machine, commands = ModelMachine(), tuple[ModelCommand, ...]()
    for event in events:
        commands = machine.handle(event)
    return machine, commands


def test_what_serves_is_given_up_only_for_what_is_warm() -> None:
    machine, commands = walk(_E.LOAD_ASKED, _E.LOADED, _E.LOAD_ASKED)
    assert (machine.stage, machine.serves, commands) == (ModelStage.RELOADING, True, (_C.STAGE,))
    machine, commands = walk(_E.LOAD_ASKED, _E.LOADED, _E.LOAD_ASKED, _E.LOAD_FAILED)
    assert (machine.stage, commands) == (ModelStage.SERVING, (_C.DROP, _C.TELL))
    machine, commands = walk(_E.LOAD_ASKED, _E.LOADED, _E.LOAD_ASKED, _E.LOADED)
    assert (machine.stage, commands) == (ModelStage.SERVING, (_C.COMMIT, _C.TELL))


def test_an_unload_closes_at_once_and_removes_when_the_requests_have_ended() -> None:
    machine, commands = walk(_E.LOAD_ASKED, _E.LOADED, _E.UNLOAD_ASKED)
    assert (machine.serves, machine.busy, commands[0]) == (False, True, _C.CLOSE)
    assert _C.REMOVE in machine.handle(_E.EMPTIED)
    assert machine.stage is ModelStage.UNLOADED


def test_what_broke_is_closed_from_every_stage_that_serves() -> None:
    for stage in ModelStage:
        after, commands = TABLE[stage][_E.BROKE]
        assert after is ModelStage.UNLOADED
        assert (_C.CLOSE in commands) == (stage in {ModelStage.SERVING, ModelStage.RELOADING})
        assert (_C.DROP in commands) == (stage in {ModelStage.LOADING, ModelStage.RELOADING})


def test_an_edge_that_is_not_there_tells_the_story_and_changes_nothing() -> None:
    machine, _ = walk(_E.LOAD_ASKED, _E.LOAD_FAILED)
    with pytest.raises(IllegalTransition, match="loading, load failed, unloaded"):
        machine.handle(_E.EMPTIED)
    assert machine.stage is ModelStage.UNLOADED
