"""Every fault of `tests/softroce/test_faults.py`, between two guests of Debian 13.

Its kernel tells some of them in other words; the wire goes by the death of a pair, not by the word.
"""

from __future__ import annotations

import pytest

from tests.softroce.test_faults import *  # noqa: F403

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.guests(2, "trixie"), pytest.mark.long]  # type: ignore[no-redef]
