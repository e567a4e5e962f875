"""Train the networks again, from data to shipped model file, in one command each.

    python -m examples.dispatch.etr.train mini --data DIR    the real delivery rows, well under a minute
    python -m examples.dispatch.etr.train base               simulated rounds, about six minutes

Needs the `train` extra (torch on a CPU is enough). It changes one model file and its hash, nothing else. Two
trainings on one machine give equal weights; another processor may round differently. Next: `evaluate.py`, which says
how good they are.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.dispatch.etr import graph, modelfile, rounds
from examples.dispatch.etr.deliveries import UnreadableRows, read_deliveries, split

if TYPE_CHECKING:
    from collections.abc import Sequence

TRAIN_SEED, VALIDATION_SEED = 1, 2  # evaluate.py tests on rounds of another seed
VALIDATION_PAIRS = 4096


def _report(line: str) -> None:
    print(line, flush=True)


def train_mini(data: Path, out: Path) -> None:
    """Train `etr_mini` on the real rows and write it; raises UnreadableRows."""
    from examples.dispatch.etr.fit import MINI_RECIPE, fit_mini

    weights = fit_mini(split(read_deliveries(data)), MINI_RECIPE, _report)
    modelfile.write_model(out, graph.mini_graph(weights))


def train_base(pairs: int, out: Path) -> None:
    """Train `etr` on that many simulated pairs and write it."""
    from examples.dispatch.etr.fit import BASE_RECIPE, fit_base

    city = rounds.make_city()
    train = rounds.simulate(city, pairs, TRAIN_SEED)
    validation = rounds.simulate(city, VALIDATION_PAIRS, VALIDATION_SEED)
    _report(f"training on {pairs} simulated pairs")
    modelfile.write_model(out, graph.base_graph(fit_base(train, validation, BASE_RECIPE, _report)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.dispatch.etr.train", description="Train a delivery-time network."
    )
    parser.add_argument("network", choices=["mini", "base"])
    parser.add_argument("--data", type=Path, help="the data folder (mini)")
    parser.add_argument("--pairs", type=int, default=240_000, help="simulated pairs to train on (base)")
    parser.add_argument("--out", type=Path, help="the model file to write; the shipped one if left out")
    arguments = parser.parse_args(argv)
    if arguments.network == "mini" and arguments.data is None:
        parser.error("training mini needs the delivery rows: give the data folder with --data")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments(argv)
    if importlib.util.find_spec("torch") is None:
        print("Training needs torch: pip install 'overspill[train]'.", file=sys.stderr)
        return 2
    try:
        if arguments.network == "mini":
            train_mini(arguments.data, arguments.out or modelfile.shipped("etr_mini"))
        else:
            train_base(arguments.pairs, arguments.out or modelfile.shipped("etr"))
    except UnreadableRows as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
