"""Reads the load page of a node on this host: a file beside its socket, which the node writes through a mapping.

Reads of a file and writes to its mapping meet in the same memory, so nobody at the node is asked, and there is no
mapping of ours to be pulled away. What was read while it was written is seen by the page's checks, and read again. This
module never decides what a report is worth. Read `fabric/load_page.py` for the page itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from fabric.errors import Fate, NodeLost, Unavailable
from fabric.load_page import FILE, LINES_AT, LINES_BYTES, TRIES_MAX, Reading, line_at, read_both


class LocalPage:  # mutable: open, then closed
    """The page beside the socket at `socket_path`, opened when it is first read."""

    def __init__(self, socket_path: str) -> None:
        self._path = Path(socket_path).with_name(FILE)
        self._fd = -1
        self._closed = False
        self._lock = Lock()  # threads read at the same time, and one of them opens the file

    def raw(self, client_id: int) -> bytes:
        """A client's lines and then the page, as they are in this moment: perhaps torn. Raises Unavailable where there
        is none, NodeLost after `close`."""
        with self._lock:
            if self._closed:
                raise NodeLost("the channel is closed; choose another", Fate.NEVER_RAN)
            if self._fd < 0:
                try:
                    self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    told = f"the node has no load page ({error.strerror}); its answers tell its load"
                    raise Unavailable(told) from None
            return os.pread(self._fd, LINES_BYTES, line_at(client_id)) + os.pread(self._fd, LINES_AT, 0)

    def read(self, client_id: int, node_epoch: int) -> Reading:
        """What this client reads of that life of the node. Raises Unavailable where there is no whole page of it."""
        for _ in range(TRIES_MAX):
            raw = self.raw(client_id)
            reading = read_both(raw[:LINES_BYTES], raw[LINES_BYTES:], client_id, node_epoch)
            if reading is not None:
                return reading
        raise Unavailable(f"no whole load page was met in {TRIES_MAX} reads; the node's answers tell its load")

    def close(self) -> None:
        """Lets the file go. Harmless twice."""
        with self._lock:
            fd, self._fd, self._closed = self._fd, -1, True
        if fd >= 0:
            os.close(fd)
