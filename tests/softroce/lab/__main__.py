"""The lab by hand: build it, run a command in one guest or in both, see what stands in the way.

    python -m tests.softroce.lab [--kind KIND] build
    python -m tests.softroce.lab [--kind KIND] [--timeout-s S] run COMMAND...
    python -m tests.softroce.lab [--kind KIND] [--timeout-s S] run2 COMMAND...   on both; OVERSPILL_LAB_NODE tells which
    python -m tests.softroce.lab clean

A command runs in the checkout, read-only at /src, as root, with `bash -c`. Kinds: `bookworm` (taken when none is named)
and `trixie`, emulated; `native`, a user-mode kernel at this machine's own speed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time

from tests.softroce.lab import image, native, qemu, snapshot, uml_kernel
from tests.softroce.lab.cache import LabError, cache_folder
from tests.softroce.lab.lab import Lab, unavailable
from tests.softroce.lab.packages import SUITES
from tests.softroce.lab.remote import NATIVE


def main() -> int:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.softroce.lab", description="soft-RoCE guests by hand")
    parser.add_argument("what", choices=["build", "run", "run2", "clean"])
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--kind", choices=[*SUITES, NATIVE], default="bookworm")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.what == "clean":
        shutil.rmtree(cache_folder())
        return 0
    if reason := native.unavailable() if args.kind == NATIVE else unavailable(SUITES[args.kind]):
        sys.stderr.write(f"{reason}\n")
        return 2
    try:
        if args.what == "build":
            return _build(args.kind)
        return _run(1 if args.what == "run" else 2, args.kind, args.words, args.timeout_s)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _build(kind: str) -> int:
    began_s = time.monotonic()
    if kind == NATIVE:
        uml_kernel.build()
        image.build()
    else:
        made = image.build(SUITES[kind])
        for nodes in (1, 2):
            snapshot.snapshot(made, qemu.shape_for(nodes))
    sys.stderr.write(f"ready in {time.monotonic() - began_s:.1f} s, {qemu.acceleration()}, in {cache_folder()}\n")
    return 0


def _run(nodes: int, kind: str, words: list[str], timeout_s: float) -> int:
    codes = [1] * nodes
    with native.NativeLab(nodes) if kind == NATIVE else Lab(nodes, SUITES[kind]) as lab:

        def follow(node: int) -> None:
            process = lab.guests[node].start(["bash", "-c", " ".join(words)])
            end_s = time.monotonic() + timeout_s
            while process.code is None:
                line = process.line(max(0.0, end_s - time.monotonic()))
                if line is None:
                    sys.stderr.write(f"n{node}: over {timeout_s:.0f} s, ended\n")
                    process.signal(9)
                    return
                if line.stream != "exit":
                    sys.stdout.write(f"n{node}| {line.text}\n" if nodes == 2 else f"{line.text}\n")
                    sys.stdout.flush()
            codes[node] = process.code

        threads = [threading.Thread(target=follow, args=(node,)) for node in range(nodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
