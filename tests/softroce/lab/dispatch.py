"""The client of `overspill demo --lab`, in the first guest: sends the round over rdma, and reports as the demo does.

It speaks lines of JSON with the host: it asks for the faults that its round has come to, and tells what to print. What
must come out of `route_plan` came with the round, since its numbers are whole; what must come out of `etr` is computed
here, in this process, because the last bits of floating-point numbers depend on the processor. Started as a module by
`tests/softroce/lab/demo.py`, which is the other end.
"""

from __future__ import annotations

import json
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discovery.directory import DirectoryRegistry
from discovery.lease_file import parse_lease
from examples.dispatch.etr.features import EtrInputs
from examples.dispatch.etr.modelfile import shipped
from examples.dispatch.etr.serve import Session
from fabric.link.config import LinkTimes
from fabric.link.wires import LinkConfig
from overspill import Router, RouterConfig
from overspill.demo.drive import Drive, Job, PlannedFault, Step
from overspill.demo.records import audit
from overspill.demo.report import Outcome, as_html, as_text
from overspill.demo.running import ledger_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    Arrays = dict[str, np.ndarray[Any, Any]]

TIMEOUT_S = 60.0
"""Of one request. An emulated guest takes seconds for what takes a machine of today a twentieth."""
ROUND_S = 180.0
SLOW = LinkTimes(connect_s=10.0, probe_s=10.0, ping_s=0.4, idle_ping_s=4.0)
"""A guest beside busy neighbours answers a ping in tenths of a second."""
CONNECT_S = 60.0
CALLERS, LEDGER_INTERVAL_S = 4, 0.2
LEASE = ".lease"
"""Beside the round's file lies what the second node says of itself, by this ending."""


def say(**words: object) -> None:
    """One line to the host."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """The host's next line. Raises EOFError when it is gone."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the host is gone")
    return dict(json.loads(line))


def ask(what: str) -> str:
    """Has the host break or mend something; returns what that was done to."""
    say(ask=what)
    return str(hear()["done"])


def jobs_of(path: Path) -> list[Job]:
    """The jobs of a round that the host wrote, with all that must come out."""
    session = Session(shipped("etr"), threads=1)
    parts: dict[str, dict[str, Arrays]] = {}
    with np.load(path) as file:
        work_s = file["work_s"]
        for key in file.files:
            if key.count("|") == 2:
                job, kind, name = key.split("|")
                parts.setdefault(job, {}).setdefault(kind, {})[name] = file[key]
    jobs = []
    for number, each in parts.items():
        times: Arrays = {"arrival_min": np.asarray(session.etr(EtrInputs(**each["etr"])))}
        steps = (
            Step("route_plan", partial(_given, each["inputs"]), each["plan"]),
            Step("etr", partial(_given, each["etr"]), times),
        )
        jobs.append(Job(f"lab/{number}", steps, float(work_s[int(number)])))
    return jobs


def _given(tensors: Arrays, _: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    return tensors


def faults_of(seed: int) -> list[PlannedFault]:
    """The cable of the RDMA cards pulled and plugged in again, then the power of the second guest."""
    rng = random.Random(seed)
    moments = (rng.uniform(0.1, 0.2), rng.uniform(0.35, 0.45), rng.uniform(0.6, 0.75))
    kinds = (("rdma link cut", "cut"), ("rdma link healed", "heal"), ("guest killed", "kill"))
    return [PlannedFault(at, kind, partial(ask, what)) for at, (kind, what) in zip(moments, kinds, strict=True)]


def main(folder: Path, path: Path) -> None:
    """One round."""
    jobs = jobs_of(path)
    say(ready=len(jobs))
    order = hear()
    registry = DirectoryRegistry(str(folder / "registry"))
    entry = registry.register(parse_lease(path.with_suffix(LEASE).read_bytes()).instance)
    times = SLOW if order["slow"] else LinkTimes()
    config = RouterConfig(link=LinkConfig(times, local=False))
    try:
        with Router.connect(f"dir:{folder / 'registry'}", config=config, timeout_s=CONNECT_S) as router:
            for trouble in router.statistics().wire_troubles:
                say(tell=f"not over rdma yet: {trouble}")
            say(tell="the round begins")
            faults = faults_of(order["seed"]) if order["faults"] else []
            drive = Drive(router, jobs, faults, TIMEOUT_S, callers=CALLERS, ledger_interval_s=LEDGER_INTERVAL_S)
            took_s = drive.run(_Progress())
    finally:
        entry.close()
    say(ask="ledger")
    lines = ledger_lines(folder / "ledger", {}) + hear()["lines"]
    computed_s = sum(record.compute_ms for record in drive.records) / 1e3
    outcome = Outcome(
        "Overspill demo: two soft-RoCE guests", order["seed"], took_s, ROUND_S, computed_s, drive.records, drive.faults,
        audit(drive.records, lines),
    )  # fmt: skip
    (folder / "report.html").write_text(as_html(outcome), encoding="utf-8")
    say(clean=outcome.audit.clean, text=as_text(outcome))


class _Progress:  # mutable: remembers what it told last
    """Tells the host how far the round is, every few seconds."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + 5.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 5.0
            say(tell=f"{done} of {total} jobs are done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
