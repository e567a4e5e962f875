"""How requests of one model may be joined, as its `config.pbtxt` says under `dynamic_batching`, in Triton's words.

What is said of a priority's queue stands beside what is said of all. This module joins nothing: `workers/batching.py`
does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.fieldreader import FieldReader
    from workers.pbtxt import Message

PRIORITY_LEVELS_MAX = 255
"""What a request's priority can say on our wires."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What happens to requests of one priority that wait. `timeout_us` is how long they may, 0 for as long as they have
    time; then they are refused, or, with `delays`, run after all others of their priority. `size_max` may wait, 0 for
    as many as the model's queue takes."""

    delays: bool = False
    timeout_us: int = 0
    allow_override: bool = False
    size_max: int = 0


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests may be joined into one run of `rows_max` items at most: the sizes to prefer, smallest first, and how
    long the first may wait for others. `levels` counts priorities, 0 where there is one queue only; 1 is the highest,
    `default_level` that of a request that names none. `ordered` has answers come in the order of requests."""

    rows_max: int
    preferred: tuple[int, ...] = ()
    queue_delay_max_us: int = 0
    ordered: bool = False
    levels: int = 0
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    policies: tuple[tuple[int, QueuePolicy], ...] = ()

    def level_of(self, priority: int) -> int:
        """The level of a request's priority; one that is not given, or not known, is the default."""
        return priority if 1 <= priority <= self.levels else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """What holds for a level."""
        return next((policy for known, policy in self.policies if known == level), self.policy)


def read_batching(read: FieldReader, root: Message, rows_max: int) -> Batching | None:
    """Reads `dynamic_batching` of a model of `max_batch_size` `rows_max`. Raises ModelBroken with file and line; None
    where it does not stand, or the model takes no batches."""
    found = read.messages(root, "dynamic_batching")
    if not found or not rows_max:
        return None
    message = found[0]
    preferred = tuple(sorted(set(read.numbers(message, "preferred_batch_size"))))
    if any(not 1 <= size <= rows_max for size in preferred):
        raise read.error(
            f"preferred_batch_size is {list(preferred)}; each is from 1 to the max_batch_size of {rows_max}",
            message.line,
        )
    levels = read.number(message, "priority_levels", 0)
    default_level = read.number(message, "default_priority_level", 0)
    if not 0 <= levels <= PRIORITY_LEVELS_MAX or (levels and not 1 <= default_level <= levels):
        raise read.error(
            f"priority_levels is {levels} and default_priority_level {default_level};"
            f" give up to {PRIORITY_LEVELS_MAX} levels, and one of them as the default",
            message.line,
        )
    delay_us = read.number(message, "max_queue_delay_microseconds", 0)
    if delay_us < 0:
        raise read.error(f"max_queue_delay_microseconds is {delay_us}; give 0 or more", message.line)
    defaults = read.messages(message, "default_queue_policy")
    return Batching(
        rows_max=rows_max,
        preferred=preferred,
        queue_delay_max_us=delay_us,
        ordered=read.flag(message, "preserve_ordering"),
        levels=levels,
        default_level=default_level if levels else 0,
        policy=_policy(read, defaults[0]) if defaults else QueuePolicy(),
        policies=tuple(_leveled(read, entry, levels) for entry in read.messages(message, "priority_queue_policy")),
    )


def _leveled(read: FieldReader, entry: Message, levels: int) -> tuple[int, QueuePolicy]:
    written = next((field for field in entry.all("key")), None)
    values = read.messages(entry, "value")
    if written is None or len(values) != 1:
        raise read.error("a priority_queue_policy needs key and value { ... }", entry.line)
    level = read.whole(read.scalar_of(written, ("number", "string")).text, "key", entry.line)
    if not 1 <= level <= levels:
        raise read.error(f"priority_queue_policy is given for level {level}; there are {levels}", entry.line)
    return level, _policy(read, values[0])


def _policy(read: FieldReader, message: Message) -> QueuePolicy:
    timeout_us = read.number(message, "default_timeout_microseconds", 0)
    size_max = read.number(message, "max_queue_size", 0)
    if timeout_us < 0 or size_max < 0:
        raise read.error("a queue policy has a negative number; give 0 (no limit) or more", message.line)
    return QueuePolicy(
        delays=read.word(message, "timeout_action", "REJECT", ("REJECT", "DELAY")) == "DELAY",
        timeout_us=timeout_us,
        allow_override=read.flag(message, "allow_timeout_override"),
        size_max=size_max,
    )
