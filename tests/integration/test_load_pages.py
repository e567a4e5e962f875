"""A node's load page, read over its local and its rpc wire: both say what the node has in hand, and whose it is."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.deadline import Deadline
from fabric.errors import NodeLost, Unavailable
from fabric.link.link import Link
from fabric.link.loop import LoopThread
from fabric.link.wires import LinkConfig
from fabric.load_page import model_key
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Call
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fabric.load_page import Reading

CLIENT = 77
WAIT_S = 20.0
RUN_MS = 1500


def after(timeout_s: float = WAIT_S) -> Deadline:
    return Deadline.after(timeout_s, time.monotonic())


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path) as started:
        started.start("n", devices="cpu:1")
        started.wait_ready("n")
        yield started


def read_until(link: Link, accepted: int, *, idle: bool) -> Reading:
    end_s = time.monotonic() + WAIT_S
    while True:
        reading = link.read_page(after())
        load = reading.load
        if load.accepted == accepted and (load.outstanding_us == 0) is idle:
            return reading
        assert time.monotonic() < end_s, reading
        time.sleep(0.01)


@pytest.mark.parametrize("local", [True, False])
def test_a_page_tells_what_the_node_has_in_hand(nodes: Nodes, local: bool) -> None:
    (instance,) = open_registry(nodes.registry).read()
    with closing(LoopThread()) as loop:
        link = Link.connect(instance, CLIENT, LinkConfig(local=local), loop)
        first = read_until(link, 0, idle=True)
        assert first.load.executors == 1
        assert model_key("slow") in {model.key for model in first.models}
        body = small_body(tensors_of({"id": np.array([1]), "ms": np.array([RUN_MS])}))
        running = [
            threading.Thread(target=link.call, args=(Call(RequestId(CLIENT, number), "slow", body), after()))
            for number in (1, 2)
        ]
        for thread in running:
            thread.start()
        busy = read_until(link, 2, idle=False)
        assert busy.load.sequence > first.load.sequence
        for thread in running:
            thread.join()
        slow = {model.key: model for model in read_until(link, 2, idle=True).models}[model_key("slow")]
        assert slow.queued == 0
        assert slow.unit_us >= RUN_MS * 1000 / 4, "it was measured"
        link.close(after(2.0))
        with pytest.raises(NodeLost):
            link.read_page(after())
    del link
    settle()


def test_a_page_of_a_node_that_was_killed_is_no_page_of_the_next(nodes: Nodes) -> None:
    """The file of the old life is replaced, never written by two."""
    (instance,) = open_registry(nodes.registry).read()
    with closing(LoopThread()) as loop:
        link = Link.connect(instance, CLIENT, LinkConfig(rpc=False), loop)
        link.read_page(after())
        nodes.kill("n")
        nodes.start("n", devices="cpu:1")
        nodes.wait_ready("n")
        fresh = next(one for one in open_registry(nodes.registry).read() if one.node_epoch != instance.node_epoch)
        again = Link.connect(fresh, CLIENT, LinkConfig(rpc=False), loop)
        assert again.read_page(after()).load.executors == 1
        # A page is no sign of life: the old one is read until the link knows that the node is gone.
        with pytest.raises((NodeLost, Unavailable)):
            read_until(link, 1, idle=True)
        again.close(after(2.0))
        link.close(after(2.0))
    del link, again
    settle()
