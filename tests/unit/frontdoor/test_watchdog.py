"""A loop that stands is noticed, one that turns is not, and a call whose client left is no error."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import grpc
import pytest

from fabric.errors import InvalidArgument
from frontdoor.grpc_service import _refuse
from frontdoor.watchdog import Watchdog


def test_a_loop_that_stands_is_shown_once_and_then_ended() -> None:
    ended, told = threading.Event(), []

    async def stand() -> bool:
        with Watchdog(asyncio.get_running_loop(), 0.05, ended.set, 0.01, lambda: told.append(ended.is_set()), 0.02):
            return ended.wait(30.0)  # the loop does not turn meanwhile

    assert asyncio.run(stand())
    assert told == [False]


def test_a_loop_that_turns_is_not_ended() -> None:
    ended = threading.Event()

    async def turn() -> None:
        with Watchdog(asyncio.get_running_loop(), 30.0, ended.set, 0.001):
            for _ in range(5000):
                await asyncio.sleep(0)

    asyncio.run(turn())
    assert not ended.is_set()


class Context:
    """A call that ends as gRPC ends it."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def abort(self, *_said: object) -> NoReturn:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    [(grpc.aio.AbortError(), grpc.aio.AbortError), (grpc.aio.InternalError(), asyncio.CancelledError)],
)
def test_refusing_a_client_that_left_is_no_error(error: Exception, raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        asyncio.run(_refuse(Context(error), InvalidArgument("no; send another")))
