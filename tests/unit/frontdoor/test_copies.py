"""Copies of the front door: halves of large ones side by side, with one outcome, and none goes on behind a cancel."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import pytest

from fabric.errors import InvalidArgument
from frontdoor.copies import INLINE_COPY_BYTES, PAGE_BYTES, Copies

LARGE = 2 * INLINE_COPY_BYTES + PAGE_BYTES // 2


@pytest.mark.parametrize("nbytes", [0, 1, INLINE_COPY_BYTES, INLINE_COPY_BYTES + 1, LARGE])
def test_all_of_a_view_is_filled_once(nbytes: int) -> None:
    source, target = bytes(number % 251 for number in range(nbytes)), bytearray(nbytes)
    seen: list[tuple[int, int]] = []

    def copy(at: int, part: memoryview) -> None:
        seen.append((at, len(part)))
        part[:] = source[at : at + len(part)]

    with closing(Copies()) as copies:
        asyncio.run(copies.fill(memoryview(target), copy))
    assert target == source
    assert sum(size for _, size in seen) == nbytes
    assert len(seen) == (nbytes > 0) + (nbytes > INLINE_COPY_BYTES)
    assert all(at % PAGE_BYTES == 0 for at, _ in seen)


@pytest.mark.parametrize("wrong", ["first", "second", "both"])
def test_a_half_that_fails_is_told_when_both_have_ended(wrong: str) -> None:
    ended: list[int] = []

    def copy(at: int, _part: memoryview) -> None:
        ended.append(at)
        if wrong == "both" or (wrong == "first") == (at == 0):
            raise InvalidArgument("it is shorter than it was")

    with closing(Copies()) as copies, pytest.raises(InvalidArgument):
        asyncio.run(copies.fill(memoryview(bytearray(LARGE)), copy))
    assert len(ended) == 2


def test_a_cancelled_wait_ends_when_both_halves_have() -> None:
    begun, go_on, ended = threading.Semaphore(0), threading.Event(), []

    def copy(at: int, _part: memoryview) -> None:
        begun.release()
        assert go_on.wait(20)
        ended.append(at)

    async def main(copies: Copies) -> None:
        task = asyncio.create_task(copies.fill(memoryview(bytearray(LARGE)), copy))
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ended) == 2

    with closing(Copies()) as copies:
        asyncio.run(main(copies))
