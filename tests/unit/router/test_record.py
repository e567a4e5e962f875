"""Explaining a decision: all terms of all candidates, margin, ties, who was left out, and the same made again."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

import pytest

from fabric import errors
from fabric.frame import Load
from overspill.cli import main
from router.config import RouterConfig
from router.record import SCHEMA, Decision, Weights, decision_of
from tests.unit.router.fleet import Fleet, answer, name_of

if TYPE_CHECKING:
    from pathlib import Path


def decided(*names: str, kept: int = 10) -> tuple[Fleet, str, str]:
    """A fleet, the id of a request that it sent, and who got it."""
    fleet = Fleet(*names, config=RouterConfig(seed=1, explain_kept=kept, explain_file="somewhere"))
    fleet.worker(names[0]).ahead.reported(Load(1, 0, 80_000, 1), fleet.now - 0.01)
    life = fleet.life()
    sent = fleet.send(life)
    fleet.finish(life, answer())
    return fleet, str(sent.call.id), name_of(sent)


def the_decision(fleet: Fleet, request_id: str) -> Decision:
    (decision,) = fleet.core.explain(request_id)
    return decision


def test_every_candidate_is_told_with_every_term() -> None:
    fleet, request_id, picked = decided("a", "b", "c")
    decision = the_decision(fleet, request_id)
    assert {one.worker for one in decision.candidates} == {"a", "b", "c"}
    assert (decision.picked, decision.model, decision.attempt) == (picked, "plan", 0)
    loaded = next(one for one in decision.candidates if one.worker == "a")
    assert loaded.queue_ms == pytest.approx(70.0)
    assert loaded.report_age_ms == pytest.approx(10.0)
    assert decision.ties == 2
    assert decision.margin_ms == pytest.approx(0.0)


def test_each_attempt_is_a_decision_and_tells_who_was_left_out() -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, explain_kept=10))
    life = fleet.life()
    first = fleet.send(life)
    second = fleet.send(life, errors.QueueFull("full"))
    fleet.finish(life, answer())
    one, two = fleet.core.explain(str(second.call.id))
    assert (one.attempt, two.attempt) == (0, 1)
    assert two.excluded == ((name_of(first), "one that failed this request"),)


def test_a_decision_is_made_again_from_its_record_and_with_other_weights() -> None:
    fleet, request_id, picked = decided("a", "b")
    decision = the_decision(fleet, request_id)
    assert decision.again() == (picked,) == ("b",)
    assert set(decision.again(Weights(queue=0.0))) == {"a", "b"}


def test_a_recorded_log_gives_the_same_picks() -> None:
    fleet, rng = Fleet(*(f"n{i}" for i in range(9)), config=RouterConfig(seed=1, explain_kept=500)), Random(3)
    for number in range(200):
        worker = fleet.worker(f"n{rng.randrange(9)}")
        worker.ahead.reported(Load(number + 1, 0, rng.randrange(100_000), 1), fleet.now)
        life = fleet.life()
        sent = fleet.send(life)
        fleet.finish(life, answer(Load(1000 + number, 1, 0, 1)))
        decision = the_decision(fleet, str(sent.call.id))
        assert decision.picked in decision_of(decision.as_line()).again()
        fleet.now += 0.001


def test_a_line_is_json_of_a_known_shape() -> None:
    fleet, request_id, _ = decided("a", "b")
    decision = the_decision(fleet, request_id)
    told = json.loads(decision.as_line())
    assert told["schema"] == SCHEMA
    assert set(told) == {
        "schema", "request_id", "attempt", "model", "at_s", "picked", "candidates", "excluded", "ties", "last_resort",
        "tied",
    }  # fmt: skip
    assert set(told["candidates"][0]) == {
        "worker", "transport_ms", "queue_ms", "unseen_ms", "compute_ms", "report_age_ms",
    }  # fmt: skip
    assert decision_of(decision.as_line()) == decision


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"schema": 9}', '{"schema": 1}', "null"])
def test_what_is_no_decision_is_refused(line: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        decision_of(line)


def test_the_ring_is_bounded_and_off_nothing_is_kept() -> None:
    fleet = Fleet("a", config=RouterConfig(seed=1, explain_kept=3))
    ids = []
    for _ in range(5):
        life = fleet.life()
        ids.append(str(fleet.send(life).call.id))
        fleet.finish(life, answer())
    assert [len(fleet.core.explain(each)) for each in ids] == [0, 0, 1, 1, 1]
    with pytest.raises(errors.ConfigError, match="explain_kept"):
        Fleet("a").core.explain(ids[0])


def test_the_command_tells_it_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, request_id, picked = decided("a", "b")
    file = tmp_path / "decisions.jsonl"
    file.write_text("".join(f"{decision.as_line()}\n" for decision in fleet.core.unwritten()))
    assert fleet.core.unwritten() == [], "each is written once"
    assert main(["explain", request_id, "--file", str(file)]) == 0
    told = capsys.readouterr().out
    assert f"of plan: {picked}, cheaper by" in told
    assert "queue 70.000" in told
    assert main(["explain", request_id, "--file", str(file), "--queue", "0", "--compute", "2"]) == 0
    assert "with these weights" in capsys.readouterr().out
    assert main(["explain", "nobody-1", "--file", str(file)]) == 1
    assert main(["explain", request_id, "--file", str(tmp_path / "none")]) == 2


def test_a_worker_that_has_not_reported_yet_is_told_so() -> None:
    fleet = Fleet("a", config=RouterConfig(seed=1, explain_kept=10))
    sent = fleet.send(fleet.life())
    decision = the_decision(fleet, str(sent.call.id))
    assert decision.candidates[0].report_age_ms is None
    assert decision_of(decision.as_line()) == decision
    assert any(line.endswith("no report yet") for line in decision.sentences())
