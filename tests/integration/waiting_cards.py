"""A node on fake cards of unlike speed, whose models wait in place of computing, so that speed is what a test says.

The cards lie in another order for the driver than their UUIDs say, so that whatever took one for the other by its
number would be seen. Each card has a name of its own, by which a model can ask for it. Read
`tests/integration/test_gpu_several.py` next.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.city.generate import apportion, area_shares
from fabric.errors import OverspillError
from fabric.local.control import NodeControl, control_path
from tests.integration.fake_cards import FakeNode

if TYPE_CHECKING:
    from pathlib import Path

    from fabric.control import ExecutorFacts
    from overspill import Router

PLACES = {0: 3, 1: 4, 2: 0, 3: 1, 4: 2}
"""Card by card, the number that the driver gives it."""
SHOWN = "FAKE-2,FAKE-0,FAKE-3,FAKE-1"
"""What stands for CUDA_VISIBLE_DEVICES: the fifth card is somebody else's."""
PAIR = (1, 2)
PATIENCE_S = 60.0
MODEL = """
import json, os, time
from pathlib import Path
import numpy as np
class Model:
    def __init__(self, config):
        self.card = os.environ["CUDA_VISIBLE_DEVICES"]
        self.row_s = json.loads(Path(config.path, "row_s.json").read_text())[self.card]
    def execute(self, inputs, outputs):
        x = inputs["x"]
        time.sleep(len(x) * self.row_s)
        outputs["y"] = 2 * x
        outputs["card"] = np.array([int(self.card[5:])])
"""
CONFIG = """
backend: "python"
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}, {{ name: "card" data_type: TYPE_INT64 dims: [ -1 ] }} ]
parameters {{ key: "idempotent" value {{ string_value: "true" }} }}
parameters {{ key: "requires" value {{ string_value: "card={card}" }} }}
"""


class WaitingNode:
    """Four of five fake cards. `row_s` by model: what a row takes on each of the cards that are to have it, which are
    one, the pair, or all."""

    def __init__(self, folder: Path, row_s: dict[str, dict[int, float]]) -> None:
        for number, place in PLACES.items():
            card = folder / "fake-cards" / f"card-{number}"
            card.mkdir(parents=True)
            (card / "place").write_text(str(place))
            (card / "model").write_text(f"fake GPU no{number}{' of the pair' if number in PAIR else ''}")
            (card / "memory").write_text(str((10 + number) << 30))
        (folder / "fake-cards" / "visible").write_text(SHOWN)
        for model, times in row_s.items():
            version = folder / "models" / model / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(MODEL)
            (version / "row_s.json").write_text(json.dumps({f"FAKE-{card}": each for card, each in times.items()}))
            card_name = {1: f"no{next(iter(times))}", 2: "of the pair"}.get(len(times), "fake GPU")
            (version.parent / "config.pbtxt").write_text(f'name: "{model}"' + CONFIG.format(card=card_name))
        self.fake = FakeNode(folder, devices=f"fake:{len(PLACES)}", extra="quarantine_faults = 0\n")
        self.router = self.fake.router

    def executors(self) -> dict[str, ExecutorFacts]:
        """The executors by the UUID of their card."""
        facts = NodeControl(control_path(str(self.fake.folder / "node.sock"))).executors()
        return {each.card: each for each in facts}

    def close(self) -> None:
        self.fake.close()


def uneven(rows: int, shards: int) -> list[int]:
    """Rows of shards as uneven as a dispatch round's: the largest is eleven times the median, and comes first."""
    return [max(1, int(size)) for size in apportion(rows, area_shares(shards))[::-1]]


def ask(router: Router, model: str, rows: int) -> tuple[int, float, int]:
    """(card, seconds it took, attempts) of a right answer."""
    x = np.arange(rows, dtype=np.float32)
    began_s = time.monotonic()
    with router.infer(model, {"x": x}, timeout_s=PATIENCE_S) as reply:
        assert np.array_equal(reply["y"], 2 * x)
        return int(reply["card"][0]), time.monotonic() - began_s, reply.trace.attempts


def makespan_s(router: Router, lines: list[tuple[str, list[int]]], callers: int) -> float:
    """Seconds until all shards of all lines, (model, rows of each), are answered; each line has its own callers."""
    failures: list[Exception] = []

    def call(model: str, todo: deque[int]) -> None:
        try:
            while True:
                try:
                    rows = todo.popleft()
                except IndexError:
                    return
                ask(router, model, rows)
        except (OverspillError, AssertionError) as error:
            failures.append(error)

    threads = []
    for model, shards in lines:
        todo = deque(shards)
        threads += [threading.Thread(target=call, args=(model, todo)) for _ in range(callers)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_s = time.monotonic() - began_s
    assert not failures, failures[0]
    return taken_s
