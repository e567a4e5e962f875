"""Makes the round of `overspill demo --lab` into one file: what is sent, and the routes that must come out.

Routes are whole numbers, so this machine's single-process answer is the guests' too. Kernels are compiled on the way,
for a processor that has nothing special (`NUMBA_CPU_NAME=generic`), and kept for the guests, where it takes minutes.
Started as a module by `tests/softroce/lab/demo.py`. Read `dispatch.py` next.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan import warm_up
from overspill.demo.work import delivery_inputs

ORDERS, RIDERS, NEAR, AREAS = 400, 1600, 16, 48
"""Of each city, which gives some 6,300 pairs in 47 shards."""


def main(path: Path, seed: int, rounds: int) -> None:
    """Writes the file: arrays by `JOB|inputs|NAME`, `JOB|plan|NAME` and `JOB|etr|NAME`, and `work_s` for each job."""
    warm_up()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    work_s = []
    plans = [CityPlan(1000 * seed + each, ORDERS, RIDERS, NEAR, AREAS) for each in range(rounds)]
    for number, shard in enumerate(shard for plan in plans for shard in city_round(plan).shards()):
        began = time.perf_counter()
        answer = shard.reference().tensors()
        work_s.append(time.perf_counter() - began)
        times = delivery_inputs(shard, answer)
        parts = {
            "inputs": shard.tensors(),
            "plan": answer,
            "etr": {field.name: getattr(times, field.name) for field in fields(times)},
        }
        arrays |= {
            f"{number}|{kind}|{name}": np.asarray(array) for kind, part in parts.items() for name, array in part.items()
        }
    np.savez(path, allow_pickle=False, work_s=np.array(work_s), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
