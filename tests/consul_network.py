"""What stands between a client and an agent in tests: a network that can be cut, and a load balancer.

Both run on loopback in threads of the test and end with it.
"""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable


class Cut:
    """A piece of network before a port. `pull` resets what runs through it and refuses what comes, `mend` ends that."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._stop = threading.Event()
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.port = free_port()
        self.mend()

    def mend(self) -> None:
        """Lets through what comes from now on."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        self._start(self._accept, listener)

    def pull(self) -> None:
        """Cuts everything."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            listener.close()
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for one in pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends it."""
        self.pull()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                pulled = self._listener is not listener
                if not pulled:
                    self._pairs |= {near, far}
            if pulled:
                near.close()
                far.close()
                return
            self._start(self._carry, near, far)
            self._start(self._carry, far, near)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()  # the other way closes the other one


class Switch:
    """A load balancer before agents: a client's connection stays, and each request goes to whom `target` names then."""

    def __init__(self, target: int) -> None:
        self.target = target
        switch = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                far = http.client.HTTPConnection("127.0.0.1", switch.target, timeout=30)
                try:
                    far.request(self.command, self.path, body)
                    answer = far.getresponse()
                    told = answer.read()
                finally:
                    far.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower().startswith("x-") or name.lower() == "age":
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(told)))
                with suppress(OSError):
                    self.end_headers()
                    self.wfile.write(told)

            do_PUT = do_POST = do_GET  # noqa: N815 - the library's names

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
