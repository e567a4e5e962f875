"""The process that speaks the rdma wire for a node: queue pairs outward, the local wire inward, one arena per caller.

It is a child because pyverbs holds the interpreter's lock in every call, some of which take long; and it is no part of
the rpc port, because gRPC's threads would wait for that. Where the host has no usable device it stays up and says why:
a device that comes later is found. Offers come from the rpc port, which has checked who makes them. Started as
`python -m workers.rdma_port` by `workers/port_keeper.py`; ends with its node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric.deadline import Deadline
from fabric.errors import OverspillError
from fabric.hot_loop import HotLoop
from fabric.load_page import FILE, PAGE_BYTES
from fabric.local.channel import LocalChannel
from fabric.rdma.config import RdmaConfig
from fabric.rdma.engine import Engine
from fabric.rdma.line import hold_line
from fabric.rdma.listener import RdmaListener
from fabric.rdma.verbs import load
from fabric.transport import PeerFacts
from workers.lifeline import end_with
from workers.offer import CLIENT, OFFER_BYTES_MAX, offer_socket

if TYPE_CHECKING:
    from fabric.transport import Channel

_log = logging.getLogger(__name__)
OPEN_TIMEOUT_S = 5.0
LOOK_S = 2.0
OFFERS_MAX = 16
"""Offers that are being answered; further ones wait in the socket's backlog."""


class RdmaPort:  # mutable: owns the listener's socket
    """The port of one node, in this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._facts = PeerFacts(settings["node_id"], settings["node_epoch"], settings["version"])
        config = RdmaConfig(
            device=settings["device"], gid_index=settings["gid_index"], ack_timeout=settings["ack_timeout"],
            traffic_class=settings["traffic_class"], service_level=settings["service_level"],
            pinned_bytes_max=settings["pinned_bytes_max"], spin_us=0,  # it waits for the node, on the same loop
        )  # fmt: skip
        self._engine = Engine(asyncio.get_running_loop(), config)
        page = map_page(Path(settings["socket"]).with_name(FILE))
        self._listener = RdmaListener(self._engine, self._open_channel, self._facts, page)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = ""

    async def serve(self) -> None:
        """Until the node closes our input."""
        path = offer_socket(self._settings["socket"])
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - of an earlier life: the folder is the node's alone
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sock:
            sock.bind(path)
            sock.listen(OFFERS_MAX)
            accepting = self._start(self._accept(sock))
            looking = self._start(self._look())
            try:
                await asyncio.to_thread(self._until_told, asyncio.get_running_loop())
            finally:
                accepting.cancel()
                looking.cancel()
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - the path may be too long for a Path's own checks
                await self._listener.close(self._settings["grace_s"])
                self._engine.close()

    def _until_told(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            word = line.strip()
            if word == "drain":
                self._listener.draining = True
            elif word == "beat":
                loop.call_soon_threadsafe(say, {"beat": True})

    def _open_channel(self, client_id: int, arena_bytes: int) -> Channel:
        deadline = Deadline.after(OPEN_TIMEOUT_S, time.monotonic())
        expect = (self._facts.node_id, self._facts.node_epoch)
        return LocalChannel.open(self._settings["socket"], client_id, deadline, arena_bytes, expect)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(sock)
            self._start(self._answer(connection))

    async def _answer(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with sock, suppress(OSError):  # the rpc port gave up, or its caller did
            message = await loop.sock_recv(sock, OFFER_BYTES_MAX)
            if len(message) > CLIENT.size:
                (client_id,) = CLIENT.unpack_from(message)
                answer, peer = await self._listener.bootstrap(client_id, message[CLIENT.size :])
                await loop.sock_sendall(sock, answer)
                if peer is not None:
                    await hold_line(peer, loop.sock_recv(sock, 1))

    async def _look(self) -> None:
        """Tells the node which device there is, whenever that changes."""
        first = True
        while True:
            name, why = await asyncio.to_thread(self._device)
            if first or name != self._told:
                self._told, first = name, False
                if why:
                    _log.warning("no rdma here, callers stay on rpc: %s", why)
                else:
                    _log.info("rdma goes over %s", name)
                say({"port": 1, "name": name})
            await asyncio.sleep(LOOK_S)

    def _device(self) -> tuple[str, str]:
        try:
            load()
            choice = self._engine.choose()
        except OverspillError as error:
            return "", str(error)
        return f"{choice.device}/{choice.port}", ""

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def map_page(path: Path) -> mmap.mmap | None:
    """The node's load page, for peers to read; None where there is none."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        _log.warning("there is no load page for peers to read (%s)", error.strerror)
        return None
    try:
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)


def say(answer: dict[str, Any]) -> None:
    """Tells the node something, in a line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _serve(settings: dict[str, Any]) -> None:
    await RdmaPort(settings).serve()


def main() -> int:
    """The process."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    end_with(settings["parent_pid"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with asyncio.Runner(loop_factory=HotLoop) as runner:
        runner.run(_serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
