"""Load pages of real nodes, before a pick and beside it: a router that was told nothing yet leaves the node that others
keep busy."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from router import Router, fresh
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from pathlib import Path

RUN_MS = 100
"""All runs are equally long, so that a node's own estimate of its queue is right."""


def ask(router: Router, number: int, ms: int) -> str:
    inputs = {"id": np.array([number], np.int64), "ms": np.array([ms], np.int64)}
    with router.infer("slow", inputs, timeout_s=30.0) as reply:
        return reply.trace.worker


def warmed(router: Router) -> set[str]:
    """Asks more at once than one node would be given; gives who answered."""
    with ThreadPoolExecutor(4) as pool:
        return set(pool.map(ask, [router] * 12, range(12), [RUN_MS] * 12))


def test_a_router_sees_what_others_sent_before_any_answer_tells_it(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        for name in ("busy", "idle"):
            nodes.start(name)
        nodes.wait_ready("busy", "idle")
        alone = tmp_path / "alone"
        alone.mkdir()
        for file in (tmp_path / "registry").iterdir():
            if "busy" in file.name:
                os.link(file, alone / file.name)  # the node keeps it alive by its time stamp
        with Router.connect(nodes.registry) as router, Router.connect(f"dir:{alone}") as other:
            assert warmed(router) == {"busy", "idle"}
            threads = [threading.Thread(target=ask, args=(other, 1000 + number, RUN_MS)) for number in range(12)]
            for thread in threads:
                thread.start()
            time.sleep(0.15)  # long enough for the page, far shorter than the queue of more than a second
            workers = [ask(router, 100 + number, RUN_MS) for number in range(4)]
            for thread in threads:
                thread.join()
            assert workers == ["idle"] * 4
            statistics = router.statistics()
            assert statistics.pages_read > 0
        del router, other, threads
        settle()


@pytest.mark.long  # the queue that it looks at takes seconds
def test_over_rpc_pages_are_read_beside_requests_for_those_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "READ_SHARE_MAX", 1.0)  # a busy machine makes a call cost more than a twentieth of a run
    run_ms, over = 3 * RUN_MS, threading.Event()
    with Nodes(tmp_path) as nodes:
        for name in ("busy", "idle"):
            nodes.start(name, "rpc")
        nodes.wait_ready("busy", "idle")
        alone = tmp_path / "alone"
        alone.mkdir()
        for file in (tmp_path / "registry").iterdir():
            if "busy" in file.name:
                os.link(file, alone / file.name)  # the node keeps it alive by its time stamp
        with Router.connect(nodes.registry) as router, Router.connect(f"dir:{alone}") as other:

            def keep_busy(number: int) -> None:
                while not over.is_set():
                    ask(other, number, run_ms)  # noqa: F821 - it is deleted at the end

            threads = [threading.Thread(target=keep_busy, args=(1000 + number,)) for number in range(24)]
            for thread in threads:
                thread.start()
            try:
                end_s = time.monotonic() + 30.0
                while other.statistics().active < len(threads):
                    assert time.monotonic() < end_s, "all of them have sent"
                    time.sleep(0.02)
                time.sleep(1.0)  # what was sent is there, and in the page
                # Whoever knows neither may wait at the busy one; the reads beside that tell those that follow.
                for number in range(20):
                    ask(router, number, run_ms)
                    if number and router.statistics().pages_read >= 4:
                        break
                assert router.statistics().pages_read >= 4
                workers = [ask(router, 100 + number, run_ms) for number in range(4)]
                assert workers == ["idle"] * 4, router.statistics()
            finally:
                over.set()
                for thread in threads:
                    thread.join()
        del router, other, threads, keep_busy
        settle()
