"""The process that opens a node to stock clients: gRPC and HTTP outward, the local wire and the control socket inward.

It is a child of the node, like the ports of its network wires, because gRPC's threads and large copies hold the
interpreter's lock, which must not touch the node; and whatever a client does to it, the node and its other callers
serve on. The node starts it with one line of JSON on its input, and tells it `ready`, `not ready`, `news` (of its
models), `drain` and `beat`; the end of the input ends it. This module never runs a model. Read
`frontdoor/over_node.py` next.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabric.errors import OverspillError
from fabric.local.control import NodeControl, control_path
from fabric.rpc_fallback.config import TlsFiles
from fabric.rpc_fallback.malloc import keep_freed_memory
from frontdoor import libraries
from frontdoor.config import FrontConfig
from frontdoor.desk import Desk
from frontdoor.watchdog import Watchdog

PR_SET_PDEATHSIG = 1  # prctl(2)
ARENA_BYTES_MIN = 1 << 30
"""Address space, not memory: pages come when they are first written."""
ARENA_MESSAGES = 8
"""Slots are powers of two, and a request takes one for its inputs and one for its reply: room for two at least."""
OOM_SCORE = 500
"""Clients' messages make this process large: when memory ends, the kernel takes it first, and the node starts another
one (proc(5), oom_score_adj: half of the way to being always the first)."""


async def serve(settings: dict[str, Any]) -> None:
    """Serves until the node closes our input. Raises OverspillError when it cannot listen."""
    libraries.check()
    from frontdoor.over_node import NodeEngine
    from frontdoor.serving import FrontDoor

    config = front_config(settings)
    keep_freed_memory()
    desk = Desk(NodeControl(control_path(settings["socket"])))
    desk.tell_ready(ready=settings["ready"])
    arena_bytes = min(settings["arena_bytes_max"], max(ARENA_BYTES_MIN, ARENA_MESSAGES * config.message_bytes_max))
    engine = NodeEngine(settings["socket"], (settings["node_id"], settings["node_epoch"]), desk, arena_bytes)
    await desk.look()
    front = FrontDoor(engine, config, settings["node_id"])
    looking = asyncio.create_task(desk.look_for_ever())
    try:
        await front.start()
        _say({"port": front.port, "http_port": front.http_port})
        with Watchdog(asyncio.get_running_loop()):
            await _obey(desk)
    finally:
        await front.stop()
        await engine.close()
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        desk.close()


def front_config(settings: dict[str, Any]) -> FrontConfig:
    """The settings that the node told."""
    tls = None
    if settings["tls_cert"]:
        authority = Path(settings["tls_ca"]) if settings["tls_ca"] else None
        tls = TlsFiles(authority, Path(settings["tls_cert"]), Path(settings["tls_key"]))
    return FrontConfig(
        settings["host"], settings["port"], settings["http_port"], settings["timeout_s"],
        settings["message_bytes_max"], settings["shm"], settings["shm_lease_s"], settings["control"],
        settings["grace_s"], tls, settings["traces"],
    )  # fmt: skip


async def _obey(desk: Desk) -> None:
    """Takes the node's words until there are no more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            word = line.decode().strip()
            if word == "drain":
                desk.drain()
            elif word == "beat":  # answered from the loop, as a sign that it turns
                _say({"beat": True})
            elif word == "news":
                desk.look_soon()
            elif word in {"ready", "not ready"}:
                desk.tell_ready(ready=word == "ready")
    finally:
        transport.close()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _end_with(parent_pid: int) -> None:
    """Has the kernel kill this process when the node dies; ends at once if that happened before the call."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)


def _first_line() -> bytes:
    """The first line of our input and not a byte more: the rest is the loop's."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in {b"", b"\n"}:
        line += byte
    return bytes(line)


def main() -> int:
    """The process. Its exit code is 0 after the end of its input, 1 when it could not listen."""
    settings: dict[str, Any] = json.loads(_first_line())
    _end_with(settings["parent_pid"])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s front door %(levelname)s %(message)s")
    try:
        asyncio.run(serve(settings))
    except OverspillError as error:
        _say({"code": error.code, "error": str(error)})
        return 1
    return 0
