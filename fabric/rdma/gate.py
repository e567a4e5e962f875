"""What the loop watches in place of a queue's event channel: any thread can shut and open it.

A thread that leads shuts it, so that the loop is not woken for what that thread takes. A loop that is woken while
another thread has the turn must not look again at once, and again: it would keep the interpreter's lock from that very
thread, 5 to 10 ms of a host with one processor. So it waits, and is told when the turn is over. This module takes no
completion. Read `fabric/rdma/rounds.py` next.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Gate:  # mutable: shut and opened
    """An epoll that is readable when the event channel `events` is, or when it was poked. `shut` and `open` are for
    whoever has the turn, `wait` for the loop, `waited_for` for whoever has just given the turn back."""

    __slots__ = ("_epoll", "_events", "_poke", "_poked", "is_shut", "is_waited_for")

    def __init__(self, events: int) -> None:
        self._events = events
        self._epoll = select.epoll()
        self._poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Rouses the loop where the channel is not armed."""
        self._poked = False
        self.is_shut = False
        self.is_waited_for = False
        """Whether the loop waits for the turn."""
        self._epoll.register(events, select.EPOLLIN)
        self._epoll.register(self._poke, select.EPOLLIN)

    def fileno(self) -> int:
        """For the loop to watch."""
        return self._epoll.fileno()

    def shut(self) -> None:
        """The loop is not woken by the channel: watched for nothing, it would be all the same."""
        self.is_shut = True
        self._epoll.unregister(self._events)

    def open(self, *, poked: bool) -> None:
        """It is again, and at once if `poked`."""
        self.is_shut = False
        self._epoll.register(self._events, select.EPOLLIN)
        if poked:
            os.eventfd_write(self._poke, 1)
            self._poked = True  # behind it, or who sees it might clear too early

    def heard(self) -> None:
        """The loop has been woken, and has the turn."""
        if self._poked:
            self._poked = False
            with suppress(BlockingIOError):
                os.eventfd_read(self._poke)

    def wait(self) -> None:
        """The loop is not woken until the turn is over; it looks once more behind this, since it may be by now."""
        self._watch(0)
        self.is_waited_for = True  # behind it, or who sees it might be too early to undo it

    def waited_for(self) -> None:
        """The loop is woken again."""
        self.is_waited_for = False
        self._watch(select.EPOLLIN)

    def _watch(self, mask: int) -> None:
        try:
            self._epoll.modify(self._poke, mask)
            with suppress(FileNotFoundError):  # shut by who has the turn now
                self._epoll.modify(self._events, mask)
        except (OSError, ValueError):
            if not self._epoll.closed:  # by who has the turn for good
                raise

    def close(self) -> None:
        """Nobody watches it any more."""
        self._epoll.close()
        os.close(self._poke)
