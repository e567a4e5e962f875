"""The addresses of the HTTP twin beside inference: each asks `frontdoor/facts.py` and answers in JSON.

This module decides nothing. Read `frontdoor/metrics.py` next.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from fabric.errors import InvalidArgument
from frontdoor.facts import EXTENSIONS, check_size
from frontdoor.http_body import BODY
from frontdoor.http_infer import parse_object
from frontdoor.metrics import CONTENT_TYPE, page

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.control import Duration, ModelStatistics
    from frontdoor.door import Caller, Door
    from frontdoor.engine import Model, Tensor
    from frontdoor.facts import Facts

_CACHE = {"cache_hit": {"count": 0, "ns": 0}, "cache_miss": {"count": 0, "ns": 0}}
"""No reply is cached here; clients of Triton read these all the same."""
_MODELS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """The answers, over one door."""

    facts: Facts
    door: Door
    caller_of: Callable[[web.Request], Caller]

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Adds the addresses."""
        router.add_get("/v2", self._server)
        router.add_get("/v2/health/live", self._live)
        router.add_get("/v2/health/ready", self._ready)
        router.add_get("/v2/models/stats", self._statistics)
        for model in _MODELS:
            router.add_get(model, self._model)
            router.add_get(f"{model}/ready", self._model_ready)
            router.add_get(f"{model}/config", self._config)
            router.add_get(f"{model}/stats", self._statistics)
        router.add_post("/v2/repository/index", self._index)
        router.add_post("/v2/repository/{repository}/index", self._index)
        router.add_post("/v2/repository/models/{model}/load", self._load)
        router.add_post("/v2/repository/models/{model}/unload", self._unload)
        for kind, act in (("system", self._system_memory), ("cuda", self._cuda_memory)):
            router.add_get(f"/v2/{kind}sharedmemory/{{act:status}}", act)
            router.add_get(f"/v2/{kind}sharedmemory/region/{{region}}/{{act:status}}", act)
            router.add_post(f"/v2/{kind}sharedmemory/region/{{region}}/{{act:register|unregister}}", act)
            router.add_post(f"/v2/{kind}sharedmemory/{{act:unregister}}", act)
        for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
            router.add_get(path, self._trace)
            router.add_post(path, self._trace)
        router.add_get("/v2/logging", self._logging)
        router.add_post("/v2/logging", self._logging)
        router.add_get("/metrics", self._metrics)

    async def _server(self, _request: web.Request) -> web.Response:
        facts = self.facts
        return web.json_response({"name": facts.name, "version": facts.version, "extensions": list(EXTENSIONS)})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.facts.ready() else 400)

    async def _model_ready(self, request: web.Request) -> web.Response:
        ready = await self.facts.model_ready_now(*_named(request))
        return web.Response(status=200 if ready else 400)

    async def _model(self, request: web.Request) -> web.Response:
        model, versions = await self.facts.metadata(*_named(request))
        told = {"name": model.name, "versions": list(versions), "platform": model.platform}
        return web.json_response(
            {
                **told,
                "inputs": [_tensor(each) for each in model.inputs],
                "outputs": [_tensor(each) for each in model.outputs],
            }
        )

    async def _config(self, request: web.Request) -> web.Response:
        return web.Response(text=await self.facts.config(*_named(request)), content_type="application/json")

    async def _statistics(self, request: web.Request) -> web.Response:
        figures = await self.facts.statistics(*_named(request))
        return web.json_response({"model_stats": [_figures(each) for each in figures]})

    async def _index(self, request: web.Request) -> web.Response:
        wanted = _asked(request, "the index request")
        ready = wanted.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidArgument(f"'ready' is {ready!r}; give true or false")
        models = await self.facts.index(request.match_info.get("repository", ""), ready=ready)
        return web.json_response([_indexed(model) for model in models])

    async def _load(self, request: web.Request) -> web.Response:
        await self.facts.load(request.match_info["model"], _body_parameters(request))
        return web.Response()

    async def _unload(self, request: web.Request) -> web.Response:
        await self.facts.unload(request.match_info["model"], _body_parameters(request))
        return web.Response()

    async def _system_memory(self, request: web.Request) -> web.Response:
        caller, region, act = self.caller_of(request), request.match_info.get("region", ""), request.match_info["act"]
        if act == "status":
            found = await self.facts.regions(caller, region)
            return web.json_response(
                [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.nbytes} for r in found]
            )
        if act == "register":
            wanted = _asked(request, "the registration")
            key = wanted.get("key")
            if not isinstance(key, str):
                raise InvalidArgument(f"'key' is {key!r}; give the name of shared memory, such as /inputs")
            offset, nbytes = _whole(wanted, "offset", 0), _whole(wanted, "byte_size", None)
            await self.facts.register(caller, region, key, offset, nbytes)
        else:
            await self.facts.unregister(caller, region)
        return web.Response()

    async def _cuda_memory(self, request: web.Request) -> web.Response:
        caller, region, act = self.caller_of(request), request.match_info.get("region", ""), request.match_info["act"]
        if act == "status":
            found = await self.facts.cuda_regions(caller, region)
            return web.json_response([{"name": r.name, "device_id": r.device_id, "byte_size": r.nbytes} for r in found])
        if act == "register":
            wanted = _asked(request, "the registration")
            handle = wanted.get("raw_handle")
            try:
                raw = base64.b64decode(handle["b64"], validate=True) if isinstance(handle, dict) else b""
            except (binascii.Error, KeyError, TypeError, ValueError):
                raw = b""  # which is no handle, and is told so
            device, nbytes = _whole(wanted, "device_id", 0), _whole(wanted, "byte_size", None)
            await self.facts.register_cuda(caller, region, raw, device, nbytes)
        else:
            await self.facts.unregister_cuda(caller, region)
        return web.Response()

    async def _trace(self, request: web.Request) -> web.Response:
        wanted = _asked(request, "the trace settings")
        changes = {  # null asks for the default, as does no value at all over gRPC
            key: () if each is None else tuple(map(str, each if isinstance(each, list) else [each]))
            for key, each in wanted.items()
        }
        told = self.facts.trace(request.match_info.get("model", ""), changes)
        return web.json_response({key: list(values) if key == "trace_level" else values[0] for key, values in told})

    async def _logging(self, request: web.Request) -> web.Response:
        wanted = _asked(request, "the log settings")
        return web.json_response(dict(self.facts.logging(wanted)))

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await page(self.door), headers={"Content-Type": CONTENT_TYPE})


