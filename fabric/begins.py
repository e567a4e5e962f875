"""Channels whose calls can be begun without a coroutine, for who passes many on.

It is no part of `fabric/transport.py`, which is compiled: a protocol that is asked for at run time cannot be. It holds
nothing else. Read `fabric/local/begun.py` for the one that can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.errors import OverspillError
    from fabric.transport import Answer, Call


@runtime_checkable
class Begins(Protocol):
    """A channel that begins calls on its loop."""

    def begin(self, call: Call, deadline: Deadline, done: Callable[[Answer | OverspillError], None]) -> bool:
        """Sends one attempt; `done` gets its only outcome later, in the loop's thread. False where it must be awaited
        (`call_async`) instead; nothing was sent then."""
