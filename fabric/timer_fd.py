"""A timer that is a descriptor: what waits for descriptors then waits for a time too, without asking what time it is.

A wait with a timeout reads the clock before it and behind it. Where that is a system call it costs as much as all else
of a wake-up, and a request passes five such waits. A timer that is set once serves many of them, since hardly any wait
ends by its time. Python has it from 3.13 on; before, the C library is asked. This module never waits. Read
`fabric/hot_selector.py` next.
"""

from __future__ import annotations

import ctypes
import os

_MONOTONIC, _FLAGS, _ABSOLUTE = 1, os.O_NONBLOCK | os.O_CLOEXEC, 1  # timerfd_create(2)
_NS = 1_000_000_000
_SPEC = ctypes.c_long * 4
"""An itimerspec: the period, of which there is none, and the time, each as seconds and nanoseconds."""
_LIBRARY = ctypes.CDLL(None, use_errno=True)


class TimerFd:  # mutable: set, then due
    """Readable from the time that it was set to, until it is set again or cleared. It belongs to one thread."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd: int = _LIBRARY.timerfd_create(_MONOTONIC, _FLAGS)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def set_at(self, at_s: float) -> None:
        """Due at this time of the monotonic clock."""
        self._set(at_s, _ABSOLUTE)

    def set_in(self, delay_s: float) -> None:
        """Due so long from now."""
        self._set(delay_s, 0)

    def clear(self) -> None:
        """Not due any more."""
        _LIBRARY.timerfd_settime(self.fd, 0, _SPEC(), None)

    def close(self) -> None:
        """Closes it."""
        os.close(self.fd)

    def _set(self, time_s: float, flags: int) -> None:
        at_ns = max(0, int(time_s * _NS)) + 1  # never early, and 0 would clear it
        _LIBRARY.timerfd_settime(self.fd, flags, _SPEC(0, 0, at_ns // _NS, at_ns % _NS), None)
