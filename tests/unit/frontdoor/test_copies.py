"""Copies of the front door: halves of large ones side by side, with one outcome, and none goes on behind a cancel."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import closing
from functools import partial

import pytest

from fabric.errors import InvalidArgument, ResourceExhausted, Unavailable
from frontdoor.copiers import PAGE_BYTES
from frontdoor.copies import COPY_THREADS, INLINE_COPY_BYTES, Copies, move

LARGE = 2 * INLINE_COPY_BYTES + PAGE_BYTES // 2


@pytest.mark.parametrize("nbytes", [0, 1, INLINE_COPY_BYTES, INLINE_COPY_BYTES + 1, LARGE])
def test_all_of_a_view_is_filled_once(nbytes: int) -> None:
    source, target = bytes(number % 251 for number in range(nbytes)), bytearray(nbytes)
    seen: list[tuple[int, int]] = []

    def copy(at: int, part: memoryview) -> None:
        seen.append((at, len(part)))
        part[:] = source[at : at + len(part)]

    with closing(Copies()) as copies:
        asyncio.run(copies.halves(memoryview(target), copy))
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
        asyncio.run(copies.halves(memoryview(bytearray(LARGE)), copy))
    assert len(ended) == 2


def test_a_cancelled_wait_ends_when_both_halves_have() -> None:
    begun, go_on, ended = threading.Semaphore(0), threading.Event(), []

    def copy(at: int, _part: memoryview) -> None:
        begun.release()
        assert go_on.wait(20)
        ended.append(at)

    async def main(copies: Copies) -> None:
        task = asyncio.create_task(copies.halves(memoryview(bytearray(LARGE)), copy))
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        for _ in range(2):  # who cancels again does not get it sooner
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ended) == 2

    with closing(Copies()) as copies:
        asyncio.run(main(copies))


def test_what_had_not_begun_when_its_wait_was_cancelled_is_not_done() -> None:
    begun, go_on, done = threading.Semaphore(0), threading.Event(), []

    def busy(_at: int, _part: memoryview) -> None:
        begun.release()
        assert go_on.wait(20)

    async def main(copies: Copies) -> None:
        others = asyncio.create_task(copies.halves(memoryview(bytearray(LARGE)), busy))
        for _ in range(COPY_THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        task = asyncio.create_task(copies.run(LARGE, lambda: done.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await others
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not done

    with closing(Copies()) as copies:
        asyncio.run(main(copies))


def test_copies_at_the_same_time_share_the_threads_which_end_with_them() -> None:
    source = bytes(number % 251 for number in range(LARGE))
    targets = [bytearray(LARGE) for _ in range(8)]

    async def main(copies: Copies) -> None:
        def work(target: bytearray) -> None:
            target[:] = source

        def copy(target: bytearray, at: int, part: memoryview) -> None:
            part[:] = source[at : at + len(part)]

        of_halves = (copies.halves(memoryview(target), partial(copy, target)) for target in targets[::2])
        await asyncio.gather(*of_halves, *(copies.run(LARGE, partial(work, target)) for target in targets[1::2]))

    with closing(Copies()) as copies:
        asyncio.run(main(copies))
        assert len(threads()) == COPY_THREADS
    assert not threads()
    assert all(target == source for target in targets)


@pytest.mark.parametrize("there", [0, 1])
def test_without_threads_copies_are_refused_and_with_one_they_are_done(
    monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if len(started) == there:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    target = bytearray(LARGE)
    with closing(Copies()) as copies:
        monkeypatch.setattr(threading.Thread, "start", start_some)
        filling = copies.halves(memoryview(target), lambda _at, part: move(memoryview(b"x" * len(part)), part))
        if there:
            asyncio.run(filling)
            assert target == b"x" * LARGE
        else:
            with pytest.raises(ResourceExhausted):
                asyncio.run(filling)


def test_behind_the_end_large_copies_are_refused_and_begin_no_thread() -> None:
    copies = Copies()
    copies.close()
    with pytest.raises(Unavailable):
        asyncio.run(copies.halves(memoryview(bytearray(LARGE)), lambda _at, _part: None))
    assert not threads()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "overspill-copy"]


def test_an_error_is_held_by_nobody_afterwards() -> None:
    class Wrong(Exception):
        pass

    told: list[weakref.ref[Wrong]] = []

    def copy(_at: int, _part: memoryview) -> None:
        error = Wrong()
        told.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def main(copies: Copies) -> None:
        with pytest.raises(Wrong):
            await copies.halves(memoryview(bytearray(LARGE)), copy)

    gc.disable()
    try:
        with closing(Copies()) as copies:
            asyncio.run(main(copies))
        assert [error() for error in told] == [None, None]
    finally:
        gc.enable()
