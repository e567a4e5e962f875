"""How a node says that it is."""

from __future__ import annotations

import pytest

from discovery.instance import Readiness
from workers.standing import Condition, readiness


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
    found = readiness(Condition(ready, port_down, any_model), was_ready=was_ready, draining=draining)
    assert found is expected


@pytest.mark.parametrize(
    ("was_ready", "draining", "expected"),
    [(False, False, Readiness.DEGRADED), (True, False, Readiness.DEGRADED), (True, True, Readiness.DRAINING)],
)
def test_a_node_that_lost_the_rdma_it_was_asked_for_is_degraded_and_serves(
    was_ready: bool, draining: bool, expected: Readiness
) -> None:
    condition = Condition(1, port_down=False, any_model=True)
    assert readiness(condition, was_ready=was_ready, draining=draining, rdma_missing=True) is expected
    assert condition.serves
