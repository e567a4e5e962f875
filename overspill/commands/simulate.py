"""`overspill simulate`: routing policies on one simulated fleet, ours and oracles among them; a table and a page.

Everything is drawn from seeds: the same command prints the same table. Read `router/simulator/workload.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from overspill.options import number, whole

if TYPE_CHECKING:
    from collections.abc import Callable

_LOAD = number("--loads", 0.01, 3.0)
_HINT_ERROR = number("--hint-error", 0.0, 10.0)
LOADS = "0.5,0.7,0.8,0.9,0.95"
POLICIES = "weighted,least-loaded,peak-ewma,jsq,polled-count,polled-work,c3,prequal,ours,greedy,oracle"
"""Round robin and random have no steady state where slow workers cannot carry an equal share."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill simulate`."""
    parser = commands.add_parser(
        "simulate", help="compare routing policies on a simulated fleet; prints a table, writes a page"
    )
    parser.add_argument("--workload", default="w-gpu", metavar="NAME", help="w-gpu (default) or w-local")
    parser.add_argument("--policies", default=POLICIES, metavar="A,B", help="which, or `all`; --list names them")
    parser.add_argument("--loads", default=LOADS, metavar="X,Y", help=f"shares of the capacity (default {LOADS})")
    parser.add_argument(
        "--seeds",
        type=whole("--seeds", 1, 1000),
        default=2,
        metavar="N",
        help="runs of each, with seeds 1 to N (default 2)",
    )
    parser.add_argument(
        "--requests",
        type=whole("--requests", 100, 100_000_000),
        metavar="N",
        help="of each run, a fifth of them warm-up (default 80000)",
    )
    parser.add_argument(
        "--hint-error", metavar="X", help="error of callers' cost hints (default 0.3), or `none` for no hints"
    )
    parser.add_argument(
        "--far-ms",
        type=number("--far-ms", 0.0, 60_000.0),
        metavar="MS",
        help="one way to a worker of another host",
    )
    parser.add_argument(
        "--batch",
        type=whole("--batch", 1, 1024),
        metavar="N",
        help="requests that a worker runs together (default 1)",
    )
    parser.add_argument(
        "--processes",
        type=whole("--processes", 1, 1024),
        default=1,
        metavar="N",
        help="runs at the same time (default 1)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the HTML page goes (default: none)")
    parser.add_argument("--list", action="store_true", help="name all policies and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the comparison. Raises ConfigError."""
    from router.policies.table import BY_NAME, ENTRIES
    from router.simulator.compare import compare
    from router.simulator.report import as_html, as_text
    from router.simulator.workload import workload

    if args.list:
        for entry in ENTRIES:
            print(f"{entry.name:14} {entry.title}")
        return 0
    changes: dict[str, float | None] = {}
    if args.requests is not None:
        changes |= {"requests": args.requests, "warm_up": args.requests // 5}
    if args.hint_error is not None:
        changes["hint_error"] = None if args.hint_error == "none" else _HINT_ERROR(args.hint_error)
    if args.far_ms is not None:
        changes["far_s"] = args.far_ms / 1000.0
    if args.batch is not None:
        changes |= {"batch_max": args.batch, "batch_saves": 0.5}
    world = workload(args.workload, **changes)
    loads = [_LOAD(load) for load in args.loads.split(",")]
    policies = list(BY_NAME) if args.policies == "all" else args.policies.split(",")
    seeds = range(1, args.seeds + 1)
    cells = compare(world, policies, loads, seeds, processes=args.processes, progress=_progress())
    title = f"{world.name}: {len(world.speeds)} workers, {len(world.demand)} routers, mean of {len(seeds)} seeds"
    print(as_text(title, cells))
    if args.report is not None:
        try:
            args.report.write_text(as_html(title, " ".join(["overspill", *sys.argv[1:]]), cells), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {args.report} ({error.strerror}); give another --report") from None
        print(f"\nreport: {args.report}")
    return 0


def _progress() -> Callable[[float, int], None]:
    """Tells on a terminal, in one line that is written over, how far it is; nothing anywhere else."""
    if not sys.stderr.isatty():
        return lambda _, __: None
    began_s = time.monotonic()

    def tell(done: float, total: int) -> None:
        took_s = time.monotonic() - began_s
        left = f", about {took_s / done * (total - done):.0f} s to go" if 0.0 < done < total and took_s > 1.0 else ""
        line = f"{done / total:4.0%} of {total} runs, {took_s:.0f} s{left}"
        print(f"\r  {line:60}", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return tell
