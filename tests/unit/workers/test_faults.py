"""What is written of a model's exceptions, and how often."""

from __future__ import annotations

import io

from workers.faults import PERIOD_S, TRACEBACK_CHARS_MAX, TRACEBACKS_MAX, Tracebacks, told


def failure(text: str = "odd") -> Exception:
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def test_a_traceback_names_the_model_the_request_and_the_line() -> None:
    log = io.StringIO()
    Tracebacks(log).write("m", "in request 7/1", failure(), 0.0)
    lines = log.getvalue().splitlines()
    assert lines[0] == "model 'm' failed in request 7/1"
    assert lines[-1] == "KeyError: 'odd'"
    assert "test_faults.py" in log.getvalue()


def test_a_model_that_always_fails_is_told_of_a_bounded_number_of_times() -> None:
    log = io.StringIO()
    tracebacks = Tracebacks(log)
    for _ in range(500):
        tracebacks.write("m", "in request 7/1", failure(), 10.0)
    tracebacks.write("other", "to load", failure(), 10.0)
    text = log.getvalue()
    assert text.count("model 'm' failed") == TRACEBACKS_MAX
    assert text.count("goes on failing; its next traceback is written in 60 s") == 1
    assert text.count("model 'other' failed to load") == 1
    tracebacks.write("m", "in request 7/2", failure(), 10.0 + PERIOD_S)
    assert log.getvalue().count("model 'm' failed in request 7/2") == 1


def test_a_huge_traceback_keeps_its_end() -> None:
    log = io.StringIO()
    Tracebacks(log).write("m", "to load", failure("x" * 100_000 + "end"), 0.0)
    assert log.getvalue().endswith("end'\n")
    assert len(log.getvalue()) < TRACEBACK_CHARS_MAX + 100


def test_a_log_that_is_gone_stops_nothing() -> None:
    log = io.StringIO()
    log.close()
    Tracebacks(log).write("m", "to load", failure(), 0.0)


def test_an_exception_in_one_line() -> None:
    assert told(ValueError("a\n  b")) == "ValueError: a b"
    assert told(ValueError("a"), kind=False) == "a"
    assert told(ValueError(), kind=False) == "ValueError"
