"""What an operator may set on a router, each with its unit, default and the reason for that number.

A value of the wrong size is refused when the router is made, not when a request meets it. This module never reads a
file or the environment. Read `router/attempt.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fabric.errors import ConfigError
from fabric.link.wires import LinkConfig
from fabric.memory.arena import ARENA_BYTES_DEFAULT, ARENA_BYTES_MAX
from fabric.settings import (
    ARENA_BYTES_LEAST,
    COUNT_MOST,
    DAY_S,
    check_flag,
    check_number,
    check_order,
    check_text,
    check_whole,
    check_word,
)

_WHOLE = {
    "attempts_max": (1, 100),  # each takes its share of one request's time: more of them would get none
    "retry_budget_min": (0, COUNT_MOST),
    "remote_sample": (1, 64),  # each pick prices them all, at about two microseconds each
    "explain_kept": (0, COUNT_MOST),
    "eject_after": (1, COUNT_MOST),
    "arena_bytes": (ARENA_BYTES_LEAST, ARENA_BYTES_MAX),
}
_ABOVE_ZERO = (
    "backoff_first_s", "backoff_max_s", "affinity_ms_max", "eject_first_s", "eject_max_s", "dial_first_s", "dial_max_s",
    "supervise_s", "close_timeout_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of one router. Raises ConfigError for a number out of range."""

    attempts_max: int = 4
    """Attempts of one request, the first included."""
    backoff_first_s: float = 0.002
    """Upper end of the first back-off, drawn with full jitter; doubles with each attempt."""
    backoff_max_s: float = 0.25
    """Where the doubling of the back-off stops."""
    retry_budget_ratio: float = 0.2
    """Retries may be this share of the active requests (Envoy's default, 20 %)."""
    retry_budget_min: int = 3
    """This many retries are always allowed, so that a quiet router can retry at all (Envoy's default)."""
    remote_sample: int = 5
    """Remote workers priced for each request; five fresh ones come within 1.15 of knowing all."""
    tied: bool = False
    """Send a request of an idempotent model to the two cheapest workers when it would wait at both: the first to begin
    it runs it, the other withdraws it. Only where nodes tell when they begin a request, as those of the simulator do;
    elsewhere both would often run it."""
    hedge_ratio: float = 0.0
    """Work that copies of late requests may add, as a share of all: 0.05 is a good start, 0 sends none. Blocking calls
    then run on the background thread, which costs each of them some tens of microseconds."""
    refuse_late: bool = True
    """Refuse a request at once when the queues before every worker are longer than its time, or than its priority
    allows; off, it is sent and expires in a queue."""
    explain_kept: int = 0
    """Decisions that are kept in memory for `Router.explain`; 0 keeps none, and costs nothing."""
    explain_file: str = ""
    """Where decisions are written too, a line each, for `overspill explain`; empty for nowhere."""
    affinity_ms_max: float = 50.0
    """What a worker lacks of a request's resident inputs counts as the time to send it there, but at most so much: a
    longer queue elsewhere makes it get a copy, so that no worker keeps all requests of one resident."""
    eject_after: int = 3
    """Failures in a row that a worker has to answer for before it is ejected."""
    eject_first_s: float = 1.0
    """Length of the first ejection; it doubles with each one that follows without a success between."""
    eject_max_s: float = 8.0
    """Where the doubling of ejections stops: one request in eight seconds is a cheap question, and a worker that was
    mended has its share again within ten."""
    panic: Literal["spray", "fail"] = "spray"
    """What becomes of a request when every worker that can be reached is ejected or forgotten by the registry: sent to
    one of them all the same, or kept until one is usable. Both are counted."""
    dial_first_s: float = 0.02
    """Upper end of the first wait before a link is opened again."""
    dial_max_s: float = 2.0
    """Where the doubling of that wait stops."""
    link: LinkConfig = field(default_factory=LinkConfig)
    """Settings of the links: which wires may be used, certificates and tokens, when a wire is given up."""
    supervise_s: float = 0.1
    """How often links are asked whether their node is silent; a stopped node is out within twice a link's own doubt."""
    close_timeout_s: float = 5.0
    """How long `close` waits for requests that are running."""
    arena_bytes: int = ARENA_BYTES_DEFAULT
    """Room for the inputs and replies that are out at the same time, rounded up to a power of two: asked of each node
    (which gives the `arena_bytes_max` of its node.toml at most), and the router's own where no local node gives any. A
    request takes one slot for its inputs and one for its reply, each rounded up in the same way."""
    seed: int | None = None
    """Seed of every random choice; None draws one from the system."""

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            check_whole(name, getattr(self, name), least, most)
        for name in _ABOVE_ZERO:
            check_number(name, getattr(self, name), 0.0, DAY_S, above=True)
        for name in ("retry_budget_ratio", "hedge_ratio"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("tied", "refuse_late"):
            check_flag(name, getattr(self, name))
        for name in ("backoff", "eject", "dial"):
            first, last = f"{name}_first_s", f"{name}_max_s"
            check_order(first, getattr(self, first), last, getattr(self, last))
        check_word("panic", self.panic, ("spray", "fail"))
        check_text("explain_file", self.explain_file)
        if self.seed is not None:
            check_whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if not isinstance(self.link, LinkConfig):
            raise ConfigError(f"link is {self.link!r:.80}; give a LinkConfig of fabric.link.wires")
