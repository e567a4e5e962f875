"""TLS for a lane, over memory instead of over the socket: records are moved in bulk, not one by one.

Python's own TLS socket makes two system calls to read each record of 16 KiB and one to write it, about 3000 for a body
of 16 MiB. Here whole runs of records go through memory, which is also what lets the reader and the writer of the two
ends work at the same time. It checks certificates and names as the context says, and never falls back to plain text.
Read `fabric/rpc_fallback/lane.py` next.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from fabric.deadline import Deadline

RUN_BYTES = 64 * 1024
"""Of records at a time: of 64 KiB to 1 MiB the cheapest. A longer run is over glibc's threshold for maps of their own
(128 KiB), and every one of them would be paid for with page faults in a caller's process, which we do not tune."""


class TlsSocket:  # mutable: owns a socket and a TLS state
    """A connected TLS socket with the few methods that a lane uses. `server_name` is checked by the caller's side."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_name is None, server_hostname=server_name)
        self._run = memoryview(bytearray(RUN_BYTES))

    def handshake(self, deadline: Deadline) -> None:
        """Raises OSError (ssl.SSLError is one) when the peer is not who it should be, or too slow."""
        while True:
            remaining_s = deadline.remaining_s(time.monotonic())
            if not remaining_s:
                raise TimeoutError("the TLS handshake took too long")
            self._sock.settimeout(remaining_s)
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise ConnectionResetError("the peer closed the socket in the TLS handshake") from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert tells the peer why
                raise

    def sendall(self, data: bytes | memoryview) -> None:
        """Encrypts and sends all of it."""
        view = memoryview(data)
        for at in range(0, len(view), RUN_BYTES):
            self._tls.write(view[at : at + RUN_BYTES])
            self._flush()

    def recv_into(self, view: memoryview) -> int:
        """Decrypts what is there into `view`, waiting for the first bytes; 0 at the end of the stream."""
        at, read = 0, self._tls.read
        while True:
            try:
                while at < len(view):
                    got: int = read(len(view) - at, view[at:])  # type: ignore[assignment]  # any buffer will do
                    at += got
                return at
            except ssl.SSLWantReadError:
                if at:
                    return at
                if not self._receive():
                    return 0
            except ssl.SSLZeroReturnError:
                return at

    def settimeout(self, timeout_s: float) -> None:
        """Bounds each wait of the socket."""
        self._sock.settimeout(timeout_s)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Sets an option of the socket."""
        self._sock.setsockopt(level, option, value)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        """Ends the connection under whoever waits on it."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Closes the socket."""
        self._sock.close()

    def _flush(self) -> None:
        if self._out.pending:
            self._sock.sendall(self._out.read())

    def _receive(self) -> int:
        got = self._sock.recv_into(self._run)
        self._in.write(self._run[:got])
        return got
