"""A lock that asks nobody for the time: where a look at the clock is a system call, it costs as much as a message.

Python's own locks read the clock each time that one is taken, to have a deadline for a wait that mostly does not come
(3.11 does so even for a try). This one is a token in a queue of C, which is looked at first and waited for only where
it is gone. It is used compiled alone: interpreted code can be interrupted between any two of its steps, and a lock that
an interrupt leaves taken is nobody's any more. This module never decides what is locked. Read
`fabric/rdma/connection.py` for who takes it.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import RLock, get_ident
from types import FunctionType
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType


@final
class QuietLock:  # mutable: taken, then free
    """A lock that its owner may take again. Threads wait for it without a limit, as with `with` on Python's own."""

    __slots__ = ("_depth", "_owner", "_token")

    def __init__(self) -> None:
        self._token: SimpleQueue[None] = SimpleQueue()
        self._token.put(None)
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._owner != me:  # nobody else makes it so, or not so
            self._token.get()
            self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._token.put(None)


def quiet_lock() -> AbstractContextManager[object]:
    """A lock that may be taken again by its owner: the quiet one where it is compiled, else Python's."""
    return RLock() if isinstance(QuietLock.__enter__, FunctionType) else QuietLock()
