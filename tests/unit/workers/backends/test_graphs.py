"""Which shapes get a CUDA graph: the second time that they come, up to a bound, and never after a failure."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from workers.backends.graphs import Graphs, UnlikeReplay, check_alike


def test_the_first_run_is_ordinary_the_second_is_recorded_and_later_ones_replay() -> None:
    graphs: Graphs[str] = Graphs("m")
    made: list[str] = []

    def record() -> str:
        made.append("graph")
        return "graph"

    assert graphs.find((1, 2), record) is None
    assert [graphs.find((1, 2), record) for _ in range(3)] == ["graph"] * 3
    assert made == ["graph"]
    assert graphs.find((1, 3), record) is None


def test_the_one_unused_for_longest_makes_room() -> None:
    gone: list[int] = []
    graphs: Graphs[int] = Graphs("m", limit=2, forget=gone.append)
    for shape in (1, 2):
        for _ in range(2):
            graphs.find(shape, lambda shape=shape: shape)
    assert graphs.find(1, lambda: 0) == 1
    for _ in range(2):
        graphs.find(3, lambda: 3)
    assert (gone, len(graphs)) == ([2], 2)
    assert graphs.find(2, lambda: 20) == 20, "its shapes were seen before"


def test_what_cannot_be_recorded_is_told_once_and_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    graphs: Graphs[int] = Graphs("m")
    tried: list[int] = []

    def fails() -> int:
        tried.append(1)
        raise RuntimeError("the module\nasks for a value")

    assert graphs.find("kept", lambda: 1) is None
    assert graphs.find("kept", lambda: 1) == 1
    with caplog.at_level(logging.WARNING):
        assert [graphs.find("a", fails) for _ in range(4)] == [None] * 4
        assert [graphs.find("b", fails) for _ in range(4)] == [None] * 4
    assert tried == [1]
    assert caplog.messages == ["model m runs without CUDA graphs: the module asks for a value"]
    assert graphs.find("kept", fails) == 1, "what was recorded goes on"


def test_a_request_that_fits_without_a_graph_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    graphs: Graphs[int] = Graphs("m")

    def fails() -> int:
        raise MemoryError

    with caplog.at_level(logging.WARNING):
        assert [graphs.find("a", fails) for _ in range(3)] == [None] * 3
    assert caplog.messages == ["model m runs without CUDA graphs: MemoryError"]


def test_a_replay_has_to_be_alike_to_the_bit() -> None:
    ran = [np.array([1.0, np.nan], np.float32), np.arange(3)]
    check_alike(("y", "z"), ran, [array.copy() for array in ran])
    with pytest.raises(UnlikeReplay, match="'z'"):
        check_alike(("y", "z"), ran, [ran[0], np.arange(1, 4)])
    with pytest.raises(UnlikeReplay, match="'y'"):
        check_alike(("y", "z"), ran, [np.array([1.0 + 2**-23, np.nan], np.float32), ran[1]])
