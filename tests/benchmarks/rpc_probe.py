"""The rpc wire beside what it stands on: grpcio as it comes, grpcio tuned, grpcio's streams, and a bare TCP socket.

`python -m tests.benchmarks.rpc_probe [ROUNDS]` prints one table of echo times, p50 in microseconds, medians over
rounds. Every system has its server in a process of its own, and its client in another; rounds are interleaved, so that
what else the machine does falls on all of them. The node behind the port is an in-process echo: this measures the wire.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from fabric.deadline import Deadline
from fabric.layout import layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import Body, RequestId, Tensor, small_body, write_tensors
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig, TlsFiles
from fabric.transport import Call
from tests.benchmarks.timing import Figure
from tests.integration.rpc_certificates import Authority
from tests.integration.rpc_node import EchoNode, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL, MEDIUM, LARGE = 64, 1 << 20, 16 << 20
REPEATS = {SMALL: 600, MEDIUM: 60, LARGE: 15}
PIECE = 1 << 20
TUNED = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TOP_PAD_": "67108864"}
ROWS = (
    ("bare TCP socket", "tcp", {}),
    ("grpcio unary", "grpc", {}),
    ("grpcio unary, malloc tuned", "grpc", TUNED),
    ("grpcio unary, malloc tuned, TLS", "grpc-tls", TUNED),
    ("grpcio stream of 1 MiB pieces", "grpc-stream", {}),
    ("grpcio stream of 1 MiB pieces, malloc tuned", "grpc-stream", TUNED),
    ("rpc wire", "rpc", {}),
    ("rpc wire, TLS", "rpc-tls", {}),
    ("rpc wire, no lane", "rpc-stream", {}),
)
_IDENTITY: list[tuple[str, int]] = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def files(folder: Path) -> tuple[TlsFiles, TlsFiles]:
    """The server's and the caller's PEM files in `folder`."""
    return (
        TlsFiles(None, folder / "server.pem", folder / "server.key"),
        TlsFiles(folder / "authority.pem", server_name="localhost"),
    )


@contextlib.contextmanager
def server(kind: str, folder: Path) -> Iterator[int]:
    """Serves `kind` in this process."""
    if kind.startswith("rpc"):
        tls = files(folder)[0] if kind == "rpc-tls" else None
        with serving(EchoNode(), RpcServerConfig(tls=tls, lanes=kind != "rpc-stream")) as (_, port):
            yield port
    elif kind.startswith("grpc"):
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
            "Stream": grpc.stream_stream_rpc_method_handler(lambda pieces, _: iter(list(pieces))),
        }
        echo = grpc.server(futures.ThreadPoolExecutor(8), options=_IDENTITY)
        echo.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("E", handlers),))
        if kind == "grpc-tls":
            tls = files(folder)[0]
            assert tls.key is not None
            assert tls.certificate is not None
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            port = echo.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        else:
            port = echo.add_insecure_port("127.0.0.1:0")
        echo.start()
        yield port
        echo.stop(0).wait()
    else:
        listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_tcp_echo, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]


def _tcp_echo(listening: socket.socket) -> None:
    while True:
        sock, _ = listening.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            memory = memoryview(bytearray(LARGE))
            while size := int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "little"):
                _fill(sock, memory[:size])
                sock.sendall(memory[:size])


def _fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += sock.recv_into(view[at:])


def client(kind: str, port: int, folder: Path) -> Callable[[int], Callable[[], object]]:
    """For a size, a function that makes one echo of it."""
    if kind.startswith("rpc"):
        return _rpc_client(kind, port, folder)
    if kind.startswith("grpc"):
        return _grpc_client(kind, port, folder)
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def echo(size: int) -> Callable[[], object]:
        data, back = np.ones(size, np.uint8).data, memoryview(bytearray(size))
        head = size.to_bytes(8, "little")

        def once() -> None:
            sock.sendall(head)
            sock.sendall(data)
            _fill(sock, back)

        return once

    return echo


def _grpc_client(kind: str, port: int, folder: Path) -> Callable[[int], Callable[[], object]]:
    if kind == "grpc-tls":
        authority = files(folder)[1].authority
        assert authority is not None
        options = [*_IDENTITY, ("grpc.ssl_target_name_override", "localhost")]
        channel = grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(authority.read_bytes()), options
        )
    else:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", _IDENTITY)
    unary, stream = channel.unary_unary("/E/Unary"), channel.stream_stream("/E/Stream")

    def echo(size: int) -> Callable[[], object]:
        data = np.ones(size, np.uint8)
        if kind != "grpc-stream":
            return lambda: np.frombuffer(unary(data.tobytes()), np.uint8)
        back = np.empty(size, np.uint8)

        def once() -> None:
            at = 0
            for piece in stream(data[i : i + PIECE].tobytes() for i in range(0, size, PIECE)):
                back[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)

        return once

    return echo


def _rpc_client(kind: str, port: int, folder: Path) -> Callable[[int], Callable[[], object]]:
    arena = Arena.create(256 << 20)
    config = RpcConfig(tls=files(folder)[1] if kind == "rpc-tls" else None)
    channel = RpcChannel.open(f"127.0.0.1:{port}", 1, _soon(), config, arena)
    numbers = iter(range(1, 1 << 40))

    def echo(size: int) -> Callable[[], object]:
        tensor = Tensor.of("x", np.ones(size, np.uint8))
        body = small_body((tensor,))
        if size > SMALL:
            layout = layout_of((tensor.spec,))
            lease = Lease.of(arena, layout.body_bytes)
            write_tensors(lease.view, layout, (tensor,))
            body = Body(layout, lease)

        def once() -> None:
            memory = channel.call(Call(RequestId(1, next(numbers)), "echo", body), _soon()).memory
            if isinstance(memory, Lease):
                memory.release()

        return once

    return echo


def _soon() -> Deadline:
    return Deadline(time.monotonic() + 30.0)


def p50_us(once: Callable[[], object], repeats: int) -> float:
    """The median of `repeats` times of `once`, after a tenth of them unmeasured."""
    times = []
    for number in range(repeats + repeats // 10 + 2):
        began = time.perf_counter()
        once()
        if number >= repeats // 10 + 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def measure(kind: str, port: int, folder: Path) -> None:
    """The client's process: prints p50 of each size, and for the rpc wire of 64 B beside 32 MiB."""
    echo = client(kind, port, folder)
    figures = [p50_us(echo(size), repeats) for size, repeats in REPEATS.items()]
    if kind == "rpc":
        big, small, ended = echo(32 << 20), echo(SMALL), threading.Event()

        def keep_on() -> None:
            while not ended.is_set():
                big()

        thread = threading.Thread(target=keep_on)
        thread.start()
        figures.append(p50_us(small, 300))
        ended.set()
        thread.join()
    print(*figures, flush=True)
    os._exit(0)  # the servers are ended by their parent


