"""A front door's HTTP as stock clients speak it, by the standard library alone: GPU machines have no tritonclient.

Read `tests/hw/test_gpu_shared.py` next.
"""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

Place = tuple[str, int, int]
"""A region's name, offset and bytes."""


class FrontHttp:
    """One connection, kept open: a lease is on the process that made it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """(status, what came)."""
        if body is None:
            self._connection.request("GET", f"/v2/{path}")
        else:
            self._connection.request("POST", f"/v2/{path}", json.dumps(body))
        response = self._connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else {}

    def register(self, name: str, handle: bytes, nbytes: int, device: int = 0) -> tuple[int, Any]:
        raw = {"b64": base64.b64encode(handle).decode()}
        words = {"raw_handle": raw, "device_id": device, "byte_size": nbytes}
        return self.ask(f"cudasharedmemory/region/{name}/register", words)

    def unregister(self, name: str) -> None:
        status, told = self.ask(f"cudasharedmemory/region/{name}/unregister", {})
        assert status == 200, told

    def regions(self) -> list[dict[str, Any]]:
        status, told = self.ask("cudasharedmemory/status")
        assert status == 200, told
        found: list[dict[str, Any]] = told
        return found

    def infer(self, model: str, floats: int, x: Place | list[float], y: Place | None) -> tuple[int, Any]:
        """One request of `floats` FP32: from a place or as numbers, to a place or as numbers."""
        given: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [floats]}
        given |= {"data": x} if isinstance(x, list) else {"parameters": _place(x)}
        wanted = {"name": "y"} if y is None else {"name": "y", "parameters": _place(y)}
        return self.ask(f"models/{model}/infer", {"inputs": [given], "outputs": [wanted]})


def _place(place: Place) -> dict[str, Any]:
    region, offset, nbytes = place
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": nbytes}
