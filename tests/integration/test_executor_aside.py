"""An executor says when it is at what belongs to no request: the end of a stream, a tenant that left, an old reply."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.frame import RequestFrame
from fabric.local.sockets import seqpacket_pair
from fabric.memory.arena import Arena
from workers.backends.base import Inputs
from workers.child import Settings
from workers.execution import LoadedModel
from workers.executor import Executor
from workers.handover import Control
from workers.modelconfig import read_config
from workers.page import SharedPage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }
model_transaction_policy { decoupled: true }
"""
CODE = """
class Model:
    told = None
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        try:
            while True:
                outputs["y"] = [1]
                yield
        finally:
            Model.told()
"""
TENANT = 7


def _request(number: int, ack_no: int = 0) -> RequestFrame:
    return RequestFrame(3, number, 1, 0, ack_no, 0, 0, 0, 4096, 0, 0, "m", b"")


def _forget(executor: Executor) -> None:
    executor._control(Control("forget", TENANT), ())


def _acknowledge(executor: Executor) -> None:
    executor._streams.tidy(_request(9, ack_no=6), 1)


@pytest.mark.parametrize("end", [_forget, _acknowledge], ids=["its tenant left", "it was acknowledged"])
def test_the_end_of_a_stream_is_told_while_it_lasts(tmp_path: Path, end: Callable[[Executor], None]) -> None:
    (tmp_path / "model.py").write_text(CODE)
    model = LoadedModel(read_config(CONFIG, "config.pbtxt", "m", "1", str(tmp_path)), threads=1)
    page, (ours, theirs), (in_, out) = SharedPage.create(), seqpacket_pair(), seqpacket_pair()
    seen: list[int] = []
    type(model.backend._model).told = lambda *_: seen.append(page.aside_ns)  # type: ignore[attr-defined]
    with closing(page), ours, in_:
        settings = Settings(theirs.detach(), os.dup(page.fd), 0, 1, 1, 1, "", parcels_fd=out.detach())
        executor = Executor(settings)
        arena = executor._arenas[TENANT] = Arena.create(1 << 20)
        inputs = Inputs({"x": np.array([1])})
        executor._streams.first(model, inputs, _request(5), TENANT, memoryview(bytearray(4096)), 1)
        assert page.aside_ns == 0
        end(executor)
        assert len(seen) == 1
        assert seen[0] > 0, "its node would not see that it hangs there"
        assert page.aside_ns == 0
        assert not executor._streams.any
        executor._arenas.clear()  # a circle holds the executor for a while, and a mapping holds a descriptor
        executor._node.close()
        executor._legs._parcels_out.close()
        executor._page.close()
        arena.close_fd()
    model.close()
