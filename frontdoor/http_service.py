"""The HTTP twin: the protocol's addresses, each answered by the same door and facts as its call over gRPC.

A client that hangs up cancels its request. Errors are `{"error": "..."}` with Triton's status. This module opens no
port. Read `frontdoor/http_facts.py` and `frontdoor/serving.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from fabric.errors import InvalidArgument
from frontdoor.door import Caller
from frontdoor.facts import told
from frontdoor.failures import Refusal, Status, sentence, status_of
from frontdoor.http_infer import HEADER_LENGTH, read_bare, read_request, write_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from frontdoor.door import Door
    from frontdoor.http_facts import HttpFacts

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

FATE = "Overspill-Fate"


class HttpService:
    """All addresses over one door."""

    def __init__(self, door: Door, facts: HttpFacts, message_bytes_max: int) -> None:
        self._door = door
        self._facts = facts
        self._message_bytes_max = message_bytes_max

    def application(self) -> web.Application:
        """The addresses, for an aiohttp server."""
        app = web.Application(client_max_size=self._message_bytes_max, middlewares=[self._answer])
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_post(f"{model}/infer", self._infer)
        self._facts.add_to(app.router)
        return app

    @web.middleware
    async def _answer(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Turns errors into answers."""
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            limit = self._message_bytes_max
            error: Exception = Refusal(Status.RESOURCE_EXHAUSTED, f"the body is larger than {limit} bytes; split it")
            return self._error(request, error, 413)
        except web.HTTPException as error:  # an address or a method that is none
            return web.json_response({"error": f"{error.reason}: {request.method} {request.path}"}, status=error.status)
        except asyncio.CancelledError:
            self._door.counters.requests["http", "CANCELLED"] += 1
            raise
        except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
            return self._error(request, error)

    def _error(self, request: web.Request, error: Exception, number: int = 0) -> web.Response:
        known = told(error)
        status = status_of(known)
        if request.path.endswith("/infer"):
            self._door.counters.requests["http", status.name] += 1
        headers = {FATE: str(known.fate)}
        return web.json_response({"error": sentence(known)}, status=number or status.http, headers=headers)

    async def _infer(self, request: web.Request) -> web.Response:
        model, version = request.match_info["model"], request.match_info.get("version", "")
        body = await request.read()
        header = request.headers.get(HEADER_LENGTH)
        if header == "0":
            asked = read_bare(self._door.model(model, version), version, body)
        else:
            asked = read_request(model, version, body, header)
        done = await self._door.infer(asked, caller_of(request), None)
        try:
            answer, length = write_response(done)
        finally:
            done.release()
        self._door.counters.requests["http", "OK"] += 1
        if length is None:
            response = web.Response(body=answer, content_type="application/json")
        else:
            response = web.Response(body=answer, content_type="application/octet-stream")
            response.headers[HEADER_LENGTH] = str(length)
        if {"gzip", "deflate"} & set(request.headers.get("Accept-Encoding", "").replace(" ", "").split(",")):
            response.enable_compression()
        return response


def caller_of(request: web.Request) -> Caller:
    """Who asks. Raises InvalidArgument for a connection that has no address."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    own = transport.get_extra_info("sockname") if transport is not None else None
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        raise InvalidArgument("the connection has no address; connect over TCP")
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return Caller(f"{host}:{peer[1]}", own[1])
