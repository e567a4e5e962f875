"""The node's port for the rpc wire: a gRPC server and a lane server in a process of their own.

It is a process of its own because gRPC's threads and large copies hold the interpreter's lock, and nothing of that may
touch the node. Outward it speaks the rpc wire; inward it has one channel per caller, which whoever starts it passes in
as `open_channel`, so that this wire knows no other. It never runs a request and never decides whether one may run.
Read `fabric/rpc_fallback/service.py` and `fabric/rpc_fallback/peers.py` for what it does with one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from fabric.deadline import Deadline
from fabric.errors import AddressInUse, ConfigError, DeadlineExceeded, Unavailable
from fabric.rpc_fallback.config import address_of
from fabric.rpc_fallback.health import Health, Serving
from fabric.rpc_fallback.lane_server import LaneServer, listen
from fabric.rpc_fallback.malloc import keep_freed_memory
from fabric.rpc_fallback.options import SERVER_OPTIONS
from fabric.rpc_fallback.peers import Peers
from fabric.rpc_fallback.service import Service
from fabric.rpc_fallback.tls import server_context, server_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Load
    from fabric.rpc_fallback.config import RpcServerConfig
    from fabric.rpc_fallback.pages import ReadRaw
    from fabric.rpc_fallback.service import Bootstrap
    from fabric.transport import Channel, PeerFacts

SWEEP_S = 5.0
"""How often idle callers are looked for."""
LINES_S = 0.5
"""The rdma port ends beside this one, and hangs up then: callers hear of it from that."""
_log = logging.getLogger(__name__)


class RpcServer:  # mutable: owns servers and threads
    """Serves the node that `open_channel(client_id, arena_bytes)` reaches. `facts` are the node's own; `bootstrap`
    brings offers to the node's rdma port, if it has one; `read_page` reads its load page, if it has that."""

    def __init__(
        self,
        config: RpcServerConfig,
        open_channel: Callable[[int, int], Channel],
        facts: PeerFacts,
        bootstrap: Bootstrap | None = None,
        read_page: ReadRaw | None = None,
    ) -> None:
        self._bootstrap, self._read_page = bootstrap, read_page
        self._config = config
        self._facts = facts
        self._peers = Peers(config, open_channel)
        self._health = Health()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._threads = ThreadPoolExecutor(config.threads_max, thread_name_prefix="overspill-port")
        self._grpc: grpc.Server | None = None
        self._lanes: LaneServer | None = None
        self._service: Service | None = None
        self._stopped = False

    def start(self, *, ready: bool = True) -> int:
        """Listens, and returns the port; health says SERVING if `ready`. Raises AddressInUse or ConfigError."""
        config = self._config
        keep_freed_memory()
        credentials = server_credentials(config.tls) if config.tls is not None else None
        try:
            # gRPC says only that it failed, and logs a page: a plain socket learns why.
            listen(config.host, config.port).close()
            if config.lanes:
                context = server_context(config.tls) if config.tls is not None else None
                self._lanes = LaneServer(config, self._peers, context)
            lane_port = self._lanes.port if self._lanes is not None else 0
            more = (self._bootstrap, self._read_page)
            self._service = Service(config, self._facts, self._peers, lane_port, self._ask_ping, *more)
            self._grpc = grpc.server(
                self._threads,
                options=SERVER_OPTIONS,
                maximum_concurrent_rpcs=config.calls_max,
                handlers=(self._service.handler(), self._health.handler()),
            )
            port = self._bind(self._grpc, credentials)
        except BaseException:  # whatever it was, nothing may stay open behind it
            self.stop(0.0)
            raise
        self._grpc.start()
        if self._lanes is not None:
            self._lanes.start()
        self._loop = asyncio.new_event_loop()
        self._service.lines.attach(self._loop)
        self._loop_thread = threading.Thread(
            target=self._run_loop, args=(self._loop,), name="overspill-port-loop", daemon=True
        )
        self._loop_thread.start()
        self.tell_ready(ready=ready)
        return port

    def tell_ready(self, *, ready: bool) -> None:
        """What the health service says from now on, until it drains. Calls are taken either way: a node queues them."""
        if self._service is not None and not self._service.draining:
            self._health.tell(Serving.SERVING if ready else Serving.NOT_SERVING)

    def in_loop(self, action: Callable[[], None]) -> None:
        """Has the port's loop do this; it does nothing before `start` and after `stop`."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action)

    def drain(self) -> None:
        """Takes no new callers; known ones may finish."""
        self._health.tell(Serving.NOT_SERVING)
        if self._service is not None:
            self._service.draining = True

    def stop(self, grace_s: float) -> None:
        """Takes no new calls, gives running ones `grace_s`, and ends. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        deadline = Deadline.after(grace_s, time.monotonic())
        self.drain()
        self._health.tell(Serving.NOT_SERVING, end=True)
        if self._grpc is not None:
            ended = self._grpc.stop(grace_s)
            if self._service is not None:
                self._service.lines.close(min(grace_s, LINES_S))
            self._peers.end_lines(deadline)
            ended.wait(grace_s + 5.0)
        self._peers.close(deadline)
        if self._lanes is not None:
            self._lanes.stop(deadline)
        if self._loop is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(5.0)
            if not self._loop_thread.is_alive():
                self._loop.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _bind(self, server: grpc.Server, credentials: grpc.ServerCredentials | None) -> int:
        address = self._config.address
        try:
            if credentials is not None:
                return int(server.add_secure_port(address, credentials))
            return int(server.add_insecure_port(address))
        except RuntimeError as error:
            if self._config.port:
                raise AddressInUse(f"another process took {address} just now; stop it, or give another port") from None
            raise ConfigError(f"cannot listen on {address} ({error}); give an address of this machine") from None

    def _ask_ping(self, channel: Channel, deadline: Deadline) -> Load:
        """Runs a channel's ping on the port's loop, from one of gRPC's threads."""
        if self._loop is None:
            raise Unavailable("the node's port is not open yet; try again")
        future = asyncio.run_coroutine_threadsafe(channel.ping(deadline), self._loop)
        try:
            return future.result(deadline.remaining_s(time.monotonic()) + 0.1)
        except FutureTimeout:
            future.cancel()
            raise DeadlineExceeded("the node behind this port did not answer a ping in time; ask another one") from None
        except FutureCancelled:
            raise Unavailable("the node's port is closing; ask another node") from None

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.call_later(SWEEP_S, self._sweep, loop)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._peers.sweep(time.monotonic())
        loop.call_later(SWEEP_S, self._sweep, loop)

    def __repr__(self) -> str:
        return f"<RpcServer {address_of(self._config.host, self._config.port)}, {len(self._peers)} callers>"
