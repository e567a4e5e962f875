"""Ids: running ones attach, finished ones are answered again, and none ever runs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from fabric.errors import DuplicateRequest, Fate, ResourceExhausted
from workers import dedupe
from workers.dedupe import Client, Dedupe, Finished

if TYPE_CHECKING:
    from workers.job import Job

JOB = cast("Job", object())


def finished(at_s: float = 0.0) -> Finished:
    return Finished(b"frame", at_s, None)


def test_new_running_finished_acknowledged() -> None:
    client = Client()
    assert client.find(5) is None
    client.began(5, JOB)
    assert client.find(5) is JOB
    client.ended(5, finished())
    assert client.find(5) == finished()
    client.acknowledge(6)
    with pytest.raises(DuplicateRequest) as caught:
        client.find(5)
    assert caught.value.fate is Fate.RAN


def test_what_never_ran_may_come_again() -> None:
    client = Client()
    client.began(1, JOB)
    client.never_ran(1)
    assert client.find(1) is None


def test_acknowledgements_never_go_back_and_free_frames_in_any_order() -> None:
    client = Client()
    for number in (3, 1, 2, 7):
        client.began(number, JOB)
        client.ended(number, finished())
    client.acknowledge(4)
    client.acknowledge(2)
    assert list(client.finished) == [7]


def test_an_answer_after_its_acknowledgement_is_not_kept() -> None:
    client = Client()
    client.began(1, JOB)
    client.acknowledge(9)
    assert client.find(1) is JOB
    client.ended(1, finished())
    assert not client.finished


def test_an_answer_that_lapsed_still_does_not_run_again() -> None:
    client = Client()
    client.began(1, JOB)
    client.ended(1, finished(10.0))
    client.lapse(10.0 + dedupe.FINISHED_KEPT_S)
    with pytest.raises(DuplicateRequest) as caught:
        client.find(1)
    assert caught.value.fate is Fate.UNKNOWN
    assert client.find(2) is None
    client.acknowledge(2)
    assert not client.spent


def test_frames_and_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "FINISHED_MAX", 4)
    monkeypatch.setattr(dedupe, "SPENT_MAX", 4)
    client = Client()
    for number in range(1, 20):
        client.began(number, JOB)
        client.ended(number, finished())
        assert len(client.finished) <= 4
        assert len(client.spent) <= 4
    for number in range(1, 16):
        with pytest.raises(DuplicateRequest):
            client.find(number)
    assert client.find(19) == finished()
    assert client.find(20) is None


def test_the_bytes_of_frames_are_bounded() -> None:
    client = Client()
    for number in range(1, 200):
        client.began(number, JOB)
        client.ended(number, Finished(bytes(65_536), 0.0, None))
    assert client.finished_bytes == 65_536 * len(client.finished) <= dedupe.FINISHED_BYTES_MAX
    client.acknowledge(200)
    assert client.finished_bytes == 0


def test_silent_clients_are_forgotten_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "CLIENTS_MAX", 2)
    table = Dedupe()
    table.client(1, 0.0)
    table.client(2, 0.0).began(1, JOB)
    with pytest.raises(ResourceExhausted):
        table.client(3, 1.0)
    table.client(3, dedupe.CLIENT_KEPT_S)
    assert set(table.clients) == {2, 3}  # 2 has something running
