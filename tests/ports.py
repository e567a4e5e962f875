"""Ports that a test tells another process to listen at, or that it expects to stay free.

The system hands out the ports of its own range to whoever connects, or asks for any port: one of those that was free a
moment ago is somebody else's now and then, when many tests run side by side. So these lie outside of that range. A test
that listens itself asks the system, as the product does.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

FIRST, LAST = 10_000, 65_535
TRIES = 1000
_chosen: set[int] = set()


def free_port() -> int:
    """One that nobody has, and that nobody gets by chance; not the same twice in a process."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Several."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [*range(FIRST, first), *range(last + 1, LAST + 1)]
    assert outside, f"the system gives away every port from {first} to {last}: set net.ipv4.ip_local_port_range"
    found: list[int] = []
    with ExitStack() as taken:
        for _ in range(TRIES):
            port = random.SystemRandom().choice(outside)  # two runs of the tests at once must not choose alike
            try:
                if port not in _chosen:
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
                    _chosen.add(port)
                    found.append(port)
            except OSError:
                continue  # it is somebody's
            if len(found) == count:
                return found
    raise AssertionError(f"no {count} free ports outside of {first} to {last} in {TRIES} tries")
