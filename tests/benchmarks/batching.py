"""What dynamic batching brings on a real network: the delivery-time model, one and many callers, in turns in one run.

    python -m tests.benchmarks.batching [--clients N] [--rows R] [--seconds S] [--rounds N]

The same ONNX file is served twice by one executor: as it is, and with `dynamic_batching`. Callers ask in closed loops
from threads of processes of their own, so that their own interpreter is not what is measured.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np

from discovery.registry import open_registry
from fabric.local.control import NodeControl, control_path
from overspill import Router
from tests.benchmarks.nodes import running_node

ETR = Path(__file__).resolve().parents[2] / "examples" / "dispatch" / "models" / "etr"
STOPS = 10
THREADS_PER_PROCESS = 4
WARM_S = 0.5
CONFIG = """
backend: "onnxruntime"
max_batch_size: {batch}
input {{ name: "ids" data_type: TYPE_INT32 dims: [ {rows}7 ] }}
input {{ name: "dense" data_type: TYPE_FP32 dims: [ {rows}16 ] }}
input {{ name: "stops" data_type: TYPE_FP32 dims: [ {rows}-1, 14 ] }}
input {{ name: "stop_type" data_type: TYPE_INT32 dims: [ {rows}-1 ] }}
input {{ name: "stop_grid" data_type: TYPE_INT32 dims: [ {rows}-1 ] }}
input {{ name: "mask" data_type: TYPE_FP32 dims: [ {rows}-1 ] }}
output {{ name: "arrival_min" data_type: TYPE_FP32 dims: [ {rows}-1 ] }}
parameters {{ key: "idempotent" value {{ string_value: "true" }} }}
parameters {{ key: "intra_op_threads" value {{ string_value: "1" }} }}
{more}
"""


def write_models(folder: Path, delay_us: int) -> None:
    """`plain` and `joined`, of one file."""
    joined = f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}"
    for name, batch, rows, more in (("plain", 0, "-1, ", ""), ("joined", 64, "", joined)):
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(ETR / "1" / "model.onnx", folder / name / "1" / "model.onnx")
        (folder / name / "config.pbtxt").write_text(CONFIG.format(batch=batch, rows=rows, more=more))


def inputs(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "ids": np.zeros((rows, 7), np.int32),
        "dense": rng.random((rows, 16), np.float32),
        "stops": rng.random((rows, STOPS, 14), np.float32),
        "stop_type": np.zeros((rows, STOPS), np.int32),
        "stop_grid": np.zeros((rows, STOPS), np.int32),
        "mask": np.ones((rows, STOPS), np.float32),
    }


def callers(registry: str, model: str, threads: int, rows: int, seconds: float) -> list[float]:
    """The time of each call, in microseconds, of some closed loops in this process."""
    took: list[float] = []
    given = inputs(rows)
    begin_s = time.monotonic() + WARM_S
    with Router.connect(registry) as router:

        def loop() -> None:
            own = []
            while (began := time.monotonic()) < begin_s + seconds:
                with router.infer(model, given, timeout_s=30.0):
                    pass
                if began >= begin_s:
                    own.append((time.monotonic() - began) * 1e6)
            took.extend(own)

        loops = [threading.Thread(target=loop) for _ in range(threads)]
        for each in loops:
            each.start()
        for each in loops:
            each.join()
    return took


def measured(registry: str, model: str, clients: int, rows: int, seconds: float) -> tuple[float, float, float]:
    """(calls each second, p50, p99 in microseconds) of some callers at the same time."""
    shares = [min(THREADS_PER_PROCESS, clients - at) for at in range(0, clients, THREADS_PER_PROCESS)]
    base = [sys.executable, "-m", "tests.benchmarks.batching", "--rows", str(rows), "--seconds", str(seconds)]
    running = [
        subprocess.Popen([*base, "--call", registry, model, str(share)], stdout=subprocess.PIPE) for share in shares
    ]
    took = np.concatenate([np.frombuffer(each.communicate(timeout=seconds + 60)[0], np.float64) for each in running])
    return len(took) / seconds, float(np.median(took)), float(np.percentile(took, 99))


def batch_sizes(registry: str) -> dict[str, float]:
    """Items in a run of each model, on average, since the node started."""
    (node,) = open_registry(registry).read()
    seen = NodeControl(control_path(node.local)).statistics()
    return {each.name: each.inference_count / max(1, each.execution_count) for each in seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-us", type=int, default=0)
    parser.add_argument("--call", nargs=3, metavar=("REGISTRY", "MODEL", "THREADS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        registry, model, threads = args.call
        sys.stdout.buffer.write(np.array(callers(registry, model, int(threads), args.rows, args.seconds)).tobytes())
        return 0
    with tempfile.TemporaryDirectory(prefix="overspill-batching-") as name:
        write_models(Path(name), args.delay_us)
        with running_node("local", "--models", name) as registry:
            for clients in (1, args.clients):
                found: dict[str, list[tuple[float, float, float]]] = {"plain": [], "joined": []}
                for _ in range(args.rounds):
                    for model, figures in found.items():
                        figures.append(measured(registry, model, clients, args.rows, args.seconds))
                    sizes = batch_sizes(registry)
                for model, figures in found.items():
                    rate, p50, p99 = (median(column) for column in zip(*figures, strict=True))
                    times = f"p50 {p50:6.0f} us  p99 {p99:6.0f} us"
                    print(
                        f"{clients:3d} clients  {model:7s} {rate:6.0f} calls/s  {times}  {sizes[model]:.1f} items a run"
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
