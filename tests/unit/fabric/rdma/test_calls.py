"""The calls of a connection that ends: each is told, in whatever order its end is."""

from __future__ import annotations

import time
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest

from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import Fate, NodeLost, OverspillError
from fabric.layout import TensorSpec, layout_of
from fabric.message import Body, RequestId
from fabric.rdma.calls import Calls
from fabric.rdma.config import RdmaConfig
from fabric.transport import Call

CALL = Call(RequestId(7, 1), "echo", Body(layout_of((TensorSpec.of("x", DType.UINT8, (64,)),)), bytes(64)))
GONE = NodeLost("the cable was pulled")


def _sent(message: Any) -> None:
    message.posted = True


@pytest.mark.parametrize("order", [("lost", "fenced"), ("fenced", "lost"), ("fenced",)])
def test_a_fence_that_overtakes_the_news_of_the_loss_brings_it(order: tuple[str, ...]) -> None:
    connection: Any = SimpleNamespace(lock=RLock(), error=GONE, frame_room=4096, post=_sent)
    replies: Any = SimpleNamespace(retire=lambda: None, end=lambda: None)
    calls, rung = Calls(connection, replies, None, RdmaConfig()), []
    life = calls.life(CALL, Deadline.after(3600.0, time.monotonic()), lambda: rung.append(1))
    next(life)
    for event in order:
        if event == "lost":
            calls.lost(GONE)
        else:
            calls.fenced()
    assert rung, "nobody was woken"
    with pytest.raises(OverspillError, match="the cable was pulled") as told:
        next(life)
    assert isinstance(told.value, NodeLost)
    assert told.value.fate is Fate.UNKNOWN
