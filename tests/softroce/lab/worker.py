"""pytest inside a guest: collects once, then runs one test after another as the host asks, and sends each report back.

Started by the host as a module through the guest's agent. What tests print goes to standard error, which the host keeps
for the case that this process dies; the reports go the other way. Read `tests/softroce/lab/remote.py` for the host.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.softroce.lab import agent, here


class Worker:
    """The plugin that takes the place of pytest's own loop over the tests."""

    def __init__(self, host: here.Host) -> None:
        self._host = host
        self._config: pytest.Config | None = None
        self._items: dict[str, pytest.Item] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._host.tell(broken=str(report.longrepr))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items = {item.nodeid: item for item in session.items}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._host.tell(collected=list(self._items))
        while (order := self._host.hear()) is not None:
            item = self._items[order["run"]]
            following = self._items.get(order["next"] or "")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._host.tell(done=item.nodeid)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._config is not None
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._host.tell(report=json.loads(json.dumps(data, default=str)))


def main(words: list[str]) -> int:
    """Serves until its input ends."""
    orders, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    host = here.Host(orders, reports)
    here.attach(host)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # looking for plugins would take a second under emulation
    options = ["-p", "pytest_timeout", "-p", "no:logging", "-p", "no:cacheprovider", "--capture=fd", "--assert=rewrite"]
    if agent.FIRST in os.environ:  # or pytest would put the checkout before the compiled package
        options += ["-o", "pythonpath=", "--import-mode=append"]
    return int(pytest.main([*options, *words], plugins=[Worker(host)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
