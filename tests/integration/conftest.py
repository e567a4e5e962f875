"""One node with a front door for all tests that leave it as they found it: starting one takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.frontdoors import MESSAGE_BYTES, Front, front_models, running_front

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A node with the models of `front_models`, whose messages are small enough for a test to send a larger one."""
    folder = tmp_path_factory.mktemp("front")
    settings = folder / "node.toml"
    settings.write_text(f"frontdoor_message_bytes_max = {MESSAGE_BYTES}\nfrontdoor_shm_lease_s = 1.0\n")
    with running_front(folder, front_models(folder), "--config", str(settings)) as front:
        yield front
