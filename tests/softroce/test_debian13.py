"""Debian 13 in the guests: kernel 6.12, pyverbs 56 and Python 3.13 under the tests that were written on Debian 12.

The contract suite runs there too: `debian13` in `tests/softroce/test_contract.py`. Faults between two such guests are
in `tests/softroce/test_debian13_faults.py`.
"""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import pytest

from tests.softroce.test_cycles import test_connections_that_come_and_go_leave_nothing
from tests.softroce.test_hostile import *  # noqa: F403
from tests.softroce.test_memory import *  # noqa: F403
from tests.softroce.test_pairs import *  # noqa: F403
from tests.softroce.worlds import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["test_connections_that_come_and_go_leave_nothing"]
pytestmark: list[pytest.MarkDecorator] = [pytest.mark.guests(1, "trixie"), pytest.mark.long]  # type: ignore[no-redef]


@pytest.fixture(autouse=True)  # type: ignore[no-redef]
def settled(no_leaks: None) -> Iterator[None]:
    """Each of those files has one of this name, and here the last would be that of all: not all wait for the fences."""
    yield
    settle()


def test_it_is_another_kernel_and_another_python() -> None:
    assert platform.release().startswith("6.12.")
    assert sys.version_info[:2] == (3, 13)
