"""Copies of late requests over real nodes: whichever of the two still waits when the other is answered never runs.

The nodes wait instead of computing, and each writes down what it begins. The fast one is on this host (local wire), the
slow one is reached over rpc. What a test wants to see needs a certain order of events, which a busy machine may upset:
a try in which it did is made again, and what it did see of never running twice holds in each.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from router import Router, RouterConfig
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from router import Reply

    Others = dict[str, Router]
    """Routers that know one of the nodes only, by its name."""

RUN_MS, LONG_MS = 60, 900
SLOWER = 3
"""Times as long as on the fast node a run takes on the slow one."""
TRIES = 6
_WAITING = """
import os, time
class Model:
    def __init__(self, config):
        self.slower, self.notes = int(os.environ["OVERSPILL_TEST_SLOWER"]), os.environ["OVERSPILL_TEST_NOTES"]
    def execute(self, inputs, outputs):
        with open(self.notes, "ab", 0) as notes:
            notes.write(b"%d\\n" % int(inputs["id"][0]))
        time.sleep(int(inputs["ms"][0]) * self.slower / 1000)
        outputs["id"] = inputs["id"]
"""
_ONE = "data_type: TYPE_INT64 dims: [ 1 ]"
_CONFIG = f"""name: "waiting" backend: "python"
input [ {{ name: "id" {_ONE} }}, {{ name: "ms" {_ONE} }} ] output [ {{ name: "id" {_ONE} }} ]
parameters {{ key: "idempotent" value {{ string_value: "true" }} }}
"""


class Pair:
    """The two nodes, and a router that knows how fast both are."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes, self.folder, self._last = nodes, folder, 0

    def number(self) -> int:
        """An id that no request had yet."""
        self._last += 1
        return self._last

    def begun(self, node: str, number: int) -> int:
        """How often the node began this id."""
        path = self.folder / f"{node}.notes"
        return path.read_text().split().count(str(number)) if path.exists() else 0

    def wait_begun(self, node: str, number: int, answered: Callable[[], bool]) -> bool:
        """Waits until the node begins it; False where it was answered without that."""
        end_s = time.monotonic() + 30.0
        while not self.begun(node, number):
            if answered():
                return bool(self.begun(node, number))
            assert time.monotonic() < end_s
            time.sleep(0.002)
        return True

    def only(self, node: str) -> str:
        """A registry that lists one of them."""
        folder = self.folder / f"only-{node}"
        if not folder.exists():
            folder.mkdir()
            for file in (self.nodes.folder / "registry").iterdir():
                if node in file.name:
                    os.link(file, folder / file.name)  # the node keeps it alive by its time stamp
        return f"dir:{folder}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("nodes")
    version = folder / "waiting-models" / "waiting" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_WAITING)
    with Nodes(folder) as nodes:
        nodes.models = version.parent.parent
        for name, wires, slower in (("fast", "local,rpc", 1), ("slow", "rpc", SLOWER)):
            notes = {"OVERSPILL_TEST_NOTES": str(folder / f"{name}.notes"), "OVERSPILL_TEST_SLOWER": str(slower)}
            nodes.start(name, wires, environment=notes)
        nodes.wait_ready("fast", "slow")
        yield Pair(nodes, folder)


def ask(router: Router, number: int, ms: int) -> Reply:
    return router.infer("waiting", {"id": np.array([number]), "ms": np.array([ms])}, timeout_s=30.0)


def warm(pair: Pair, router: Router, pool: ThreadPoolExecutor) -> None:
    """Until both have run it for this router a few times."""
    seen = {"fast": 0, "slow": 0}
    while min(seen.values()) < 2:
        for reply in [pool.submit(ask, router, pair.number(), RUN_MS) for _ in range(4)]:
            seen[reply.result().trace.worker] += 1


def an_original_that_waits(pair: Pair, router: Router, others: Others, pool: ThreadPoolExecutor) -> bool | None:
    """The fast node has begun something long of another router's when a request is sent there; its copy is answered
    first, by the slow node. None where it came otherwise, else whether the request ran once, at the slow node."""
    long, number = pair.number(), pair.number()
    blocks = pool.submit(ask, others["fast"], long, LONG_MS)
    if not pair.wait_begun("fast", long, blocks.done):
        return None
    copies = router.statistics().hedges
    worker = ask(router, number, RUN_MS).trace.worker
    seen = not blocks.done() and worker == "slow" and router.statistics().hedges > copies
    blocks.result()
    ask(others["fast"], pair.number(), 1)  # whatever waited there before has begun by now
    return (pair.begun("fast", number), pair.begun("slow", number)) == (0, 1) if seen else None


def a_copy_that_waits(pair: Pair, router: Router, others: Others, pool: ThreadPoolExecutor) -> bool | None:
    """The slow node runs something long of another router's; a request takes longer than usual at the fast one, and is
    answered before its copy was begun."""
    long, number = pair.number(), pair.number()
    blocks = pool.submit(ask, others["slow"], long, LONG_MS * 2 // SLOWER)
    if not pair.wait_begun("slow", long, blocks.done):
        return None
    time.sleep(SLOWER * RUN_MS / 1000)  # the slow node takes it to be nearly done by now
    copies = router.statistics().hedges
    worker = ask(router, number, LONG_MS).trace.worker
    seen = not blocks.done() and worker == "fast" and router.statistics().hedges > copies
    blocks.result()
    ask(others["slow"], pair.number(), 1)
    return (pair.begun("fast", number), pair.begun("slow", number)) == (1, 0) if seen else None


@pytest.mark.parametrize("loses", [an_original_that_waits, a_copy_that_waits], ids=["local", "rpc"])
def test_the_one_that_loses_is_cancelled_before_it_begins(
    pair: Pair, loses: Callable[[Pair, Router, Others, ThreadPoolExecutor], bool | None]
) -> None:
    found: bool | None = None
    for seed in range(TRIES):
        config = RouterConfig(seed=seed, hedge_ratio=1.0)  # a new one each time: it has learned from the long ones
        with ExitStack() as stack:
            router = stack.enter_context(Router.connect(pair.nodes.registry, config=config))
            others = {name: stack.enter_context(Router.connect(pair.only(name))) for name in ("fast", "slow")}
            pool = stack.enter_context(ThreadPoolExecutor(4))
            warm(pair, router, pool)
            found = loses(pair, router, others, pool)
            assert router.statistics().active == 0
        if found is not None:
            break
    del router, others
    settle()
    assert found is not None, "no try went as it should"
    assert found, "the loser ran"
