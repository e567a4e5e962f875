"""Puts one front door together over an engine, on the running loop, and takes it apart: gRPC, HTTP, leases, health.

The order of the end: not ready, no new calls, running ones finished, then the rest. This module decides nothing about
requests. Read `frontdoor/port.py` for the one beside a node.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.rpc_fallback.lane_server import listen
from fabric.rpc_fallback.tls import server_context, server_credentials
from frontdoor.door import Door, DoorLimits
from frontdoor.facts import Facts, Permits, own_version
from frontdoor.grpc_facts import GrpcFacts
from frontdoor.grpc_health import Health
from frontdoor.grpc_server import ENVELOPE_BYTES, GrpcServer
from frontdoor.grpc_service import GrpcService
from frontdoor.http_body import Bodies
from frontdoor.http_facts import HttpFacts
from frontdoor.http_server import HttpServer
from frontdoor.http_service import HttpService, caller_of
from frontdoor.leases import Leases
from frontdoor.regions import Regions
from frontdoor.trace_writer import TraceWriter, open_sink
from frontdoor.traces import Traces

if TYPE_CHECKING:
    from frontdoor.config import FrontConfig
    from frontdoor.engine import Engine

LAST_TRACES_S = 2.0
"""What a collector that does not answer may add to the end."""


class FrontDoor:  # mutable: open, then closed
    """One front door over `engine`, called `name` to clients. Made and used on one loop."""

    def __init__(self, engine: Engine, config: FrontConfig, name: str) -> None:
        self._config = config
        regions = Regions(trusted=config.shm == "trust")
        leases = None
        if config.shm != "off":
            leases = Leases(regions, time.monotonic, config.shm_lease_s, anywhere=config.shm == "trust")
        self._writer: TraceWriter | None = None
        self._writing: asyncio.Task[None] | None = None
        self.door = Door(engine, regions, leases, DoorLimits(config.timeout_s), self._make_traces(engine, name))
        self._facts = Facts(self.door, Permits(config.control), name)
        self._health = Health(self._facts)
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._sweep: asyncio.Task[None] | None = None
        self.port = self.http_port = 0
        engine.on_change(self._health.changed)

    def _make_traces(self, engine: Engine, name: str) -> Traces:
        where, bits = self._config.traces, random.SystemRandom().getrandbits  # of many nodes no two may have one id
        if not where:
            return Traces()
        self._writer = TraceWriter(open_sink(where), engine, name, own_version(), bits)
        return Traces(where, self._writer.put, time.monotonic_ns, time.time_ns, bits, self._writer.counts)

    async def start(self) -> None:
        """Listens; `port` and `http_port` are known afterwards. Raises AddressInUse or ConfigError, with nothing left
        open."""
        config = self._config
        try:
            credentials = server_credentials(config.tls) if config.tls is not None else None
            self._grpc = GrpcServer(config.host, config.port, config.message_bytes_max, credentials)
            self.port = self._grpc.port
            await self._start_http()
            service = GrpcService(self.door, GrpcFacts(self._facts), self.port)
            await self._grpc.start((service.handler(), self._health.handler()))
        except BaseException:  # whatever it was, nothing may stay open behind it
            await self.stop(0.0)
            raise
        if self.door.leases is not None:
            self._sweep = asyncio.create_task(self.door.leases.sweep_for_ever())
        if self._writer is not None:
            self._writing = asyncio.create_task(self._writer.write_for_ever())

    async def _start_http(self) -> None:
        config = self._config
        bodies = Bodies(config.message_bytes_max + ENVELOPE_BYTES, config.timeout_s)
        http = HttpService(self.door, HttpFacts(self._facts, self.door, caller_of), bodies)
        self._http = HttpServer(http.application())
        wanted = config.http_port or (config.port + 1 if config.port else 0)
        sock = listen(config.host, wanted)
        self.http_port = int(sock.getsockname()[1])
        await self._http.start(sock, server_context(config.tls) if config.tls is not None else None)

    def drain(self) -> None:
        """Not ready from now on, whatever the engine says; calls are still answered."""
        self._facts.draining = True
        self._health.changed()

    async def stop(self, grace_s: float | None = None) -> None:
        """Ends. Safe to call twice."""
        grace_s = self._config.grace_s if grace_s is None else grace_s
        self._health.end()
        if self._grpc is not None:
            await self._grpc.stop(grace_s)
        if self._http is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s + 5.0):
                    await self._http.stop()
        for task in (self._sweep, self._writing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self._writer is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s + LAST_TRACES_S):
                    await self._writer.write(last=True)
        self.door.close()
