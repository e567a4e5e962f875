"""A steady load, run inside the client container: many small requests, each checked, each failure told.

It is handed to the image's own Python as text, so it uses the public face only. Each line on its input names a phase
that begins; the phase that ended is told as one line of JSON. The end of its input ends it. Two threads send idempotent
requests, three send numbers that may run once only. Read `tests/integration/test_docker.py` next.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np

from overspill import Router, errors

TIMEOUT_S = 10.0
PAUSE_S = 0.02


class Counts:  # mutable: one phase
    """What one phase saw."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = {"etr_mini": 0, "ledger": 0}
        self.workers: dict[str, int] = {}
        self.retried = 0
        self.failed: list[str] = []
        self.unknown = 0
        self.slowest_s = 0.0

    def line(self) -> str:
        return json.dumps(vars(self))


class Load:  # mutable: three threads and the present phase
    """Sends until told to stop."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.lock = threading.Lock()
        self.counts = Counts("start")
        self.over = threading.Event()
        self.expected: bytes | None = None

    def one(self, model: str, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        began = time.monotonic()
        worker, attempts, failed, unknown, output = "", 1, "", 0, None
        try:
            with self.router.infer(model, inputs, timeout_s=TIMEOUT_S) as reply:
                (name,) = reply
                output = np.array(reply[name])
                worker, attempts = reply.trace.worker, reply.trace.attempts
        except errors.OverspillError as error:
            if model == "ledger" and error.fate.name == "UNKNOWN":
                unknown = 1
            failed = f"{model}: {error.fate.name}: {error}"
        with self.lock:
            counts = self.counts
            counts.sent[model] += 1
            counts.workers[worker] = counts.workers.get(worker, 0) + 1
            counts.retried += attempts > 1
            counts.unknown += unknown
            counts.slowest_s = max(counts.slowest_s, time.monotonic() - began)
            if failed:
                counts.failed.append(failed[:300])
        return output

    def idempotent(self) -> None:
        inputs = {"ids": np.zeros((64, 2), np.int32), "dense": np.zeros((64, 29), np.float32)}
        while not self.over.wait(PAUSE_S):
            output = self.one("etr_mini", inputs)
            if output is not None:
                with self.lock:
                    self.expected = self.expected or output.tobytes()
                    if output.tobytes() != self.expected:
                        self.counts.failed.append("etr_mini: other bytes than before")

    def once(self, number: int) -> None:
        while not self.over.wait(PAUSE_S):
            number += 1
            output = self.one("ledger", {"number": np.array([number], np.int64)})
            if output is not None and output.tolist() != [number]:
                with self.lock:
                    self.counts.failed.append("ledger: another number than was sent")

    def next_phase(self, name: str) -> Counts:
        with self.lock:
            ended, self.counts = self.counts, Counts(name)
        return ended


def main(registry: str) -> None:
    with Router.connect(registry) as router:
        load = Load(router)
        threads = [threading.Thread(target=load.idempotent) for _ in range(2)]
        # Numbers far from each other, and from those of a demo's round.
        threads += [threading.Thread(target=load.once, args=(1_000_000_000 * first,)) for first in (1, 2, 3)]
        for thread in threads:
            thread.start()
        sys.stdout.write("sending\n")
        sys.stdout.flush()
        for line in sys.stdin:
            sys.stdout.write(load.next_phase(line.strip()).line() + "\n")
            sys.stdout.flush()
        load.over.set()
        for thread in threads:
            thread.join(TIMEOUT_S + 5.0)
        sys.stdout.write(load.next_phase("").line() + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
