"""Streams of a decoupled model: one answer each time that it is asked, and what becomes of those that nobody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import AnswersInStream, Fate, ModelBroken, ModelFailed, ReplyTooLarge, ResourceExhausted
from fabric.frame import ErrorFrame, Load, ReplyFrame, RequestFrame, decode_final, pack_request, wants_stream
from workers import streams
from workers.backends.base import Inputs
from workers.child import Settings
from workers.execution import LoadedModel
from workers.finals import Finals
from workers.handover import Task
from workers.keep import ReplyKeep
from workers.modelconfig import read_config
from workers.page import SharedPage
from workers.station import Station
from workers.streams import IDLE_NS, Streams, check_asked

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }
model_transaction_policy { decoupled: true }
"""
CODE = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        for number in inputs["x"]:
            if number == 99: outputs["y"] = [1]; return
            outputs["y"] = [number] * max(1, int(number))
            yield
"""
TASK = Task(0, 1, 7, 1, 0, 0, Load(1, 1, 0, 1))


def load(folder: Path, code: str = CODE, config: str = CONFIG) -> LoadedModel:
    (folder / "model.py").write_text(code)
    return LoadedModel(read_config(config, "config.pbtxt", "m", "1", str(folder)), threads=1)


class Page(SharedPage):
    """A page that nobody maps: it keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def aside(self, since_ns: int) -> None:
        self.told.append(since_ns)


def table() -> tuple[Streams, ReplyKeep]:
    settings = Settings(0, 0, 0, 1, 1, 1, "")
    keep = ReplyKeep()
    return Streams(Finals(1, 1), keep, Station(settings), Page()), keep


def request(number: int = 5) -> RequestFrame:
    return RequestFrame(3, number, 1, 0, 0, 0, 0, 0, 4096, 0, 0, "m", b"")


def first(found: Streams, model: LoadedModel, *numbers: int, number: int = 5) -> list[int]:
    slot = memoryview(bytearray(4096))
    run = found.first(model, Inputs({"x": np.array(numbers)}), request(number), 7, slot, 1)
    return np.frombuffer(slot[: 8 * run.layout.specs[0].shape[0]], np.int64).tolist() if run.layout.specs else []


def further(found: Streams, room: int = 4096) -> tuple[ReplyFrame | ErrorFrame, list[int]]:
    slot = memoryview(bytearray(room))
    answer = found.again(TASK, request(), slot)
    assert answer is not None
    final = decode_final(answer[0])
    nbytes = final.body_bytes if isinstance(final, ReplyFrame) else 0
    return final, np.frombuffer(slot[:nbytes], np.int64).tolist()[:1]


def test_each_asking_brings_the_next_and_an_empty_one_ends_it(tmp_path: Path) -> None:
    found, _ = table()
    assert first(found, load(tmp_path), 4, 3) == [4, 4, 4, 4]
    assert further(found)[1] == [3]
    assert further(found)[1] == []
    assert found.again(TASK, request(), memoryview(bytearray(8))) is None
    assert first(found, load(tmp_path)) == []
    assert not found.any


def test_an_answer_that_does_not_fit_is_asked_for_again_and_none_is_lost(tmp_path: Path) -> None:
    found, _ = table()
    first(found, load(tmp_path), 1, 50, 2)
    for _ in range(2):
        final, _ = further(found, room=64)
        assert isinstance(final, ErrorFrame)
        assert isinstance(final.error, ReplyTooLarge)
    assert further(found)[1] == [50]
    assert further(found)[1] == [2]


def test_an_answer_that_is_no_longer_kept_ends_the_stream_and_is_not_skipped(tmp_path: Path) -> None:
    found, keep = table()
    first(found, load(tmp_path), 1, 50, 2)
    assert isinstance(further(found, room=64)[0], ErrorFrame)
    keep.acknowledge(3, 6)  # as if others had taken its place
    with pytest.raises(ResourceExhausted, match="stream smaller answers") as told:
        further(found)
    assert told.value.fate is Fate.RAN
    assert not found.any


def test_outputs_without_a_yield_are_the_models_mistake(tmp_path: Path) -> None:
    found, _ = table()
    first(found, load(tmp_path), 1, 99)
    with pytest.raises(ModelFailed, match="yield after each answer"):
        further(found)
    assert not found.any
    with pytest.raises(ModelBroken, match="does not yield"):
        load(tmp_path, CODE.replace("            yield\n", ""))


def test_a_model_that_yields_without_being_decoupled_is_refused_at_its_load(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match="not decoupled and its execute yields"):
        load(tmp_path, config=CONFIG.replace("true", "false"))


def test_what_nobody_asks_for_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tmp_path)
    for go in (
        lambda found: found.acknowledge(3, 6),
        lambda found: found.leave(7),
        lambda found: found.lapse(IDLE_NS + 1),
    ):
        found, _ = table()
        first(found, model, 1, 2)
        found.acknowledge(3, 5)
        found.acknowledge(4, 6)
        found.leave(8)
        found.lapse(IDLE_NS)
        assert found.any
        go(found)
        assert not found.any
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)
    for number in (1, 2):
        first(found, model, 1, 2, number=number)
    with pytest.raises(ResourceExhausted, match="2 streams are open"):
        first(found, model, 1, 2, number=3)


def test_who_wants_one_answer_is_told(tmp_path: Path) -> None:
    plain = pack_request(1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, "m", b"")
    flagged = pack_request(1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, "m", b"", 1)
    assert (wants_stream(plain), wants_stream(flagged)) == (False, True)
    with pytest.raises(AnswersInStream, match="ModelStreamInfer"):
        check_asked(load(tmp_path), streaming=False)
