"""The page of memory that an executor and its node share: what it is at, without a message, and the node's last word.

The executor writes, its node reads, but for one word: once the node has shut the page, nothing is begun any more. So
the node knows at once, not when the kernel has taken the process down, which tasks it may give to others. This module
never sends and reads no clock. Read `workers/executor.py` for the one end, `workers/life.py` for the other.
"""

from __future__ import annotations

import mmap
import os
import signal
from enum import Enum
from typing import Final

_HEARTBEAT: Final = 0
_RUNNING: Final = 1
_BEGAN: Final = 2
_ANSWER: Final = 3
_REGISTERED: Final = 4
_PINNED: Final = 5
_PASSED: Final = 6
_ASIDE: Final = 9  # _PASSED takes three
_SHUT: Final = 10
_HIGHEST: Final = 11


class Answer(Enum):
    """Whether a task's tenant has its final frame straight from the executor."""

    NONE = "none"
    PERHAPS = "perhaps"
    """It was about to be sent, and nobody noted that it was: nothing may write to the task's slots any more."""
    SENT = "sent"


class SharedPage:  # mutable: words of memory that two processes map
    """One page per executor. A word is written whole, since it is aligned."""

    __slots__ = ("_map", "_words", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls) -> SharedPage:
        """Makes the memory; it goes with the last process that maps it."""
        fd = os.memfd_create("overspill-executor", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def close(self) -> None:
        """Unmaps the page and closes its descriptor."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def beat(self) -> None:
        """The executor shows that its threads run."""
        self._words[_HEARTBEAT] += 1

    def began(self, task_no: int, now_ns: int) -> None:
        """The executor is about to run a task. Once the node has shut the page this does not return: the task is
        somebody else's by then, and the node kills this process anyway."""
        self._words[_BEGAN] = now_ns
        self._words[_RUNNING] = task_no
        # One of a batch may be looked at by itself when those after it have run.
        self._words[_HIGHEST] = max(self._words[_HIGHEST], task_no)
        if self._words[_SHUT]:
            os.kill(os.getpid(), signal.SIGKILL)

    def shut(self) -> None:
        """The node lets nothing be begun any more. What `begun_no` says stays so from its next system call on: whoever
        wrote it before looking at this word has been seen by then."""
        self._words[_SHUT] = 1

    def answering(self, task_no: int) -> None:
        """The executor is about to send the task's final frame to its tenant."""
        self._words[_ANSWER] = task_no << 1

    def answered(self, task_no: int) -> None:
        """The tenant has the task's final frame."""
        self._words[_ANSWER] = task_no << 1 | 1

    def ended(self) -> None:
        """The node was told of the running task, whose number stays."""
        self._words[_BEGAN] = 0

    def aside(self, since_ns: int) -> None:
        """Since then the executor is at what belongs to no task, such as the end of a stream; 0 when that is done."""
        self._words[_ASIDE] = since_ns

    def pinned(self, registered: int, nbytes: int) -> None:
        """The executor has registered memory with its device so often, and so many bytes are now."""
        self._words[_REGISTERED] = registered
        self._words[_PINNED] = nbytes

    def passed(self, card_bytes: int, host_bytes: int, fallbacks: int) -> None:
        """The executor has given so many bytes to later steps, in its card's memory and in the host's."""
        self._words[_PASSED] = card_bytes
        self._words[_PASSED + 1] = host_bytes
        self._words[_PASSED + 2] = fallbacks

    @property
    def passed_on(self) -> tuple[int, int, int]:
        """What `passed` was last told."""
        return self._words[_PASSED], self._words[_PASSED + 1], self._words[_PASSED + 2]

    @property
    def heartbeat(self) -> int:
        """How many times the executor has shown a sign of life."""
        return self._words[_HEARTBEAT]

    @property
    def running(self) -> tuple[int, int]:
        """(task number or 0, when it began in monotonic nanoseconds)."""
        began_ns = self._words[_BEGAN]
        return self._words[_RUNNING] if began_ns else 0, began_ns

    @property
    def aside_ns(self) -> int:
        """Since when it is at what belongs to no task, in monotonic nanoseconds; 0 while it is not."""
        return self._words[_ASIDE]

    @property
    def begun_no(self) -> int:
        """The highest task that was begun, and with it all before it. It never falls, so that what somebody was told
        of a task stays true."""
        return self._words[_HIGHEST]

    def answer_of(self, task_no: int) -> Answer:
        """What became of the answer of a task that its node was not told of. Tasks are answered one after another, and
        the node is told of each before the next: what this says of it stays true once the process is gone."""
        word = self._words[_ANSWER]
        if word >> 1 != task_no:
            return Answer.NONE
        return Answer.SENT if word & 1 else Answer.PERHAPS

    @property
    def registered(self) -> int:
        """How often it has registered memory with its device."""
        return self._words[_REGISTERED]

    @property
    def pinned_bytes(self) -> int:
        """How much of the tenants' memory is registered with its device."""
        return self._words[_PINNED]