def _spawn(role: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.rpc_probe", role, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment})


def _round(folder: Path) -> list[list[float]]:
    found = []
    for _, kind, environment in ROWS:
        serves = _spawn("serve", kind, str(folder), environment=environment)
        assert serves.stdout is not None
        port = serves.stdout.readline().decode().strip()
        out, _ = _spawn("measure", kind, port, str(folder), environment=environment).communicate(timeout=120)
        serves.communicate(timeout=30)
        found.append([float(figure) for figure in out.split()])
    return found


def _rounds(count: int) -> list[list[list[float]]]:
    with tempfile.TemporaryDirectory() as name:
        authority = Authority(Path(name))
        authority.issue("server")
        return [_round(Path(name)) for _ in range(count)]


def figures(rounds: int) -> list[Figure]:
    """Every row of every round, for the table of `make bench`."""
    found = []
    for one_round in _rounds(rounds):
        for (title, _, _), row in zip(ROWS, one_round, strict=True):
            found += [Figure(title, size, p50) for size, p50 in zip(REPEATS, row, strict=False)]
            found += [Figure(f"{title}, beside 32 MiB", SMALL, p50) for p50 in row[len(REPEATS) :]]
    return found


def main() -> None:
    """Runs the rounds, or one side of one system in a child."""
    role, *arguments = sys.argv[1:] or ["3"]
    if role == "serve":
        with server(arguments[0], Path(arguments[1])) as port:
            print(port, flush=True)
            sys.stdin.read()
        os._exit(0)
    if role == "measure":
        measure(arguments[0], int(arguments[1]), Path(arguments[2]))
    rounds = _rounds(int(role))
    print(f"{'echo, p50 in us':45}{'64 B':>9}{'1 MiB':>9}{'16 MiB':>9}{'64 B beside 32 MiB':>20}")
    for row, (title, _, _) in enumerate(ROWS):
        medians = [statistics.median(figures) for figures in zip(*(found[row] for found in rounds), strict=True)]
        print(f"{title:45}" + "".join(f"{figure:9.0f}" for figure in medians[:3]), end="")
        print(f"{medians[3]:20.0f}" if medians[3:] else "")


if __name__ == "__main__":
    main()
