"""The one place that uses py-consul: its HTTP layer, with our own callback, our deadlines and our errors.

py-consul's conveniences are traps for a long-lived watcher: they drop the headers that say how old an answer is, let an
environment variable replace the token, lose the token on coordinates, and tell the same trouble as a bool, as its own
exception or as one of its libraries'. So each call goes through `client.http` and comes back as an `Answer`, or as a
`ConsulError` of the table in `discovery/agent/faults.py`. A call can be interrupted from another thread. This module
never decides what an answer means. Read `discovery/agent/bounded_read.py` next.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discovery.agent.bounded_read import bounded_response
from discovery.agent.faults import ConsulError, Fault, answer_fault, detail_of, raised_fault
from fabric.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discovery.agent.url import ConsulSettings

BODY_BYTES_MAX = 256 << 20
"""A thousand workers take about 2 MiB; whatever is so much longer is no list of ours."""
_CHUNK_BYTES = 1 << 18
_IDLE_PROBES = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A blocking read is silent for a minute: a host that vanished is known after 25 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: `index` 0 where none was given, `age_s` how long the agent has not heard of its servers."""

    text: str
    index: int
    age_s: float
    filtered: bool
    """Whether ACLs hid some of it, by the word of agents from 1.11 on."""


Params = tuple[tuple[str, str], ...]


class ConsulClient:  # mutable: owns connections
    """One client with connections of its own. For one thread at a time; `interrupt` is for any other.

    Raises MissingDependency where py-consul is not installed, and ConfigError for a token file that cannot be read.
    """

    def __init__(self, settings: ConsulSettings, answer_s: float = 0.0) -> None:
        self._settings = settings
        self._token = read_token(settings.token_file)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._ended = False
        self._deadline_s = 0.0
        self._http = _http_layer(self, settings, answer_s or settings.times.answer_s)

    def get(self, path: str, params: Params = ()) -> Answer:
        """Reads `path`; with an `index` among the params it blocks for its `wait` and 1/16. Raises ConsulError."""
        return self._call(self._http.get, path, (*self._scope(), *params))

    def put(self, path: str, params: Params = (), body: str = "") -> Answer:
        """Writes to `path`. Raises ConsulError."""
        return self._call(self._http.put, path, (*self._scope(), *params), data=body)

    def post(self, path: str, body: str) -> Answer:
        """Asks something that takes a body. Raises ConsulError."""
        return self._call(self._http.post, path, self._scope(), data=body)

    def renew_token(self) -> None:
        """Reads the token again: it was refused, or shows less than it should, and may have been replaced."""
        with suppress(ConfigError):  # it may be written just now
            self._token = read_token(self._settings.token_file)

    def interrupt(self) -> None:
        """Ends the call that is under way, and all later ones, with a ConsulError. Safe from any thread, and twice."""
        if os.getpid() != self._pid:
            return  # a connection that a fork inherited is still the parent's, and so may the lock be
        with self._lock:
            self._ended = True
            if self._socket is not None:
                with suppress(OSError):  # it may be closed by now
                    # Not the method of an SSLSocket, which would take the session from under the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes all connections. Safe to call twice."""
        self.interrupt()
        self._http.session.close()  # py-consul's own close does nothing

    def _scope(self) -> Params:
        named = (("ns", self._settings.ns), ("partition", self._settings.partition))
        return tuple((name, value) for name, value in named if value)

    def _call(self, method: Any, path: str, params: Params, **body: str) -> Answer:
        headers = {"X-Consul-Token": self._token} if self._token else None
        try:
            answer = method(self._read, path, list(params) or None, headers=headers, **body)
        except (ConsulError, ConfigError):
            raise
        except Exception as error:  # noqa: BLE001 - three libraries below, each with exceptions of its own
            trouble = ConsulError(raised_fault(_story(error)), self._settings.place)
        else:
            assert isinstance(answer, Answer), "the callback makes it"
            return answer
        raise trouble  # out here it drags no traceback along, which would keep the broken connection open

    def _read(self, response: Any) -> Answer:
        """The callback: py-consul's own would keep the body alone."""
        fault = answer_fault(response.code, response.body)
        if fault is not None:
            if fault in {Fault.ACL_UNKNOWN, Fault.DENIED}:
                self.renew_token()
            raise ConsulError(fault, self._settings.place, detail_of(response.body))
        headers = response.headers
        return Answer(
            response.body,
            _whole(headers.get("X-Consul-Index")),
            float(_whole(headers.get("Age"))),
            headers.get("X-Consul-Results-Filtered-By-ACLs", "").lower() == "true",
        )

    # What the connections ask of it.

    def begin(self, deadline_s: float) -> None:
        """A call begins, to be over by `deadline_s` of the monotonic clock."""
        if os.getpid() != self._pid:  # asked before the lock, which a thread of the parent's may have held
            raise ConsulError(Fault.FORKED, self._settings.place)
        with self._lock:
            if self._ended:
                raise ConsulError(Fault.RESET, self._settings.place, "this side has closed")
            self._deadline_s = deadline_s

    def connected(self, sock: socket.socket) -> None:
        """A connection was made."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _IDLE_PROBES:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        with self._lock:
            self._socket = sock
            if self._ended:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def left_s(self) -> float:
        """Seconds that the call under way still has. Raises ConsulError when they are over."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0.0:
            raise ConsulError(Fault.TIMEOUT, self._settings.place)
        if self._socket is not None:
            with suppress(OSError):
                self._socket.settimeout(left_s)
        return left_s


