"""The HTTP twin: the protocol's addresses, each answered by the same door and facts as its call over gRPC.

A client that hangs up cancels its request. Errors are `{"error": "..."}` with Triton's status. This module opens no
port. Read `frontdoor/http_facts.py` and `frontdoor/serving.py` next.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from fabric.errors import Fate, InvalidArgument, OverspillError
from frontdoor.aside import TEXT_INLINE_BYTES, aside
from frontdoor.door import Caller
from frontdoor.facts import told
from frontdoor.failures import sentence, status_of
from frontdoor.http_body import BODY, Bodies, BodyTooLarge
from frontdoor.http_infer import HEADER_LENGTH, read_bare, read_request, text_bytes, text_length, write_response
from frontdoor.trace_context import PARENT, STATE, read_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from frontdoor.door import Door
    from frontdoor.http_facts import HttpFacts
    from frontdoor.values import Done

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

FATE = "Overspill-Fate"


class HttpService:
    """All addresses over one door."""

    def __init__(self, door: Door, facts: HttpFacts, bodies: Bodies) -> None:
        self._door = door
        self._facts = facts
        self._bodies = bodies

    def application(self) -> web.Application:
        """The addresses, for an aiohttp server."""
        app = web.Application(middlewares=[self._answer])
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_post(f"{model}/infer", self._infer)
        self._facts.add_to(app.router)
        return app

    @web.middleware
    async def _answer(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Turns errors into answers."""
        try:
            if request.match_info.http_exception is not None:
                return await handler(request)
            async with self._bodies.of(request) as body:
                request[BODY] = body
                return await handler(request)
        except web.HTTPException as error:  # an address or a method that is none
            return web.json_response({"error": f"{error.reason}: {request.method} {request.path}"}, status=error.status)
        except asyncio.CancelledError:
            self._door.counters.requests["http", "CANCELLED"] += 1
            raise
        except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
            return self._error(request, error)

    def _error(self, request: web.Request, error: Exception) -> web.Response:
        known = told(error)
        status = status_of(known)
        if request.path.endswith("/infer"):
            self._door.counters.requests["http", status.name] += 1
        headers = {FATE: str(known.fate)}
        return web.json_response(
            {"error": sentence(known)}, status=413 if isinstance(known, BodyTooLarge) else status.http, headers=headers
        )

    async def _infer(self, request: web.Request) -> web.Response:
        model, version = request.match_info["model"], request.match_info.get("version", "")
        body: bytes = request[BODY]
        header = request.headers.get(HEADER_LENGTH)
        if header == "0":
            asked = read_bare(await self._door.found(model, version), version, body)
        else:
            work = partial(read_request, model, version, body, header)
            asked = work() if text_length(body, header) <= TEXT_INLINE_BYTES else await aside(work)
        caller = caller_of(request)
        if self._door.traces.taken:
            context = read_context(request.headers.get(PARENT, ""), request.headers.get(STATE, ""))
            caller = replace(caller, context=context)
        done = await self._door.infer(asked, caller, None)
        try:
            answer, behind = await self._written(done)
        finally:
            done.release()
        self._door.counters.requests["http", "OK"] += 1
        if behind is None:
            response = web.Response(body=answer, content_type="application/json")
        else:
            response = web.Response(body=answer, content_type="application/octet-stream")
            response.headers[HEADER_LENGTH] = str(behind)
        if {"gzip", "deflate"} & set(request.headers.get("Accept-Encoding", "").replace(" ", "").split(",")):
            response.enable_compression()
        return response

    @staticmethod
    async def _written(done: Done) -> tuple[bytes, int | None]:
        try:
            if text_bytes(done) <= TEXT_INLINE_BYTES:
                return write_response(done)
            return await aside(partial(write_response, done))
        except OverspillError as error:
            error.fate = Fate.RAN  # whatever is wrong with its answer
            raise


def caller_of(request: web.Request) -> Caller:
    """Who asks. Raises InvalidArgument for a connection that has no address."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    own = transport.get_extra_info("sockname") if transport is not None else None
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        raise InvalidArgument("the connection has no address; connect over TCP")
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return Caller(f"{host}:{peer[1]}", own[1])
