"""A router in a process of its own that asks a node all the time, and tells over which wire it is answered.

`python -m tests.softroce.asker ADDRESS` prints `wire NAME` whenever that changes, `why TROUBLE` whenever that does, and
`all N` when it has asked for each size N times; when its input ends, `over ANSWERS WRONG`. Tests change what is around
it meanwhile. Read `tests/softroce/test_memlock.py` and `test_releases.py` next.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

import numpy as np

from overspill import Router, errors
from tests.softroce.cuts import CALL_S, CONFIG

SIZES = (1, 100, 200, 300, 450, 20_000, 300_000)
"""Of eight bytes each: bodies on both sides of 1, 2 and 4 KiB, and one that needs a larger region."""
PAUSE_S = 0.02


def main() -> None:
    """Until its input ends."""
    over = threading.Event()
    threading.Thread(target=_until_told, args=(over,), daemon=True).start()
    answers, wrong = 0, 0
    last = ["", ""]
    with Router.connect(f"static:{sys.argv[1]}", config=CONFIG, timeout_s=CALL_S) as router:
        base = time.monotonic_ns()
        for number in itertools.count():
            if over.is_set():
                break
            size = SIZES[number % len(SIZES)]
            base += size
            x = np.arange(base, base + size, dtype=np.int64)
            try:
                with router.infer("counted", {"x": x}, timeout_s=CALL_S) as reply:
                    y = reply["y"]
                    wrong += int(y[0] != 1 or not np.array_equal(y[1:], 2 * x[1:]))
                    now = [f"wire {reply.trace.wire}", f"why {' '.join(router.statistics().wire_troubles)}"]
            except errors.OverspillError as error:
                wrong += 1
                now = ["wire none", f"why {type(error).__name__}: {error}"]
            answers += 1
            for text in (new for new, old in zip(now, last, strict=True) if new != old):
                say(text)
            last = now
            if answers % len(SIZES) == 0:
                say(f"all {answers // len(SIZES)}")
            time.sleep(PAUSE_S)
    say(f"over {answers} {wrong}")


def _until_told(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def say(text: str) -> None:
    """One line for the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
