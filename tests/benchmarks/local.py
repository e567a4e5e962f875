"""The local wire, the whole way: blocking client, node, executor, and back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from overspill import Router
from tests.benchmarks.nodes import running_node
from tests.benchmarks.timing import Figure, p50_each_us, per_second

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 10.0


def figures(sizes: list[int], seconds: float, rounds: int) -> list[Figure]:
    """`touch` and `echo` with leased input, `echo` with a plain array, at each size; then eight clients at 64 B."""
    found = []
    with running_node("local") as registry, Router.connect(registry) as router:
        for _ in range(rounds):
            for size in sizes:
                found += _one_size(router, size, seconds)
    with running_node("local") as registry:  # a second executor would only take turns with the first on two cores
        for _ in range(rounds):
            rate = per_second(partial(_client, registry), max(seconds, 1.0))
            found.append(Figure("local touch, 8 clients", 64, per_s=rate))
    return found


def _one_size(router: Router, size: int, seconds: float) -> list[Figure]:
    plain = np.ones(size // 4, np.float32)
    with router.prepare("touch", rows=size // 4) as touch, router.prepare("echo", rows=size // 4) as echo:
        for leased in (touch, echo):
            leased["x"][:] = 1.0
        calls = {
            "local touch, leased input": lambda: touch.infer(timeout_s=TIMEOUT_S).close(),
            "local echo, leased input": lambda: echo.infer(timeout_s=TIMEOUT_S).close(),
            "local echo, plain input": lambda: router.infer("echo", {"x": plain}, timeout_s=TIMEOUT_S).close(),
        }
        timed = p50_each_us(tuple(calls.values()), seconds)
    return [Figure(name, size, p50) for name, p50 in zip(calls, timed, strict=True)]


def _client(registry: str) -> Callable[[], object]:
    router = Router.connect(registry)
    array = np.ones(16, np.float32)
    return lambda: router.infer("touch", {"x": array}, timeout_s=TIMEOUT_S)
