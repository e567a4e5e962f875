"""How a node says that it is."""

from __future__ import annotations

import pytest

from discovery.instance import Readiness
from workers.node import readiness


@pytest.mark.parametrize(
    ("ready", "was_ready", "port_down", "draining", "any_model", "expected"),
    [
        (0, False, False, False, True, Readiness.STARTING),
        (1, False, True, False, True, Readiness.STARTING),
        (1, False, False, False, True, Readiness.READY),
        (1, True, False, False, True, Readiness.READY),
        (0, True, False, False, True, Readiness.DEGRADED),
        (1, True, True, False, True, Readiness.DEGRADED),
        (1, False, False, False, False, Readiness.DEGRADED),
        (2, True, False, True, True, Readiness.DRAINING),
        (0, False, True, True, True, Readiness.DRAINING),
    ],
)
def test_readiness(
    ready: int, was_ready: bool, port_down: bool, draining: bool, any_model: bool, expected: Readiness
) -> None:
    found = readiness(ready=ready, was_ready=was_ready, port_down=port_down, draining=draining, any_model=any_model)
    assert found is expected
