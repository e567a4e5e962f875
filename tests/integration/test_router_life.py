"""A router from connect to close over real nodes: every way to use it, end it, and misuse it."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidArgument,
    OverspillError,
    RegistryUnavailable,
    ResourceExhausted,
    RouterClosed,
    RouterUsedAfterFork,
    Unavailable,
    UnknownModel,
)
from router import Router, RouterConfig
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as started:
        started.start("near")
        started.start("far", "rpc")
        started.wait_ready("near", "far")
        yield started


@pytest.fixture
def router(nodes: Nodes) -> Iterator[Router]:
    with Router.connect(nodes.registry) as connected:
        yield connected
    del connected
    settle()


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_request_goes_near_and_its_trace_tells(router: Router) -> None:
    reply = router.infer("echo", {"x": X}, timeout_s=10)
    np.testing.assert_array_equal(reply["y"], X + 1)
    trace = reply.trace
    assert (trace.worker, trace.wire, trace.attempts, trace.candidates) == ("near", "local", 1, 2)
    assert min(trace.queue_ms, trace.compute_ms, trace.transport_ms, trace.price.total_ms) >= 0.0
    assert router.models() == ("echo", "ledger", "lookup", "slow", "strings")


@pytest.mark.parametrize("rows", [0, 1, 4095, 4096, 4097, 300_000])
def test_every_byte_comes_back_at_every_size(router: Router, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    for _ in range(3):
        np.testing.assert_array_equal(router.infer("echo", {"x": x}, timeout_s=10)["y"], x + 1)


def test_far_alone_answers_over_rpc_with_the_same_bytes(nodes: Nodes) -> None:
    from fabric.link.wires import LinkConfig

    config = RouterConfig(link=LinkConfig(local=False))
    with Router.connect(nodes.registry, config=config) as router:
        for rows in (1, 5000, 300_000):
            x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
            reply = router.infer("echo", {"x": x}, timeout_s=10)
            assert reply.trace.wire == "rpc"
            np.testing.assert_array_equal(reply["y"], x + 1)
    del router, reply
    settle()


def test_an_address_that_was_written_down_needs_no_registry(nodes: Nodes) -> None:
    (address,) = (one.rpc for one in open_registry(nodes.registry).read() if one.node_id == "far")
    with Router.connect(f"static:{address}") as router:
        reply = router.infer("echo", {"x": X}, timeout_s=10)
        assert (reply.trace.worker, reply.trace.wire) == (address, "rpc")
        with pytest.raises(UnknownModel):
            router.infer("ecko", {"x": X}, timeout_s=10)
        with pytest.raises(InvalidArgument):
            router.infer("echo", {"x": X[:, :3]}, timeout_s=10)
    del router, reply
    settle()


def test_a_registry_that_goes_away_changes_nothing(nodes: Nodes, tmp_path: Path) -> None:
    copy = tmp_path / "registry"
    shutil.copytree(nodes.registry.removeprefix("dir:"), copy)
    with Router.connect(f"dir:{copy}") as router:
        shutil.rmtree(copy)
        for _ in range(10):
            time.sleep(0.05)
            router.infer("echo", {"x": X}, timeout_s=10)
    del router
    settle()


def test_strings_travel(router: Router) -> None:
    reply = router.infer("strings", {"text": ["a", b"bc", "ü"]}, timeout_s=10)
    assert reply["out"].tolist() == [b"A", b"BC", "ü".encode().upper()]


def test_prepared_inputs_are_sent_as_they_were_written_and_again(router: Router) -> None:
    with router.prepare("echo", rows=50_000) as x:
        for value in (1.0, 2.0):
            x["x"][:] = value
            reply = x.infer(10)
            assert (reply["y"] == value + 1).all()
        view = x["x"]
    with pytest.raises(InvalidArgument, match="given back"):
        x.infer(10)
    assert view[0, 0] == 2.0, "a view keeps its memory"
    with pytest.raises(InvalidArgument, match="give rows"):
        router.prepare("echo")


def test_replies_that_are_held_are_copied_out_past_half_of_the_arena(nodes: Nodes) -> None:
    from fabric.link.wires import LinkConfig

    config = RouterConfig(arena_bytes=1 << 20, link=LinkConfig(rpc=False))
    x = np.arange(24_000, dtype=np.float32).reshape(6000, 4)  # 96 KB: a slot of 128 KiB
    with Router.connect(nodes.registry, config=config) as router:
        kept = [router.infer("echo", {"x": x + n}, timeout_s=10) for n in range(12)]
        assert {reply.trace.wire for reply in kept} == {"local"}
        assert router.statistics().replies_copied_out == 8
        assert router.statistics().replies_held_bytes == 1 << 19
        for n, reply in enumerate(kept):
            np.testing.assert_array_equal(reply["y"], x + n + 1)
        with pytest.raises(ResourceExhausted, match="replies of echo hold 524288 bytes"):
            held = [router.prepare("echo", rows=6000) for _ in range(8)]  # noqa: F841
        del reply, kept
        assert router.statistics().replies_held_bytes == 0
        router.infer("echo", {"x": x}, timeout_s=10)
    del router
    settle()


@pytest.mark.parametrize(
    ("model", "inputs", "timeout_s", "error", "sentence"),
    [
        ("ecko", {"x": X}, 1.0, UnknownModel, "did you mean echo"),
        ("echo", {"z": X}, 1.0, InvalidArgument, "no input 'z'; give x"),
        ("echo", {"x": X.astype(np.float64)}, 1.0, InvalidArgument, "is FP64; give FP32"),
        ("echo", {"x": X[:, :3]}, 1.0, InvalidArgument, r"shape \[2, 3\]; give \[-1, 4\]"),
        ("echo", {"x": X}, -1.0, InvalidArgument, "timeout_s is -1.0"),
        ("echo", {"x": X}, float("nan"), InvalidArgument, "timeout_s is nan"),
        ("echo", {}, 1.0, OverspillError, "x"),
        ("slow", {"id": np.array([0]), "ms": np.array([400])}, 0.1, DeadlineExceeded, "time|deadline"),
    ],
)
def test_bad_requests_get_their_error_and_the_next_good_one_works(
    router: Router, model: str, inputs: dict[str, object], timeout_s: float, error: type[OverspillError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        router.infer(model, inputs, timeout_s=timeout_s)
    router.infer("echo", {"x": X}, timeout_s=10)
    assert router.statistics().active == 0


def test_no_node_and_no_registry(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="registry"):
        Router.connect("nowhere")
    with pytest.raises(RegistryUnavailable):
        Router.connect(f"dir:{tmp_path}/missing/too")
    (tmp_path / "empty").mkdir()
    with Router.connect(f"dir:{tmp_path}/empty") as router, pytest.raises(Unavailable, match="no node is registered"):
        router.infer("echo", {"x": X}, timeout_s=1)
    del router
    settle()


def test_many_threads_share_one_router(router: Router) -> None:
    def ask(number: int) -> bool:
        x = np.full((1 + number % 7, 4), number, np.float32)
        return bool((router.infer("echo", {"x": x}, timeout_s=20)["y"] == number + 1).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(800)))
    assert router.statistics().active == 0


def test_a_closed_router_says_so_and_closing_twice_is_fine(nodes: Nodes) -> None:
    router = Router.connect(nodes.registry)
    router.close()
    router.close()
    with pytest.raises(RouterClosed):
        router.infer("echo", {"x": X}, timeout_s=1)
    with pytest.raises(RouterClosed):
        router.models()
    del router
    settle()


def test_close_lets_running_requests_end(nodes: Nodes) -> None:
    router = Router.connect(nodes.registry)
    inputs = {"id": np.array([1]), "ms": np.array([500])}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(router.infer, "slow", inputs, timeout_s=10) for _ in range(2)]
        while router.statistics().active < 2:
            time.sleep(0.005)
        router.close()
        assert all(one.done() for one in asked)
        assert [one.result()["pid"].size for one in asked] == [1, 1]
    del router, asked
    settle()


def test_close_ends_requests_that_run_too_long(nodes: Nodes) -> None:
    router = Router.connect(nodes.registry, config=RouterConfig(close_timeout_s=0.2))
    inputs = {"id": np.array([1]), "ms": np.array([3000])}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(router.infer, "slow", inputs, timeout_s=10)
        while not router.statistics().active:
            time.sleep(0.005)
        began = time.monotonic()
        router.close()
        with pytest.raises(OverspillError):
            asked.result()
        assert time.monotonic() - began < 2.5
    del router, asked
    settle()


def test_a_forgotten_router_ends_its_thread(nodes: Nodes) -> None:
    before = threading.active_count()
    router = Router.connect(nodes.registry)
    router.infer("echo", {"x": X}, timeout_s=10)
    assert threading.active_count() > before
    del router
    gc.collect()
    end_s = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < end_s, threading.enumerate()
        time.sleep(0.01)
    settle()


def test_a_child_of_a_fork_is_told_and_may_connect_its_own(router: Router, nodes: Nodes) -> None:
    router.infer("echo", {"x": X}, timeout_s=10)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                router.infer("echo", {"x": X}, timeout_s=1)
            except RouterUsedAfterFork:
                router.close()
                own = Router.connect(nodes.registry)
                code = 0 if own.infer("echo", {"x": X}, timeout_s=10)["y"].shape == (2, 4) else 2
                own.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    router.infer("echo", {"x": X}, timeout_s=10)
