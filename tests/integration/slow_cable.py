"""A cable between two network namespaces that takes its time: packets wait one way delay in user space.

The kernel's netem does the same where it is built in; this needs a TUN device only. It is a process of its own: it
makes both ends, says so in one line, and ends with its parent: `python -m tests.integration.slow_cable NAMESPACE MS`.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

NEAR, FAR = "10.213.7.1", "10.213.7.2"
_SET_DEVICE = 0x400454CA
_TUN, _NO_HEADER = 0x0001, 0x1000
_NETWORK = 0x40000000
_PACKETS_MAX = 4096


def device(name: str) -> int:
    """Makes a TUN device in this thread's namespace; gives the descriptor that its packets are read from."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, _SET_DEVICE, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
    return fd


def enter(namespace: str) -> None:
    """Moves this process into a named network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open("rb") as file:
        if libc.setns(file.fileno(), _NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10, capture_output=True)


def carry(ends: tuple[int, int], delay_s: float) -> None:
    """Carries packets until the parent's end of our input is closed."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    late: list[tuple[float, int, int, bytes]] = []
    poll, order = select.poll(), 0
    for fd in (*ends, sys.stdin.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        wait_ms = None if not late else max(0.0, (late[0][0] - time.monotonic()) * 1000.0)
        # poll counts whole milliseconds: the last one is waited out by looking.
        for fd, _ in poll.poll(None if wait_ms is None else int(wait_ms)):
            if fd == sys.stdin.fileno():
                return
            packet = os.read(fd, 65_536)
            if len(late) < _PACKETS_MAX:
                order += 1
                heapq.heappush(late, (time.monotonic() + delay_s, order, other[fd], packet))
        while late and late[0][0] <= time.monotonic():
            _, _, fd, packet = heapq.heappop(late)
            os.write(fd, packet)


def main() -> None:
    namespace, delay_ms = sys.argv[1], float(sys.argv[2])
    here = device("ovnear")
    ip("addr", "add", NEAR, "peer", FAR, "dev", "ovnear")
    ip("link", "set", "ovnear", "up")
    enter(namespace)
    there = device("ovfar")
    ip("addr", "add", FAR, "peer", NEAR, "dev", "ovfar")
    ip("link", "set", "lo", "up")
    ip("link", "set", "ovfar", "up")
    sys.stdout.write("ready\n")  # its parent reads it
    sys.stdout.flush()
    carry((here, there), delay_ms / 1000.0)


if __name__ == "__main__":
    main()
