"""The load page: what is written is read, and what is torn is not taken for it."""

from __future__ import annotations

from random import Random

import pytest

from fabric.errors import ConfigError
from fabric.load_page import (
    LINE_BYTES,
    LINES_AT,
    MODELS_MAX,
    PAGE_BYTES,
    PROBES,
    LoadPage,
    ModelLoad,
    line_at,
    model_key,
    read_line,
    read_report,
)


def _page() -> tuple[LoadPage, bytearray]:
    memory = bytearray(PAGE_BYTES)
    return LoadPage(memoryview(memory), 77), memory


def _lines(memory: bytearray, client_id: int) -> bytes:
    at = line_at(client_id)
    return bytes(memory[at : at + PROBES * LINE_BYTES])


def test_a_report_is_read_as_it_was_written() -> None:
    page, memory = _page()
    assert read_report(bytes(memory)) is None
    models = (ModelLoad(model_key("etr"), 700, 3), ModelLoad(model_key("route_plan"), 90_000, 0))
    page.publish(10, 2)
    assert page.publish(1234, 2, models) == 2
    report = read_report(bytes(memory[:LINES_AT]))
    assert report is not None
    assert (report.sequence, report.node_epoch, report.outstanding_us, report.executors) == (2, 77, 1234, 2)
    assert report.models == models


def test_more_models_than_fit_are_left_out() -> None:
    page, memory = _page()
    page.publish(1, 1, tuple(ModelLoad(number, 1, 1) for number in range(MODELS_MAX + 5)))
    report = read_report(bytes(memory))
    assert report is not None
    assert len(report.models) == MODELS_MAX


@pytest.mark.parametrize("seed", range(4))
def test_no_mixture_of_two_reports_is_taken_for_one(seed: int) -> None:
    """A read may take any part of the bytes before a write and the rest after it, in pieces of a cache line or less."""
    random = Random(seed)
    page, memory = _page()
    raws = []
    for _ in range(2):
        page.publish(random.randrange(1 << 40), 4, tuple(ModelLoad(k, random.randrange(99), 1) for k in range(20)))
        raws.append(bytes(memory[:LINES_AT]))
    whole = {read_report(raw) for raw in raws}
    torn = 0
    for _ in range(3000):
        step = random.choice([1, 8, 64])
        mixed = b"".join(random.choice(raws)[at : at + step] for at in range(0, LINES_AT, step))
        report = read_report(mixed)
        torn += report is None
        assert report is None or report in whole
    assert torn > 2000


def test_each_client_reads_its_own_line() -> None:
    page, memory = _page()
    clients = [Random(3).getrandbits(64) + number for number in range(200)]
    for client in clients:
        assert page.accept(client, client % 1000, client % 7)
    for client in clients:
        assert read_line(_lines(memory, client), client) == (client % 1000, client % 7)
    page.forget(clients[0])
    assert read_line(_lines(memory, clients[0]), clients[0]) == (0, 0)


def test_a_torn_line_is_no_line() -> None:
    page, memory = _page()
    page.accept(9, 5, 2)
    before = _lines(memory, 9)
    page.accept(9, 6, 2)
    mixed = before[:8] + _lines(memory, 9)[8:16] + before[16:]
    assert read_line(mixed, 9) is None


def test_a_client_whose_lines_are_all_taken_is_told() -> None:
    page, _ = _page()
    same = [client for client in range(1, 200_000) if line_at(client) == line_at(1)][: PROBES + 1]
    assert [page.accept(client, 1, 0) for client in same] == [True] * PROBES + [False]


def test_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError):
        LoadPage(memoryview(bytearray(100)), 1)
