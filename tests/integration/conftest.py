"""Nodes that tests share or make: one with a front door for all that leave it as they found it, and fake cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.fake_cards import FakeNode
    from tests.integration.frontdoors import Front


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A node with the models of `front_models`, whose messages are small enough for a test to send a larger one."""
    # Here, because it brings the stock client along, which no other test needs.
    from tests.integration.frontdoors import MESSAGE_BYTES, front_models, running_front

    folder = tmp_path_factory.mktemp("front")
    settings = folder / "node.toml"
    settings.write_text(f"frontdoor_message_bytes_max = {MESSAGE_BYTES}\nfrontdoor_shm_lease_s = 1.0\n")
    with running_front(folder, front_models(folder), "--config", str(settings)) as front:
        yield front


@pytest.fixture
def fake_node(tmp_path: Path) -> Iterator[Callable[..., FakeNode]]:
    """Makes nodes on fake cards in the test's folder, which are closed after it."""
    from tests.integration.fake_cards import FakeNode

    made: list[FakeNode] = []

    def one(*faults: str, **settings: str) -> FakeNode:
        made.append(FakeNode(tmp_path, *faults, **settings))
        return made[-1]

    yield one
    for node in made:
        node.close()
