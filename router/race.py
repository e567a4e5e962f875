"""Carries out an attempt that may be hedged: on the background loop, the original and, when it is late, its copy.

Whatever ends it (an answer, a cancel, the end of the loop), no call of it is left running and no answer that nobody
wants keeps its memory. This module decides nothing: `router/hedge.py` does. Read `router/aio.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from fabric.transport import Answer
    from router.dispatch import Attempt
    from router.hedge import Hedger
    from router.tied import Tied

READ_S = 0.002
"""Pages that must be asked for over a network are waited for so long: a call takes about half of it, and those that are
not there by then are judged by what was known before."""


def racing(
    hedger: Hedger, submit: Callable[[Coroutine[Any, Any, Answer]], Future[Answer]]
) -> Callable[[Attempt], Answer]:
    """Carries out attempts for blocking callers: on the loop that `submit` leads to. Ctrl-C cancels the request."""

    def run(attempt: Attempt) -> Answer:
        out = submit(race(hedger, attempt))
        try:
            return out.result()
        except BaseException:  # an interrupt, or the attempt's own error
            out.cancel()
            raise

    return run


async def race(hedger: Hedger, attempt: Attempt) -> Answer:
    """The first answer of an attempt and of its copy, if one is sent. Raises OverspillError when all have failed."""
    first = asyncio.ensure_future(attempt.link.call_async(attempt.call, attempt.deadline))
    second: asyncio.Future[Answer] | None = None
    kept: asyncio.Future[Answer] | None = None
    try:
        tied = await _late(hedger, attempt, first)
        if tied is not None:
            second = asyncio.ensure_future(tied.link.call_async(attempt.call, attempt.deadline))
            await _one_answered(first, second)
            if _answered(second) and not _answered(first):
                tied.won, kept = True, second
                return second.result()
        answer, kept = await first, first
        return answer
    finally:
        for call in (first, second):
            if call is not None and call is not kept:
                await _let_go(call)


async def _late(hedger: Hedger, attempt: Attempt, first: asyncio.Future[Answer]) -> Tied | None:
    """Waits until the original is over, or is so late that a copy may be sent, and somebody can begin it."""
    wait_s = hedger.after_s(attempt)
    while wait_s is not None:
        await asyncio.wait({first}, timeout=wait_s)
        if first.done():
            return None
        read = hedger.look(attempt)
        if read is not None and hedger.begin_read(read):
            await asyncio.wait({first}, timeout=READ_S)
            if first.done():
                return None
        tied = hedger.copy(attempt, read)
        if tied is not None:
            return tied
        wait_s = hedger.again_s(attempt)
    return None


async def _one_answered(first: asyncio.Future[Answer], second: asyncio.Future[Answer]) -> None:
    """Until one has an answer, or both have failed."""
    out = {first, second}
    while out and not any(_answered(call) for call in (first, second)):
        _, out = await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)


def _answered(call: asyncio.Future[Answer]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


async def _let_go(call: asyncio.Future[Answer]) -> None:
    """Ends a call that nobody waits for; the memory of an answer that came all the same goes back."""
    if not call.done():
        call.cancel()
        await asyncio.wait({call})
    if _answered(call) and not isinstance(memory := call.result().memory, bytes):
        memory.release()
