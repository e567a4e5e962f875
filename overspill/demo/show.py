"""The demo's story, in order: make a round, start three nodes, send it all, break things, count, and tell.

One local node is reached over shared memory, two remote ones over the rpc wire only. The round is cut to a size that
the local node alone could not finish in its time limit. Whatever happens, nothing of the demo is left running.
Read `overspill/demo/work.py` for the round, `cluster` for the nodes, `drive` for the sending, `report` for the telling.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.registry import diagnose, open_registry
from discovery.remark import Weight
from fabric.errors import ConfigError, MissingDependency, RegistryUnavailable
from overspill.demo import running
from overspill.demo.cluster import Cluster
from overspill.demo.drive import Drive, PlannedFault
from overspill.demo.records import audit
from overspill.demo.report import Outcome, as_html, as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overspill.demo.work import Work
    from router.statistics import RouterStatistics

LOCAL, REMOTE = "local", ("remote-1", "remote-2")
TIMEOUT_S = 10.0
"""Of one request. The round's own limit is shorter or equal; what is late for it is still answered."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for; an empty registry means a folder of the demo's own."""

    registry: str
    data: Path | None
    seed: int
    report: Path
    limit_s: float
    faults: bool
    matrix: bool = False
    """Send the legs of all pairs as tables that all shards of a round share."""
    attach: bool = False
    """Send the round to nodes that run already, instead of starting some and breaking them."""


def show(options: DemoOptions) -> int:
    """Runs the demo; gives the exit code: 0, or 1 when something was lost, wrong or duplicated."""
    try:
        from overspill.demo.work import make_round
    except ImportError as error:
        raise MissingDependency(f"the demo needs {error.name}; run `pip install numba onnxruntime`") from None
    from overspill import Router

    check_writable(options.report)
    _check_registry(options)
    with interruptible(), tempfile.TemporaryDirectory(prefix="overspill-demo-") as name:
        folder = Path(name)
        if options.attach:
            ledger = running.ledger_folder()
        else:
            ledger = folder / "ledger"
            ledger.mkdir()
        _tell("making the round and its single-process answers; the first time, its kernels are compiled for it")
        work = make_round(options.data, options.seed, options.limit_s, matrix=options.matrix)
        _tell(work.description)
        before = running.ledger_marks(ledger)
        registry = options.registry or f"dir:{folder / 'registry'}"
        with _nodes(options, folder, registry, work, ledger) as faults:
            with Router.connect(registry) as router:
                drive = Drive(router, work.jobs, faults, TIMEOUT_S, work.tables)
                took_s = drive.run(_progress)
                tables = _tables_line(work, drive, router.statistics())
            if not options.attach:
                _tell("draining the nodes")
        lines = running.ledger_lines(ledger, before)
    outcome = Outcome(
        title=f"Overspill demo: {work.title}",
        seed=options.seed,
        took_s=took_s,
        limit_s=work.limit_s,
        alone_s=work.alone_s,
        records=drive.records,
        faults=drive.faults,
        audit=audit(drive.records, lines),
    )
    print(as_text(outcome))
    if tables:
        print(tables)
    options.report.write_text(as_html(outcome), encoding="utf-8")
    print(f"\nreport: {options.report}")
    return 0 if outcome.audit.clean else 1


def _tables_line(work: Work, drive: Drive, statistics: RouterStatistics) -> str:
    """What it cost to send the tables of matrix mode; empty where there are none."""
    if not work.tables:
        return ""
    whole = sum(table.nbytes for table in work.tables)
    return (
        f"\nmatrix mode: {len(work.tables)} tables of {whole / 1e6:.1f} MB together, kept on nodes; all inputs sent"
        f" were {statistics.bytes_sent / 1e6:.1f} MB in {statistics.residents_sent} sendings of a table"
        f" ({statistics.residents_missed} because a node lacked one); with each request the tables alone would have"
        f" been {drive.each_time_bytes / 1e6:.1f} MB"
    )


@contextmanager
def _nodes(options: DemoOptions, folder: Path, registry: str, work: Work, ledger: Path) -> Iterator[list[PlannedFault]]:
    """The nodes that the round goes to, and the faults that await them."""
    if options.attach:
        models = {step.model for job in work.jobs for step in job.steps} | {"ledger"}
        _tell(f"waiting for nodes that serve {', '.join(sorted(models))}")
        found = running.wait_serving(registry, models)
        _tell(f"sending to {', '.join(found)}")
        yield []
        return
    with Cluster(folder, registry, work.models, {"OVERSPILL_LEDGER_DIR": str(ledger)}) as cluster:
        _tell(f"starting nodes: {LOCAL} (shared memory), {' and '.join(REMOTE)} (rpc only)")
        cluster.start([(LOCAL, "local,rpc"), *((remote, "rpc") for remote in REMOTE)])
        yield _plan_faults(cluster, options.seed) if options.faults else []


def _plan_faults(cluster: Cluster, seed: int) -> list[PlannedFault]:
    """One executor and one remote node, at times and places that the seed picks."""
    rng = random.Random(seed)  # noqa: S311 - a drill's choice, replayed by its seed
    victim = rng.choice(REMOTE)

    def kill_node() -> str:
        cluster.kill_node(victim)
        return victim

    return [
        PlannedFault(rng.uniform(0.15, 0.4), "executor killed", lambda: cluster.kill_executor(rng)),
        PlannedFault(rng.uniform(0.5, 0.75), "node killed", kill_node),
    ]


def check_writable(report: Path) -> None:
    """Fails before the round rather than after it."""
    try:
        with report.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {report} ({error.strerror}); give another --report") from None


def _check_registry(options: DemoOptions) -> None:
    """The same for the registry, where nodes would wait for it in vain. Those of --attach may still be starting."""
    if options.registry.startswith("static:"):
        raise ConfigError("a static list tells nothing of models, which the demo needs; give dir:PATH or consul:URL")
    if options.registry:
        open_registry(options.registry)  # a URL that names none is told now
    if options.registry and not options.attach:
        for remark in diagnose(options.registry):
            if remark.weight is Weight.BROKEN:
                raise RegistryUnavailable(remark.sentence)


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM end the demo as Ctrl-C does, so that it cleans up after itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(line: str) -> None:
    print(f"· {line}", file=sys.stderr, flush=True)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        filled = 30 * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r  [{'#' * filled}{'.' * (30 - filled)}] {done}/{total} jobs", end=end, file=sys.stderr, flush=True)
