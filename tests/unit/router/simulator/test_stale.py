"""Our router where fresh reads are cut off: what it knows is 100 ms or a second old, and its own dispatches count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from router.policies.priced import Priced
from router.policies.table import BY_NAME, Entry
from router.simulator.compare import simulate
from router.simulator.measure import figures
from router.simulator.workload import W_GPU

if TYPE_CHECKING:
    from router.policies.base import Report

WORLD = replace(W_GPU, load=0.7, requests=8000, warm_up=2000)


class Told(Priced):
    """Reads nothing; it is told of every worker now and then."""

    def probed(self, report: Report, now: float) -> None:
        self._now = now
        self._tell(report)


@pytest.mark.parametrize(("age_s", "most_ms"), [(0.1, 185.0), (1.0, 650.0)])
def test_old_reports_are_better_than_none_and_never_a_herd(
    age_s: float, most_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Well below the shortest queue of a snapshot with own dispatches added (440 ms), and two at random by own counts
    (1353 ms). Where own dispatches do not count it is 203 and 1058 ms in place of 162 and 433."""
    told = Entry("told", "", lambda setting, _: Told(setting, reads=0, tied=False), age_s)
    monkeypatch.setitem(BY_NAME, "told", told)
    found = figures(simulate(WORLD, "told", 1))
    assert found.p99_ms <= most_ms
    assert found.messages == 0.0
