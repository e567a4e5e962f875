"""What some channels can beside `fabric/transport.py`: begin calls without a coroutine, for who passes many on, and
serve the loops of callers.

It is no part of `fabric/transport.py`, which is compiled: a protocol that is asked for at run time cannot be. It holds
nothing else. Read `fabric/local/begun.py` for the one that can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fabric.errors import OverspillError
    from fabric.transport import Answer, Call


@runtime_checkable
class Begins(Protocol):
    """A channel that begins calls on its loop."""

    def begin(self, call: Call, budget_us: int, done: Callable[[Answer | OverspillError], None]) -> bool:
        """Sends one attempt; `done` gets its only outcome later, in the loop's thread. False where it must be awaited
        (`call_async`) instead; nothing was sent then. It may take `budget_us` from now on: for a
        deadline somebody would have to ask the time."""


@runtime_checkable
class ServesLoops(Protocol):
    """A channel whose `call_async` may be awaited on other loops than the background one, once they are served."""

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether calls may be awaited on `loop`."""

    def welcomes(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether `serve` is to be asked for `loop`: not twice, and not again at once where it did not succeed."""

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes calls on `loop` possible: it may block for seconds, and may not succeed."""
