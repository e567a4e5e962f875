"""`make bench`: figures, calibrators and peers in one run, a table, the goals, and JSON under `.bench/`.

    python -m tests.benchmarks [--rounds N] [--seconds S] [--quick] [--triton PYTHON]

`--triton` names an interpreter that has nvidia-pytriton and tritonclient; without it the Triton rows are left out and
their goals are not judged. Method and reading: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from fabric import frame
from tests.benchmarks import frontdoor, local, rpc_probe
from tests.benchmarks.calibrators import bare_echo, doorbell, memcpy_us
from tests.benchmarks.table import Goal, as_json, as_text, medians
from tests.benchmarks.timing import ROUNDS, Figure, p50_each_us, p50_us

SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
SMALL, MEDIUM, LARGE = 64, 1 << 20, 16 << 20
TRITON = Path(__file__).with_name("triton_peer.py")
Found = dict[tuple[str, int], tuple[float, float]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description="Overspill's benchmarks")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds; figures are their median (default {ROUNDS})"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one closed loop (default 0.5)")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything runs")
    parser.add_argument("--triton", metavar="PYTHON", help="an interpreter with nvidia-pytriton and tritonclient")
    parser.add_argument("--json", type=Path, default=Path(".bench/latest.json"), help="where the JSON goes")
    args = parser.parse_args()
    rounds, seconds = (1, 0.1) if args.quick else (args.rounds, args.seconds)
    figures = calibrate(rounds, seconds)
    figures += local.figures(SIZES, seconds, rounds)
    figures += calibrate(1, seconds)  # once more at the end: the machine may have changed under us
    figures += rpc_probe.figures(rounds)
    figures += frontdoor.figures([SMALL, MEDIUM, LARGE], seconds, rounds)
    if args.triton:
        figures += triton(args.triton, rounds, seconds)
    found = medians(figures)
    goals = judge(found)
    facts = machine()
    print(f"hot path: {facts['hot_path']}; load {facts['load'][0]:.1f} on {facts['cores']} cores\n")
    print(as_text(found, goals))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"machine": facts, **as_json(found, goals)}, indent=2), encoding="utf-8")
    print(f"\n{args.json}")
    return 0


BARE = ("bare copies, leased input", "bare copies, plain input")
"""What an echo costs between two processes that look for each other's work all the time: copies and nothing else."""


def calibrate(rounds: int, seconds: float) -> list[Figure]:
    with doorbell() as ring:
        found = [Figure("bare doorbell", SMALL, p50_us(ring, seconds)) for _ in range(rounds)]
    for size in SIZES:
        found += [Figure("memcpy", size, memcpy_us(size, seconds)) for _ in range(rounds)]
        with bare_echo(size) as calls:
            for _ in range(rounds):
                timed = p50_each_us(calls, seconds)
                found += [Figure(name, size, p50) for name, p50 in zip(BARE, timed, strict=True)]
    return found


def triton(python: str, rounds: int, seconds: float) -> list[Figure]:
    command = [python, str(TRITON), str(seconds), *map(str, SIZES)]
    found = []
    for _ in range(rounds):
        output = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
        for kind, title in (("shm", "Triton, system shared memory"), ("raw", "Triton, raw in the message")):
            rows = json.loads(output)[kind]
            found += [Figure(title, int(size), p50) for size, p50 in rows.items()]
    return found


def judge(found: Found) -> list[Goal]:
    """The goals that this run can judge."""

    def p50(name: str, size: int) -> float:
        return found[name, size][0]

    touch, echo, plain = "local touch, leased input", "local echo, leased input", "local echo, plain input"
    ring = p50("bare doorbell", SMALL)
    goals = [
        Goal("touch 64 B / bare doorbell", 6.0, p50(touch, SMALL) / ring, at_most=True),
        Goal("touch 16 MiB / touch 64 B", 1.5, p50(touch, LARGE) / p50(touch, SMALL), at_most=True),
        Goal("local touch, 8 clients, per s", 15_000, found["local touch, 8 clients", SMALL][1], at_most=False),
    ]
    for size in SIZES:
        copy, text = p50("memcpy", size), f"{size} B"
        allowed = p50(touch, size) + 1.3 * copy
        goals.append(Goal(f"echo, leased / (touch + 1.3 memcpy), {text}", 1.0, p50(echo, size) / allowed, at_most=True))
        more = p50(plain, size) / (allowed + copy)
        goals.append(Goal(f"echo, plain / (touch + 2.3 memcpy), {text}", 1.0, more, at_most=True))
        if ("Triton, system shared memory", size) in found:
            ratio = p50("Triton, system shared memory", size) / p50(echo, size)
            goals.append(Goal(f"Triton's shared memory / echo, {text}", 5.0, ratio, at_most=False))
    shared = p50(frontdoor.RAW, LARGE) / p50(frontdoor.SHM, LARGE)
    goals.append(Goal("front door, raw / shared memory, 16 MiB", 10.0, shared, at_most=False))
    if ("Triton, raw in the message", MEDIUM) in found:
        beside = p50(frontdoor.RAW, MEDIUM) / p50("Triton, raw in the message", MEDIUM)
        goals.append(Goal("front door / Triton, raw, 1 MiB", 1.3, beside, at_most=True))
    plain_grpc = p50("grpcio unary", SMALL)
    tuned, tls = "grpcio unary, malloc tuned", "grpcio unary, malloc tuned, TLS"
    stream = "grpcio stream of 1 MiB pieces"
    return [
        *goals,
        Goal("rpc 64 B / grpcio unary", 1.3, p50("rpc wire", SMALL) / plain_grpc, at_most=True),
        Goal("tuned grpcio / rpc 16 MiB", 1.7, p50(tuned, LARGE) / p50("rpc wire", LARGE), at_most=False),
        Goal("tuned grpcio / rpc 16 MiB, both TLS", 1.5, p50(tls, LARGE) / p50("rpc wire, TLS", LARGE), at_most=False),
        Goal(
            "rpc 16 MiB without lane / grpcio stream",
            1.0,
            p50("rpc wire, no lane", LARGE) / p50(stream, LARGE),
            at_most=True,
        ),
        Goal(
            "rpc 64 B beside 32 MiB / idle",
            3.0,
            p50("rpc wire, beside 32 MiB", SMALL) / p50("rpc wire", SMALL),
            at_most=True,
        ),
    ]


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "hot_path": "plain Python" if str(frame.__file__).endswith(".py") else "compiled",
    }


if __name__ == "__main__":
    sys.exit(main())