def _asked(request: web.Request, what: str) -> dict[str, Any]:
    """The object in a request's body, which is short."""
    body: bytes = request[BODY]
    check_size(len(body))
    return parse_object(body, what)


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.dtype, "shape": list(tensor.dims)}


def _indexed(model: Model) -> dict[str, str]:
    told = {"name": model.name, "version": model.version, "state": model.state}
    return {**told, "reason": model.reason} if model.reason else told


def _spent(spent: Duration) -> dict[str, int]:
    return {"count": spent.count, "ns": spent.ns}


def _figures(figures: ModelStatistics) -> dict[str, Any]:
    whole = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    return {
        "name": figures.name,
        "version": figures.version,
        "last_inference": figures.last_inference_ms,
        "inference_count": figures.inference_count,
        "execution_count": figures.execution_count,
        "inference_stats": {**{name: _spent(getattr(figures, name)) for name in whole}, **_CACHE},
        "batch_stats": [
            {"batch_size": each.batch_size, **{name: _spent(getattr(each, name)) for name in whole[3:]}}
            for each in figures.batches
        ],
    }


def _body_parameters(request: web.Request) -> dict[str, Any]:
    found = _asked(request, "the request").get("parameters", {})
    if not isinstance(found, dict):
        raise InvalidArgument("'parameters' is no object; give one")
    return found


def _whole(facts: dict[str, Any], name: str, default: int | None) -> int:
    value = facts.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name!r} is {value!r}; give a whole number of at least 0")
    return value
