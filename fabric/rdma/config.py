"""The settings of the rdma wire, the same for both ends, each with its bound and where the number comes from.

Read `fabric/rdma/facts.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fabric.errors import ConfigError

CTL_DEPTH: Final = 32
BULK_DEPTH: Final = 32
"""Receives of each queue pair: 32 frames of 4 KiB hide the round trip at any rate that Python reaches."""
SEND_DEPTH: Final = 40
"""Sends of the frame pair that may be posted: all credits of the peer, and completions that are asked for late."""
PIECES_DEPTH: Final = 24
"""Writes of the bulk pair that may be posted."""
EXTRA_DEPTH: Final = 5
"""The two reads of a load page, a pulse, and a marker behind all sends of each pair."""
COMPLETIONS_PER_LINK: Final = CTL_DEPTH + BULK_DEPTH + SEND_DEPTH + PIECES_DEPTH + EXTRA_DEPTH
"""The most that one connection can put on the completion queue: when a pair dies, everything posted comes back."""
CUT_S: Final = 3.5
"""How long the pairs of a connection are left in error whose own port, cable or address went. A packet of theirs may
wait for the neighbour's address, which the kernel asks for three times in three seconds, and until it gives that up
soft-RoCE's destroying call does not return, with the interpreter's lock held: the whole process stood still for it."""
FRAME_ROOM: Final = 4096
"""One receive: a frame with the body that fits behind it."""


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """Settings of one end. An empty `device` and a negative `gid_index` leave the choice to `choice.py`."""

    device: str = ""
    port: int = 0
    gid_index: int = -1
    spin_us: int = 50
    """How long completions are polled while answers are out, before the event channel is armed: an event costs about
    twice a poll, and more would starve soft-RoCE where cores are few. 0 never spins."""
    ack_timeout: int = 14
    """4.096 us x 2^14 = 67 ms for one acknowledgement; below 12 a slow guest misses it by itself."""
    retry_count: int = 6
    """With `ack_timeout`, about 0.5 s until a silent peer is an error. 7 would mean for ever on soft-RoCE."""
    traffic_class: int = 0
    service_level: int = 0
    piece_bytes: int = 1 << 20
    """Large bodies are written in pieces, so that several can be on their way and none waits for all of another. A
    piece costs our processor some microseconds, and a link of 200 Gbit/s 42."""
    arena_bytes: int = 4 << 20
    """What a peer starts with, on each side."""
    arena_bytes_max: int = 256 << 20
    """What it may grow to: a body of 64 MiB takes a slot of 128, which is half."""
    pinned_bytes_max: int = 0
    """All memory that this process may pin for its peers; 0 takes a quarter of the machine's."""
    idle_shrink_s: float = 30.0
    """A peer that grew and has been idle this long goes back to what it started with."""
    silent_s: float = 15.0
    """A caller pings once a second while its link is idle: one that says nothing for this long is gone."""

    @property
    def ack_s(self) -> float:
        """How long the NIC awaits one acknowledgement."""
        return 4.096e-6 * (1 << self.ack_timeout)

    @property
    def silence_s(self) -> float:
        """How long a peer may be silent until the NIC makes an error of it (measured on soft-RoCE)."""
        return (self.retry_count + 1) * self.ack_s

    @property
    def resolve_s(self) -> float:
        """How long a peer's address may take to answer before pairs are connected to it: four acknowledgements."""
        return 4 * self.ack_s

    def __post_init__(self) -> None:
        if not 0 < self.retry_count <= 6:
            raise ConfigError(f"retry_count is {self.retry_count}; give 1 to 6, since 7 waits for ever on soft-RoCE")
        if not 1 <= self.ack_timeout <= 22:
            raise ConfigError(f"ack_timeout is {self.ack_timeout}; give 1 to 22, of which 14 means 67 ms")
        if not (0 <= self.traffic_class < 256 and 0 <= self.service_level < 16):
            raise ConfigError("traffic_class must be 0 to 255 and service_level 0 to 15; correct the rdma settings")
        if self.piece_bytes < 4096 or self.spin_us < 0 or self.arena_bytes < 64 * 1024:
            raise ConfigError("piece_bytes must be at least 4096, arena_bytes 65536 and spin_us 0; correct them")
        if self.arena_bytes & (self.arena_bytes - 1) or self.arena_bytes_max < self.arena_bytes:
            raise ConfigError("arena_bytes must be a power of two, and arena_bytes_max at least that; correct them")
