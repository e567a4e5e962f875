"""Work that takes long, done in a thread so that the loop answers everybody else meanwhile.

A wait that is cancelled ends when the work has: it reads memory that is given back afterwards. This module decides
nothing about what is long; whoever calls it does. Read `frontdoor/http_body.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")
TEXT_INLINE_BYTES = 64 * 1024
"""JSON or typed values up to this take a millisecond or two; a thread's turn costs a tenth of that."""


async def aside(work: Callable[[], Result]) -> Result:
    """What `work` gives or raises."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody is there to be told
        raise
