"""Bad requests and broken models: each gets its typed error, and the next good request on the same router works.

The rows are in `tests/integration/bad_rows.py`, the ways to ask in `tests/integration/bad_ways.py`. One node serves
them all, so a row that harmed it would fail the ones behind it.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import Fate, ModelBroken, OverspillError, QueueFull, ResourceExhausted, UnknownModel
from fabric.transport import WireName
from tests.integration.bad_models import BROKEN, write_broken
from tests.integration.bad_node import NodeProcess, copy_models, wait_until
from tests.integration.bad_rows import ROWS, X
from tests.integration.bad_ways import NAMES, ChannelWay, Ways, check_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.bad_rows import Row
    from tests.integration.bad_ways import Way

pytestmark = pytest.mark.leaks("routers and channels are shared by all rows and open sockets as they need them")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[NodeProcess]:
    models = copy_models(folder / "models")
    write_broken(models)
    with NodeProcess(folder, f"dir:{folder / 'registry'}", models) as started:
        started.wait_ready()
        yield started


@pytest.fixture(scope="module")
def ways(node: NodeProcess) -> Iterator[Ways]:
    made = Ways(node.registry)
    yield made
    made.close()


def works(way: Way) -> None:
    """A good request is answered."""
    assert np.array_equal(way.infer("double", {"x": X})["y"], 2 * X)


def refused(way: Way, row: Row) -> OverspillError:
    """The error of a row."""
    with pytest.raises(OverspillError) as caught:
        way.infer(row.model, row.inputs, row.timeout_s, row.priority)
    return caught.value


_PAIRS = [(name, row) for row in ROWS for name in NAMES if name.partition("-")[0] in row.kinds]


@pytest.mark.parametrize(("name", "row"), _PAIRS, ids=[f"{row.name}-{name}".replace(" ", "_") for name, row in _PAIRS])
def test_each_bad_request_is_told_and_the_next_one_works(ways: Ways, node: NodeProcess, name: str, row: Row) -> None:
    way = ways[name]
    executors = node.executors()
    error = refused(way, row)
    assert type(error) is row.error, repr(error)
    assert error.fate is row.fate
    check_sentence(error, *row.words, quotes_model=row.quotes_model)
    works(way)
    assert node.executors() == executors


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", BROKEN)
def test_each_broken_model_is_refused_with_its_reason(ways: Ways, name: str, model: str) -> None:
    way = ways[name]
    with pytest.raises(OverspillError) as caught:
        way.infer(model, {"x": X})
    # A channel asks the one node, a router speaks for all of them.
    assert type(caught.value) is (ModelBroken if name.startswith("channel") else UnknownModel)
    assert caught.value.fate is Fate.NEVER_RAN
    check_sentence(caught.value, model, *BROKEN[model], quotes_model=True)
    works(way)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_queue_refuses_and_the_router_waits_no_longer_than_it_is_told(ways: Ways, name: str) -> None:
    way = ways[name]
    outcomes: list[object] = []

    def ask() -> None:
        try:
            outcomes.append(way.infer("narrow", {"ms": np.array([1000])}, 20.0))
        except OverspillError as error:
            outcomes.append(error)

    # A channel of its own for each, because one blocking channel carries several calls from several threads.
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    with pytest.raises(QueueFull) as caught:
        way.infer("narrow", {"ms": np.array([0])}, 0.2)
    assert caught.value.fate is Fate.NEVER_RAN
    check_sentence(caught.value, "1 requests wait", "try another node")
    for thread in threads:
        thread.join(30)
    assert len(outcomes) == 2
    assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
    works(way)


def test_a_model_that_keeps_its_inputs_harms_no_later_caller(node: NodeProcess) -> None:
    executors = node.executors()
    for wire in (WireName.LOCAL, WireName.RPC):
        for _ in range(3):
            way = ChannelWay(node.registry, wire)
            assert way.infer("leak", {"x": X})["kept"][0] >= 1
            way.close()
        way = ChannelWay(node.registry, wire)
        works(way)
        way.close()
    assert node.executors() == executors


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """Ways to a node whose arenas have 4 MiB."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "node.toml").write_text(f"arena_bytes_max = {4 << 20}\n")
    models = copy_models(folder / "models", "double", "big")
    with NodeProcess(folder, f"dir:{folder / 'registry'}", models, "--config", str(folder / "node.toml")) as node:
        node.wait_ready()
        ways = Ways(node.registry)
        yield ways
        ways.close()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_the_arena_cannot_hold_are_refused(small: Ways, name: str) -> None:
    way = small[name]
    with pytest.raises(ResourceExhausted) as caught:
        way.infer("double", {"x": np.ones(2 << 20, np.float32)})
    assert caught.value.fate is Fate.NEVER_RAN
    check_sentence(caught.value, "arena")
    works(way)


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_that_the_arena_cannot_hold_says_that_it_ran(small: Ways, name: str) -> None:
    way = small[name]
    with pytest.raises(ResourceExhausted) as caught:
        way.infer("big", {"n": np.array([8 << 20])})
    assert caught.value.fate is Fate.RAN
    check_sentence(caught.value, "reply")
    works(way)


def test_the_node_said_each_broken_model_once(node: NodeProcess) -> None:
    for model, words in BROKEN.items():
        assert wait_until(lambda model=model: f"model {model} is refused" in node.log), model
        lines = [line for line in node.log.splitlines() if f"model {model} is refused" in line]
        assert len(lines) == 1, lines
        assert words[0] in lines[0]


def test_every_traceback_of_the_log_is_a_models_own(node: NodeProcess) -> None:
    lines = node.log.splitlines()
    above = [lines[number - 1] for number, line in enumerate(lines) if line.startswith("Traceback")]
    assert "model 'raises_when_made' failed to load" in above
    assert any(re.fullmatch(r"model 'raises' failed in request [0-9a-f]+/\d+", line) for line in above), above
    assert [line for line in above if not line.startswith("model '") and line] == []
