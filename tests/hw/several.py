"""Several GPUs in one node, measured from its callers' side: a round's planning on one card, on some, on all of them.

    python -m tests.hw.several --fake 2 --orders 60 --rounds 1       # tries this file where there is no GPU

For each number of cards a node of its own, and for each card one more, to which a round is dealt out shard by shard.
Every answer is held against the planner of this process. It prints one JSON object. On GPUs it is run by
`tests/hw/test_gpu_several.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan.gpu.bench import solve_on_cores
from fabric.local.control import NodeControl, control_path
from tests.hw.callers import Callers, Line, check_of, makespan_s
from tests.integration.bad_node import NodeProcess

if TYPE_CHECKING:
    from examples.dispatch.city.rounds import Round

MODEL = "route_plan"
MODEL_FOLDER = Path(__file__).parents[2] / "examples" / "dispatch" / "models" / MODEL
TRIES = 3
THREADS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The word of each card for `--devices`, the numbers of cards to measure, how many rounds are planned at the same
    time where throughput is measured, and by how many processes of callers for each card: one brought 230 shards a
    second to an H200, whatever stood behind it."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    rounds: int = 16
    processes: int = 4


class Fleet:  # mutable: owns nodes
    """Nodes that start at the same time."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        (folder / "models").mkdir()
        (folder / "models" / MODEL).symlink_to(MODEL_FOLDER)  # alone: nothing else is to be loaded so many times
        self.nodes: dict[str, NodeProcess] = {}

    def start(self, name: str, words: tuple[str, ...]) -> None:
        """A node on these cards."""
        folder = self._folder / name
        folder.mkdir()
        (folder / "node.toml").write_text(f'runtime_dir = "{folder}"\n')
        devices = f"fake:{len(words)}" if words[0] == "fake" else ",".join(words)
        settings = ("--config", str(folder / "node.toml"))
        registry, models = f"dir:{folder / 'registry'}", self._folder / "models"
        node = NodeProcess(folder, registry, models, *settings, devices=devices, wires="local")
        self._stack.callback(node.end)
        self.nodes[name] = node

    def line(self, name: str, requests: tuple[int, ...]) -> Line:
        """These requests to that node."""
        return Line(self.nodes[name].registry, MODEL, requests)

    def registrations(self, name: str) -> list[int]:
        """How often each executor has registered memory with its card."""
        return [
            each.registrations for each in NodeControl(control_path(str(self._folder / name / "node.sock"))).executors()
        ]


def measure(folder: Path, plan: Plan, whole: Round) -> dict[str, Any]:
    """The figures, see `docs/gpu-nodes.md`. Raises AssertionError for an answer that differs from this process's."""
    shards = list(whole.shards())
    wanted = solve_on_cores(whole.batch, os.cpu_count() or 1).tensors()
    checks = [check_of({name: array[shard.rows] for name, array in wanted.items()}) for shard in shards]
    once = tuple(range(len(shards)))
    largest = max(plan.counts)
    figures: dict[str, Any] = {"cards": largest, "pairs": whole.pairs, "shards": len(shards), "rounds": plan.rounds}
    with ExitStack() as stack:
        fleet = Fleet(folder, stack)
        for at, word in enumerate(plan.words[:largest]):
            fleet.start(f"card{at}", (word,))
        for count in plan.counts:
            fleet.start(f"cards{count}", plan.words[:count])
        callers = Callers(folder, [shard.tensors() for shard in shards], plan.processes * largest, THREADS)
        stack.callback(callers.close)
        for node in fleet.nodes.values():
            node.wait_ready()

        def asked(*lines: Line) -> tuple[float, float]:
            """(makespan, computing time of all of it) in seconds."""
            seen = callers.run(*lines)
            wrong = [each.request for each in seen if each.check != checks[each.request]]
            assert not wrong, f"shards {wrong} were not planned as by this process"
            return makespan_s(seen), sum(each.compute_ms for each in seen) / 1e3

        for name in fleet.nodes:  # a few rounds: nodes learn, arenas grow, memory is registered
            asked(fleet.line(name, once * 3))
        alone_s = median(asked(fleet.line("card0", once))[0] for _ in range(TRIES))
        many_alone_s = median(asked(fleet.line("card0", once * plan.rounds))[0] for _ in range(TRIES))
        figures |= {"one_card": {"round_s": alone_s, "rounds_s": many_alone_s}}
        for count in plan.counts:
            placed = [asked(fleet.line(f"cards{count}", once)) for _ in range(TRIES)]
            lines = [fleet.line(f"card{at}", once[at::count]) for at in range(count)]
            dealt_s = median(asked(*lines)[0] for _ in range(TRIES))
            before = fleet.registrations(f"cards{count}")
            many_s = median(asked(fleet.line(f"cards{count}", once * plan.rounds))[0] for _ in range(TRIES))
            round_s = median(took_s for took_s, _ in placed)
            figures[f"cards_{count}"] = {
                "round_s": round_s,
                "round_of_ideal": round_s * count / alone_s,
                "round_of_computing": median(took_s * count / work_s for took_s, work_s in placed),
                "dealt_of_ideal": dealt_s * count / alone_s,
                "rounds_s": many_s,
                "throughput": many_alone_s / many_s,
                "registrations": before,
                "registrations_meanwhile": sum(fleet.registrations(f"cards{count}")) - sum(before),
                "requests_meanwhile": TRIES * plan.rounds * len(shards),
            }
    return figures


def main() -> None:
    """Prints the figures on fake cards."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw.several", description=__doc__)
    parser.add_argument("--fake", type=int, default=2, metavar="N", help="fake cards")
    parser.add_argument("--orders", type=int, default=60, help="new orders of the round; the full one has 663")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    whole = city_round(CityPlan(orders=given.orders, riders=4 * given.orders))
    with tempfile.TemporaryDirectory(prefix="osp-hw-") as folder:
        plan = Plan(("fake",) * given.fake, (given.fake,), given.rounds, processes=1)
        sys.stdout.write(json.dumps(measure(Path(folder), plan, whole), indent=1) + "\n")


if __name__ == "__main__":
    main()
