"""The life of a request over its attempts: every edge, every fate, every way to end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric import errors
from fabric.deadline import Deadline
from fabric.errors import Fate, IllegalTransition, OverspillError
from router.attempt import EDGES, FINAL, Attempts, Event, State, may_retry

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, OverspillError)]


def attempts(*, idempotent: bool = True, timeout_s: float = 1.0, attempts_max: int = 4) -> Attempts:
    return Attempts("plan", Deadline(timeout_s), idempotent, attempts_max, lambda n: 0.01 * n)


def out(machine: Attempts, now: float = 0.0) -> Attempts:
    machine.sent(None, now)
    return machine


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("fate", list(Fate))
@pytest.mark.parametrize("idempotent", [True, False])
def test_only_the_fate_and_idempotence_allow_a_retry(cls: type[OverspillError], fate: Fate, idempotent: bool) -> None:
    allowed = may_retry(cls("it failed", fate), idempotent)
    assert allowed == (not issubclass(cls, FINAL) and (fate is Fate.NEVER_RAN or idempotent))


def test_an_unknown_fate_of_a_request_that_is_not_idempotent_goes_to_the_caller_as_it_is() -> None:
    lost = errors.NodeLost("the node was lost")
    with pytest.raises(errors.NodeLost) as caught:
        out(attempts(idempotent=False)).failed(lost, "b", 0.1)
    assert caught.value is lost


def test_a_request_that_never_ran_is_sent_again_elsewhere_whatever_the_model() -> None:
    machine = out(attempts(idempotent=False))
    assert machine.failed(errors.QueueFull("full"), "b", 0.1) == 0.01
    assert machine.avoid == ("b",)
    machine.woke()
    assert machine.state is State.READY


def test_the_final_error_tells_the_story_and_the_worst_fate() -> None:
    machine = attempts(attempts_max=2)
    out(machine).failed(errors.NodeLost("the node was lost"), "a", 0.1)
    machine.woke()
    machine.sent(None, 0.2)
    with pytest.raises(errors.QueueFull) as caught:
        machine.failed(errors.QueueFull("its queue is full"), "b", 0.3)
    assert str(caught.value) == "plan: 2 attempts failed; the last, on b: its queue is full"
    assert caught.value.fate is Fate.UNKNOWN


def test_a_worker_that_does_not_know_the_model_is_not_asked_a_third_time() -> None:
    machine = out(attempts())
    machine.failed(errors.UnknownModel("it offers no such model"), "a", 0.1)
    machine.woke()
    machine.sent(None, 0.1)
    machine.failed(errors.UnknownModel("it offers no such model"), "b", 0.1)
    machine.woke()
    machine.sent(None, 0.1)
    with pytest.raises(errors.UnknownModel, match="3 attempts failed; the last, on a: it offers"):
        machine.failed(errors.UnknownModel("it offers no such model"), "a", 0.1)


def test_a_failure_after_the_deadline_is_a_deadline_exceeded_that_names_the_cause() -> None:
    with pytest.raises(
        errors.DeadlineExceeded, match=r"1 attempt failed, and its time is over; .* on a: lost"
    ) as caught:
        out(attempts()).failed(errors.NodeLost("lost"), "a", 1.5)
    assert caught.value.fate is Fate.UNKNOWN


def test_a_plain_timeout_of_the_only_attempt_is_not_dressed_up() -> None:
    late = errors.DeadlineExceeded("no answer in time")
    with pytest.raises(errors.DeadlineExceeded) as caught:
        out(attempts()).failed(late, "a", 1.0)
    assert caught.value is late


def test_a_back_off_longer_than_the_time_left_is_not_begun() -> None:
    with pytest.raises(errors.NodeLost, match="lost"):
        out(attempts()).failed(errors.NodeLost("lost"), "a", 0.995)


def test_a_refusal_over_budget_fails_and_a_loss_stands_in_line() -> None:
    refused = out(attempts())
    refused.failed(errors.QueueFull("full"), "a", 0.1)
    with pytest.raises(errors.QueueFull, match="the retry budget is spent"):
        refused.over_budget(0.1)
    lost = out(attempts())
    lost.failed(errors.NodeLost("lost"), "a", 0.1)
    waits = [lost.over_budget(0.1) for _ in range(6)]
    assert waits == sorted(waits)
    assert waits[-1] == 0.02
    with pytest.raises(errors.NodeLost, match="the retry budget is spent"):
        lost.over_budget(1.0)


def test_nobody_there_is_waited_for_until_the_deadline() -> None:
    machine = attempts()
    assert 0.0 < machine.nobody("nobody is ready", 0.5) <= 0.02
    machine.woke()
    with pytest.raises(errors.Unavailable, match="nobody is ready") as caught:
        machine.nobody("nobody is ready", 1.0)
    assert caught.value.fate is Fate.NEVER_RAN


def test_nobody_there_after_a_failure_keeps_the_cause() -> None:
    machine = out(attempts())
    machine.failed(errors.NodeLost("lost"), "a", 0.1)
    machine.woke()
    with pytest.raises(errors.NodeLost, match="1 attempt failed, and nobody is ready; the last, on a: lost"):
        machine.nobody("nobody is ready", 1.0)


def test_the_deadline_is_split_only_where_the_rest_can_be_used() -> None:
    assert attempts(idempotent=False).sent(0.01, 0.0).at_s == 1.0
    assert attempts().sent(None, 0.0).at_s == 1.0
    assert attempts().sent(0.01, 0.0).at_s == 0.5
    assert attempts().sent(0.2, 0.0).at_s == pytest.approx(0.8), "never less than four times what it should take"
    assert attempts().sent(9.0, 0.0).at_s == 1.0
    second = out(attempts())
    second.failed(errors.NodeLost("lost"), "a", 0.1)
    second.woke()
    assert second.sent(0.01, 0.2).at_s == 1.0


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_an_edge_that_is_not_in_the_table_raises_and_changes_nothing(state: State, event: Event) -> None:
    machine = attempts()
    machine.state = state
    if event in EDGES[state]:
        machine._go(event)
        assert machine.state is EDGES[state][event]
        return
    with pytest.raises(IllegalTransition):
        machine._go(event)
    assert machine.state is state


def test_a_request_that_ended_two_executors_is_given_no_third() -> None:
    machine = attempts(idempotent=True)
    machine.sent(None, 0.0)
    machine.failed(errors.ExecutorLost("it ended"), "a", 0.0)
    machine.woke()
    machine.sent(None, 0.0)
    with pytest.raises(errors.PoisonRequest, match="2 executors ended") as caught:
        machine.failed(errors.ExecutorLost("it ended"), "b", 0.0)
    assert caught.value.fate is Fate.UNKNOWN


def test_the_edges_that_each_request_takes_are_those_of_the_table() -> None:
    machine = attempts()
    machine.sent(None, 0.0)
    assert machine.state is EDGES[State.READY][Event.SENT]
    with pytest.raises(IllegalTransition):
        machine.sent(None, 0.0)
    machine.answered()
    assert machine.state is EDGES[State.OUT][Event.ANSWERED]
    with pytest.raises(IllegalTransition):
        machine.answered()


@given(
    st.lists(st.tuples(st.sampled_from(ALL), st.sampled_from(list(Fate)), st.floats(0, 0.4)), max_size=12),
    st.booleans(),
)
def test_no_request_is_sent_again_after_it_may_have_run_unless_the_model_allows(
    failures: list[tuple[type[OverspillError], Fate, float]], idempotent: bool
) -> None:
    machine, now, fates = attempts(idempotent=idempotent), 0.0, []
    try:
        for cls, fate, took_s in failures:
            assert idempotent or all(fate is Fate.NEVER_RAN for fate in fates)
            machine.sent(0.01, now)
            now += took_s
            fates.append(fate)
            now += machine.failed(cls("it failed", fate), "a", now)
            machine.woke()
    except OverspillError as error:
        last = error.fate
        assert machine.state is State.DONE
        assert last is machine.fate
    assert machine.count <= 4
    assert len(fates) == machine.count
