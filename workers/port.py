"""The process that speaks the rpc wire for a node: gRPC outward, the local wire inward, one arena per caller.

It is a child because gRPC's threads and large copies hold the interpreter's lock, which must not touch the node. It
ends with its node. Started as `python -m workers.port` by `workers/port_keeper.py`, which tells it what to do in one
line of JSON, and later `ready`, `not ready`, `drain`, `beat` (answered from the loop, as a sign that all turns) or the
end of the stream.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric.deadline import Deadline
from fabric.errors import OverspillError
from fabric.local.channel import LocalChannel
from fabric.local.page import LocalPage
from fabric.rpc_fallback.config import RpcServerConfig, TlsFiles
from fabric.rpc_fallback.server import RpcServer
from fabric.transport import PeerFacts
from workers.lifeline import end_with
from workers.offer import bring_offer

if TYPE_CHECKING:
    import socket

    from fabric.transport import Channel

OPEN_TIMEOUT_S = 5.0


def serve(settings: dict[str, Any]) -> None:
    """Serves until the node closes our input. Raises OverspillError when it cannot listen."""
    config = RpcServerConfig(
        host=settings["host"],
        port=settings["port"],
        token=settings["token"],
        tls=_tls(settings),
        arena_bytes_max=settings["arena_bytes_max"],
    )
    facts = PeerFacts(settings["node_id"], settings["node_epoch"], settings["version"])
    path = settings["socket"]

    def open_channel(client_id: int, arena_bytes: int) -> Channel:
        deadline = Deadline.after(OPEN_TIMEOUT_S, time.monotonic())
        return LocalChannel.open(path, client_id, deadline, arena_bytes, (facts.node_id, facts.node_epoch))

    def bootstrap(client_id: int, offer: bytes, timeout_s: float) -> tuple[bytes, socket.socket]:
        return bring_offer(path, client_id, offer, timeout_s)

    page = LocalPage(path)
    server = RpcServer(config, open_channel, facts, bootstrap if settings["rdma"] else None, page.raw)
    try:
        _say({"port": server.start(ready=settings["ready"])})
        for line in sys.stdin:
            word = line.strip()
            if word == "drain":
                server.drain()
            elif word == "beat":
                server.in_loop(lambda: _say({"beat": True}))
            elif word in {"ready", "not ready"}:
                server.tell_ready(ready=word == "ready")
    finally:
        server.stop(settings["grace_s"])


def _tls(settings: dict[str, Any]) -> TlsFiles | None:
    if not settings["tls_cert"]:
        return None
    authority = Path(settings["tls_ca"]) if settings["tls_ca"] else None
    return TlsFiles(authority, Path(settings["tls_cert"]), Path(settings["tls_key"]))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """The process. Its exit code is 0 after the end of its input, 1 when it could not listen."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    end_with(settings["parent_pid"])
    try:
        serve(settings)
    except OverspillError as error:
        _say({"code": error.code, "error": str(error)})
        return 1
    return 0
