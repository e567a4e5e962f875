"""Asks a node of this host about its models, and to load or unload one: one question and one answer per connection.

The socket lies beside the node's own and answers its own user only. This module never sends a request to a model. Read
`fabric/control.py` for what can be asked, `workers/control.py` for the other end.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabric.control import MESSAGE_BYTES_MAX, Question, decode_reply, encode_question, memory_question
from fabric.errors import AccessDenied, DeadlineExceeded, Fate, ProtocolError, Unavailable
from fabric.local.address import PATH_BYTES_MAX

if TYPE_CHECKING:
    from fabric.control import ExecutorFacts, MemoryFacts, ModelState, ModelStatistics, Reply, TracedRun

SOCKET: Final = "control.sock"
ASK_TIMEOUT_S: Final = 10.0
OPEN_TIMEOUT_S: Final = 15.0
"""A little more than the node itself gives an executor to open memory."""
LOAD_TIMEOUT_S: Final = 310.0
"""A little more than the node itself gives a load: its own sentence says more than ours."""
_READ_BYTES: Final = 1 << 16


def control_path(node_socket: str) -> str:
    """Where the node that listens on `node_socket` is asked."""
    return str(Path(node_socket).with_name(SOCKET))


class NodeControl:
    """The models of the node whose control socket is `path`. Nothing stays open between calls, which may come from any
    thread. All raise Unavailable, AccessDenied, DeadlineExceeded or the node's own error."""

    def __init__(self, path: str) -> None:
        self._path = path

    def index(self) -> tuple[ModelState, ...]:
        """Every model of the repository with its state."""
        return self._ask(Question("index"), ASK_TIMEOUT_S).states

    def statistics(
        self, model: str = "", version: str = "", timeout_s: float = ASK_TIMEOUT_S
    ) -> tuple[ModelStatistics, ...]:
        """The statistics of one model, or of all. Raises UnknownModel for a model or version that is not there."""
        return self._ask(Question("statistics", model, version), timeout_s).statistics

    def config(self, model: str, version: str = "") -> str:
        """A loaded model's configuration as Triton's JSON. Raises UnknownModel."""
        return self._ask(Question("config", model, version), ASK_TIMEOUT_S).config

    def executors(self) -> tuple[ExecutorFacts, ...]:
        """Every executor as it is now."""
        return self._ask(Question("executors"), ASK_TIMEOUT_S).executors

    def traced(self) -> tuple[TracedRun, ...]:
        """What traced requests took, the oldest first; each is told once."""
        return self._ask(Question("traced"), ASK_TIMEOUT_S).traced

    def load(self, model: str, config: str = "", timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Has a model loaded, or loaded anew; returns once it serves. Raises ModelBroken with the reason when it cannot
        be loaded (a version that served until now goes on), UnknownModel, and Unavailable where the node's models are
        fixed."""
        self._ask(Question("load", model, config=config), timeout_s)

    def unload(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Has a model unloaded; returns once its requests have ended, and its memory is free a moment later. Raises
        UnknownModel, and Unavailable where the node's models are fixed."""
        self._ask(Question("unload", model), timeout_s)

    def open_memory(self, memory: MemoryFacts) -> int:
        """Has memory on a card opened by an executor there; gives its number, which requests of the same session name
        it by. Raises InvalidArgument where it cannot be opened."""
        return int(self._ask(memory_question("open_memory", memory), OPEN_TIMEOUT_S).config)

    def close_memory(self, memory: MemoryFacts) -> None:
        """Has it let go of, once no request uses it."""
        self._ask(memory_question("close_memory", memory), ASK_TIMEOUT_S)

    def _ask(self, question: Question, timeout_s: float) -> Reply:
        deadline_s = time.monotonic() + timeout_s
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            told = f"the node cannot be asked {question.word!r} ({error.strerror}); close some descriptors, ask again"
            raise Unavailable(told) from None
        with made as sock:
            try:
                _wait_at_most(sock, deadline_s)
                self._connect(sock)
                sock.sendall(encode_question(question))
                return decode_reply(_read_line(sock, deadline_s))
            except TimeoutError:
                raise DeadlineExceeded(
                    f"the node did not answer {question.word!r} in {timeout_s:.0f} s; ask for its index", Fate.UNKNOWN
                ) from None
            except OSError as error:
                raise Unavailable(
                    f"the node left before it answered {question.word!r} ({error.strerror}); ask again", Fate.UNKNOWN
                ) from None

    def _connect(self, sock: socket.socket) -> None:
        if len(os.fsencode(self._path)) > PATH_BYTES_MAX:
            raise Unavailable(f"the path {self._path} is longer than a Unix socket's; use a shorter runtime_dir")
        try:
            sock.connect(self._path)
        except PermissionError:
            raise AccessDenied(f"the socket {self._path} is another user's; run as that user") from None
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Unavailable(f"no node listens on {self._path} ({error.strerror}); start it") from None


def _wait_at_most(sock: socket.socket, deadline_s: float) -> None:
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    sock.settimeout(remaining_s)


def _read_line(sock: socket.socket, deadline_s: float) -> bytes:
    answer = bytearray()
    while not answer.endswith(b"\n"):
        _wait_at_most(sock, deadline_s)
        piece = sock.recv(_READ_BYTES)
        if not piece:
            raise Unavailable("the node hung up before it answered; look into its log, then ask again", Fate.UNKNOWN)
        answer += piece
        if len(answer) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"the answer is over {MESSAGE_BYTES_MAX} bytes; ask for one model at a time")
    return bytes(answer)
