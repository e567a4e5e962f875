"""The times and limits of a link, each with the reason for its number. Read `fabric/link/machine.py` next."""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass

from fabric.errors import ConfigError
from fabric.settings import COUNT_MOST, DAY_S, check_number, check_order, check_whole

_SECONDS = (
    "connect_s", "probe_s", "ping_s", "idle_ping_s", "hold_down_s", "hold_down_max_s", "flap_window_s", "backoff_s",
    "backoff_max_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """When a wire is doubted, given up, probed and trusted again; seconds and counts of pings."""

    connect_s: float = 1.0
    """One attempt to open a wire: a refused one fails in microseconds, a silent one must not hold requests longer."""
    probe_s: float = 4.0
    """The same while another wire carries the requests: nobody waits for it, and rdma loads libraries first."""
    ping_s: float = 0.08
    """While requests are out, a ping each 80 ms: two missed ones after a silent loss take 160 to 240 ms."""
    idle_ping_s: float = 1.0
    suspect_missed: int = 2
    """New requests leave a wire that missed two pings in a row: at most 250 ms after a silent loss."""
    silent_missed: int = 5
    """After five (at most 480 ms) the wire is fenced and its requests move."""
    last_missed: int = 25
    """Where there is no other wire to go to, 2 s: a short stall must not turn requests into unknown ones. While all
    that are out could run on another node instead, `silent_missed` counts here too."""
    good_pings: int = 5
    """A wire that was doubted is trusted again after this many answers in a row; a probed one needs three."""
    probe_pings: int = 3
    hold_down_s: float = 5.0
    """A wire that came back must have been good for 5 s in a row, and requests stay away from one that they left for so
    long too: twice as long with each flap within `flap_window_s`, up to `hold_down_max_s`."""
    hold_down_max_s: float = 60.0
    flap_window_s: float = 60.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    moves_max: int = 3
    """How often one request may move before its error goes to the caller."""

    def __post_init__(self) -> None:
        for name in _SECONDS:
            check_number(name, getattr(self, name), 0.0, DAY_S, above=True)
        for name in ("suspect_missed", "silent_missed", "last_missed", "good_pings", "probe_pings"):
            check_whole(name, getattr(self, name), 1, COUNT_MOST)
        check_whole("moves_max", self.moves_max, 0, COUNT_MOST)
        if not self.suspect_missed <= self.silent_missed <= self.last_missed:
            raise ConfigError(
                "suspect_missed, silent_missed and last_missed must be counts in this order; correct them"
            )
        check_order("hold_down_s", self.hold_down_s, "hold_down_max_s", self.hold_down_max_s)
        check_order("backoff_s", self.backoff_s, "backoff_max_s", self.backoff_max_s)
        check_order("ping_s", self.ping_s, "idle_ping_s", self.idle_ping_s)
