"""One of many router processes: sends requests at random instants for a while, and tells what it sent where and when.

    python -m tests.integration.herd_router REGISTRY SEED RATE_HZ SECONDS

It says `ready` in a line; each line that it reads is an instant of the monotonic clock at which a round begins. After a
round it prints one line of JSON: [[instant, worker, milliseconds of work], ...].
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np

from router import Router, RouterConfig

THREADS = 16
MS_MIN, MS_MAX = 15, 45


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    registry, seed, rate_hz, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    dice = Random(seed)
    with (
        Router.connect(registry, config=RouterConfig(seed=seed), timeout_s=60.0) as router,
        ThreadPoolExecutor(THREADS) as pool,
    ):

        def send(number: int, ms: int) -> tuple[float, str, int]:
            inputs = {"id": np.array([number], np.int64), "ms": np.array([ms], np.int64)}
            sent_s = time.monotonic()
            with router.infer("slow", inputs, timeout_s=60.0) as reply:
                return sent_s, reply.trace.worker, ms

        tell("ready")
        for line in sys.stdin:
            at_s = float(line)
            end_s, out = at_s + seconds, []
            while (at_s := at_s + dice.expovariate(rate_hz)) < end_s:
                time.sleep(max(0.0, at_s - time.monotonic()))
                out.append(pool.submit(send, dice.getrandbits(40), dice.randint(MS_MIN, MS_MAX)))
            tell(json.dumps([each.result() for each in out]))


if __name__ == "__main__":
    main()
