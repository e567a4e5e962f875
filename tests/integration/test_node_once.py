"""At most once: a model that must not run twice for one id, under callers that retry everything and executors that die.

The audit is what the model itself wrote: a line for each run. Beside it stand every caller's answers: whatever was
answered ran, exactly once, and a session is never lost over an executor's death.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fabric.errors import Fate, NodeLost, OverspillError, ProtocolError
from tests.integration.nodes import OK, Client, rough_models, running_node

if TYPE_CHECKING:
    from pathlib import Path

CALLERS = 6
ATTEMPTS = 4


class Caller(threading.Thread):  # mutable: counts what became of its requests
    """Asks one request after the other, again with the same id when it fails, sometimes over a new session."""

    def __init__(self, path: str, number: int, until_s: float) -> None:
        super().__init__()
        self.answered: set[int] = set()
        self.errors: Counter[tuple[type, Fate]] = Counter()
        self._path, self._number, self._until_s = path, number, until_s
        self._rng = random.Random(number)

    def run(self) -> None:
        client = Client(self._path, 1000 + self._number)
        request = 0
        while time.monotonic() < self._until_s:
            request += 1
            self._ask(client, request)
            if request % 200 == 0:
                client.close()
                client = Client(self._path, 1000 + self._number)
        client.close()

    def _ask(self, client: Client, request: int) -> None:
        word, rng = self._number * 1_000_000 + request, self._rng
        for _ in range(ATTEMPTS):
            timeout_s, reply_bytes = rng.choice([0.002, 0.02, 1.0]), rng.choice([16, 4096])
            try:
                client.send(
                    "ledger", OK, word, number=request, timeout_s=timeout_s, reply_bytes=reply_bytes,
                    ack_no=max(0, request - 3),
                )  # fmt: skip
            except OverspillError as error:
                self.errors[type(error), error.fate] += 1
            else:
                self.answered.add(word)
                return


@pytest.mark.parametrize("seconds", [4.0, pytest.param(120.0, marks=pytest.mark.long)])
def test_no_id_runs_twice_and_no_session_is_lost(tmp_path: Path, seconds: float) -> None:
    rng = random.Random(int(seconds))
    with running_node(tmp_path, rough_models(tmp_path), "--devices", "cpu:2") as node:
        until_s = time.monotonic() + seconds
        callers = [Caller(node.path, number, until_s) for number in range(1, CALLERS + 1)]
        for caller in callers:
            caller.start()
        while time.monotonic() < until_s - 0.5:
            time.sleep(rng.uniform(0.1, 0.6))
            for pid in rng.sample(node.children(), min(1, len(node.children()))):
                with suppress(ProcessLookupError):
                    os.kill(pid, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
        for caller in callers:
            caller.join(60.0)
        runs = Counter(node.ran())
    gc.collect()  # a traceback may hold a session's memory in a cycle
    answered = set[int]().union(*(caller.answered for caller in callers))
    errors = sum((caller.errors for caller in callers), Counter[tuple[type, Fate]]())
    assert answered, errors
    assert [word for word, count in runs.items() if count > 1] == []
    assert answered <= runs.keys()
    assert not {kind for kind, _ in errors} & {NodeLost, ProtocolError}, errors
