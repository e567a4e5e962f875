"""The end of an executor's process whose node is gone: quiet, however its socket tells of it."""

from __future__ import annotations

import sys

import pytest

from workers import executor
from workers.child import Settings


@pytest.mark.parametrize("end", [BrokenPipeError, ConnectionResetError])
def test_a_node_that_did_not_read_our_last_words_is_gone_as_any_other(
    monkeypatch: pytest.MonkeyPatch, end: type[OSError]
) -> None:
    class Ending:
        def __init__(self, settings: object) -> None:
            pass

        def serve(self) -> None:
            raise end

    for name in ("end_with", "one_arena"):
        monkeypatch.setattr(executor, name, lambda *_: None)
    monkeypatch.setattr(executor, "Executor", Ending)
    monkeypatch.setattr(Settings, "of", lambda words: type("Given", (), {"parent_pid": 1}))
    monkeypatch.setattr(sys, "argv", ["executor"])
    executor.main()
