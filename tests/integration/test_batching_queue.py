"""Who waits for a batch waits no longer than it may, and leaves no trace when it gives up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import Cancelled, DeadlineExceeded, OverspillError, QueueFull
from fabric.local.control import NodeControl, control_path
from fabric.message import RequestId
from tests.integration.batches import at_once, batching_node, busy, callers, plain
from tests.integration.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.nodes import RunningNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this file."""
    with batching_node(tmp_path_factory.mktemp("batching")) as running:
        yield running


def test_the_queues_own_limits_hold_while_the_executor_is_busy(node: RunningNode) -> None:
    with callers(node, 6) as clients, busy(node, 1500):
        began_s = time.monotonic()
        results = at_once([(caller, "strict", plain(n)) for n, caller in enumerate(clients)])
        took_s = time.monotonic() - began_s
        assert all(isinstance(result, QueueFull) for result in results)
        assert sum("wait for model" in str(result) for result in results) == 2  # four may wait
        assert 0.1 <= took_s < 1.2  # by the timer: the executor is free later
        before = len(node.ran())
        (late,) = at_once([(clients[0], "strict", plain(0))], timeout_s=0.05)
        assert isinstance(late, DeadlineExceeded)
    assert len(node.ran()) == before


def test_whoever_gives_up_or_leaves_is_out_of_the_queue_at_once_and_never_runs(node: RunningNode) -> None:
    control = NodeControl(control_path(node.path))

    def pending() -> int:
        return control.statistics("joined")[0].pending

    results = list[object]()
    with callers(node, 2) as clients:
        calls = [(client, "joined", plain(number)) for number, client in enumerate(clients)]
        with busy(node, 1500):
            asking = threading.Thread(target=lambda: results.extend(at_once(calls)))
            asking.start()
            wait_until(lambda: pending() == 2)
            before = len(node.ran())
            clients[0].channel.cancel(RequestId(clients[0].client_id, 1))
            wait_until(lambda: pending() == 1)
            clients[1].close()
            wait_until(lambda: pending() == 0)
            asking.join(20.0)
            kinds = [type(result) for result in results]
            results.clear()  # an error's traceback would hold its caller's arena
            assert kinds[0] is Cancelled
            assert issubclass(kinds[1], OverspillError)
        assert len(node.ran()) == before
