"""The one background thread of a client process: an asyncio loop for pings, probes, timers and asynchronous calls.

The thread ends with `close`, or with the program: it is no daemon, so nothing is cut off half-way, and it looks four
times a second whether the main thread still runs. Openings of wires block, so they run in a few helper threads. Its
users never block in the loop. Read `fabric/link/link.py` next.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from fabric.errors import RouterClosed, RouterUsedAfterFork
from fabric.hot_loop import HotLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")
OPENERS_MAX = 4
"""Wires that are opened at the same time; each takes at most `connect_s`."""
_MAIN_LOOK_S = 0.25
CLOSE_S = 3.0


class LoopTimer:  # mutable: pending, then done or cancelled
    """An action that will run in the loop."""

    __slots__ = ("action", "handle")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """It will not begin after this. Safe from any thread."""
        self.action = None

    def run(self) -> None:
        """Runs the action unless it was cancelled."""
        action, self.action = self.action, None
        if action is not None:
            action()


class LoopThread:  # mutable: owns a thread
    """An asyncio loop in a thread of its own."""

    def __init__(self, name: str = "overspill-loop") -> None:
        self._pid = os.getpid()
        self._closed = False
        self.loop = HotLoop()
        self._openers = ThreadPoolExecutor(OPENERS_MAX, thread_name_prefix="overspill-open")
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Runs a coroutine in the loop; cancelling the future cancels it. Raises RouterClosed, RouterUsedAfterFork."""
        try:
            self._check()
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:  # nobody will ever await it, and Python would warn of that
            coroutine.close()
            raise

    def call_later(self, delay_s: float, action: Callable[[], None]) -> LoopTimer:
        """Runs `action` in the loop in `delay_s` seconds. Safe from any thread; after `close` it does nothing."""
        timer = LoopTimer(action)
        until = time.monotonic() + delay_s

        def arm() -> None:
            timer.handle = self.loop.call_later(max(0.0, until - time.monotonic()), timer.run)

        self.call_soon(arm)
        return timer

    def call_soon(self, action: Callable[[], None]) -> None:
        """Runs `action` in the loop. Safe from any thread; after `close` it does nothing."""
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop was closed meanwhile: whatever it was for is closed too
            return

    def run_blocking(self, action: Callable[[], None]) -> None:
        """Runs `action`, which may block for a while, in a helper thread. After `close` it does nothing."""
        try:
            self._openers.submit(action)
        except RuntimeError:  # shut down meanwhile
            return

    def in_loop(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Cancels what runs, waits for it until the timeout, and ends the thread. Safe twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._openers.shutdown(wait=False, cancel_futures=True)
        self.call_soon(self.loop.stop)
        if not self.in_loop():
            self._thread.join(timeout_s)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RouterUsedAfterFork("this router belongs to the parent process; connect a new one after the fork")
        if self._closed:
            raise RouterClosed("the router was closed; connect a new one")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._look_at_main()
        try:
            self.loop.run_forever()
        finally:
            self._closed = True
            self._openers.shutdown(wait=False, cancel_futures=True)
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S / 2))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def _look_at_main(self) -> None:
        if threading.main_thread().is_alive():
            self.loop.call_later(_MAIN_LOOK_S, self._look_at_main)
        else:
            self.loop.stop()
