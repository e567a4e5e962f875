"""What the life of a request asks its driver to do, beside sending an attempt: wait, or read load pages.

Both clients and the simulator carry these out, each in its own way. This module does nothing. Read `router/core.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.learned import Kind
    from router.workers import Worker


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait this long; `for_worker`: or until a worker comes up. The outcome is None."""

    delay_s: float
    for_worker: bool


@dataclass(frozen=True, slots=True)
class Read:
    """Read the load pages of these workers, and enter each with `Core.told`. The outcome is None."""

    workers: tuple[Worker, ...]
    kind: Kind