def read_token(file: str) -> str:
    """The token in `file`, nothing for no file. Raises ConfigError where it cannot be read, or holds none."""
    if not file:
        return ""
    try:
        token = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"token_file {file} cannot be read ({reason}); give a file with the ACL token") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"token_file {file} holds no token; write the ACL token's SecretID into it, and nothing else")
    return token


def _http_layer(owner: ConsulClient, settings: ConsulSettings, answer_s: float) -> Any:
    """py-consul's HTTP client over a session of ours: no proxies, no netrc, no redirects, one connection."""
    try:
        from consul.std import Consul
    except ImportError as error:
        raise MissingDependency(
            f"the consul: registry needs {error.name or 'py-consul'}; run `pip install py-consul`"
        ) from None
    for name, file in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if file and not Path(file).is_file():
            raise ConfigError(f"{name} is {file}, which is no file; give a PEM file")
    # Everything is given, so that py-consul asks the environment for nothing.
    client = Consul(
        host=f"[{settings.host}]" if ":" in settings.host else settings.host,
        port=settings.port,
        scheme="https" if settings.tls else "http",
        verify=settings.ca or True,
        cert=(settings.cert, settings.key) if settings.cert else None,
        connections_timeout=answer_s,
    )
    session = client.http.session
    session.trust_env = False
    session.max_redirects = 0
    session.headers.update({"Accept-Encoding": "identity", "User-Agent": "overspill"})
    adapter = _adapter(owner, settings.times.connect_s)
    for prefix in ("http://", "https://"):
        session.get_adapter(prefix).close()
        session.mount(prefix, adapter)
    return client.http


def _adapter(owner: ConsulClient, connect_s: float) -> Any:
    """The session's connections: each tells its socket, and the time to the last byte of a body is bounded."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def close(self) -> None:
            for key in self.poolmanager.pools.keys():  # noqa: SIM118 - it is no dict; else the collector closes them
                if (pool := self.poolmanager.pools.get(key)) is not None:
                    pool.close()
            super().close()

        def get_connection_with_tls_context(
            self, request: Any, verify: Any, proxies: Any = None, cert: Any = None
        ) -> Any:
            pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
            kind = type(pool).ConnectionCls
            if pool.ConnectionCls is kind:

                class Connection(kind):  # type: ignore[valid-type, misc]
                    response_class = bounded_response(owner.left_s)

                    def connect(self) -> None:
                        super().connect()
                        owner.connected(self.sock)

                pool.ConnectionCls = Connection
            return pool

        def send(
            self,
            request: Any,
            stream: bool = False,
            timeout: Any = None,
            verify: Any = True,
            cert: Any = None,
            proxies: Any = None,
        ) -> Any:
            del stream  # the body is read below, under the deadline
            owner.begin(time.monotonic() + timeout)
            times = (min(connect_s, timeout), timeout)
            response = super().send(request, True, times, verify, cert, proxies)  # noqa: FBT003 - the same
            try:
                response._content = _body(response.raw, owner)  # what requests does itself where nothing is bounded
            except BaseException:  # whatever it was, half an answer must not keep its connection open
                response.close()
                raise
            response._content_consumed = True
            return response

    return Adapter(pool_connections=1, pool_maxsize=1, max_retries=0)


def _body(raw: Any, owner: ConsulClient) -> bytes:
    parts: list[bytes] = []
    size = 0
    while owner.left_s() and (part := raw.read1(_CHUNK_BYTES)):
        parts.append(part)
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise ValueError(f"the answer has more than {BODY_BYTES_MAX} bytes")
    return b"".join(parts)


def _whole(text: str | None) -> int:
    """A header's number; 0 for none, and for what is none of 64 bits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else 0


def _story(error: BaseException | None) -> str:
    """Types and messages, from the outermost to the first cause."""
    parts: list[str] = []
    while error is not None and len(parts) < 8:
        parts.append(f"{type(error).__name__}: {error}")
        reason = getattr(error, "reason", None)
        error = error.__cause__ or error.__context__ or (reason if isinstance(reason, BaseException) else None)
    return " | ".join(parts)


def parsed(answer: Answer, place: str) -> Any:  # JSON is anything until its reader has read it
    """The body as JSON. Raises ConsulError."""
    try:
        return json.loads(answer.text)
    except (ValueError, RecursionError):
        raise ConsulError(Fault.GARBLED, place, detail_of(answer.text)) from None


__all__: Sequence[str] = ("Answer", "ConsulClient", "Params", "parsed", "read_token")
