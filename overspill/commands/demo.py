"""`overspill demo`: one dispatch round over three nodes, an executor and a node killed on the way, and a report.

Exit code 1 when a request was lost, wrong or duplicated. Read `overspill/demo/show.py` next: it tells the story.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
from importlib.util import find_spec
from pathlib import Path

from fabric.errors import ConfigError, MissingDependency
from overspill.options import number, whole

LIMIT_S = 10.0
"""A dispatch round has about this long to decide (background of the public INFORMS TSL-Meituan challenge)."""
SEED_MOST = (1 << 63) - 1
NEEDED = ("numba", "onnx", "onnxruntime")
"""What the dispatch example stands on: the extra `dispatch` of pyproject.toml. A plain installation has none of it."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill demo`."""
    parser = commands.add_parser(
        "demo", help="a dispatch round with failures on the way; prints a table, writes a report"
    )
    parser.add_argument(
        "--registry", metavar="URL", help="where the demo's nodes register (default: a folder of its own)"
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="use the public data sets in this folder for the round"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=whole("--seed", 0, SEED_MOST),
        default=1,
        help="seed of the city and of what is killed when",
    )
    parser.add_argument("--report", metavar="FILE", type=Path, help="where the HTML report goes (default report.html)")
    parser.add_argument(
        "--limit-s",
        metavar="S",
        type=number("--limit-s", 0.5, 60.0),
        default=LIMIT_S,
        help="time limit, and size, of the round (default 10)",
    )
    parser.add_argument(
        "--matrix", action="store_true", help="send the legs of all pairs as tables that nodes keep (residents)"
    )
    parser.add_argument("--no-faults", action="store_true", help="kill nothing")
    parser.add_argument(
        "--attach",
        action="store_true",
        help="send the round to the nodes that --registry lists, which serve the demo's models; start and kill none",
    )
    parser.add_argument(
        "--lab",
        action="store_true",
        help="a round over rdma: nodes in two soft-RoCE guests, the link cut and healed, a guest killed on the way",
    )
    parser.set_defaults(run=run, at_once=True)


def run(args: argparse.Namespace) -> int:
    """Runs the demo. Raises OverspillError when it cannot be set up."""
    from overspill.demo.lab import show_in_lab
    from overspill.demo.show import DemoOptions, show

    missing = " ".join(name for name in NEEDED if find_spec(name) is None)
    if missing:
        raise MissingDependency(f"the demo needs {missing}; install it: pip install {missing}")
    if args.attach and not args.registry:
        raise ConfigError("--attach needs the registry of the nodes that run already; say --registry URL")
    report = args.report or Path("report.html")
    faults = not args.no_faults
    if args.lab:
        if args.attach or args.registry or args.data or args.matrix:
            raise ConfigError("--lab brings nodes, registry and round of its own; leave the other options out")
        return show_in_lab(args.seed, report, faults=faults)
    where = (args.registry or "", args.data, args.seed, report, args.limit_s)
    return show(DemoOptions(*where, faults=faults, matrix=args.matrix, attach=args.attach))
