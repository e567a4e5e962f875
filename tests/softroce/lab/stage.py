"""The part of the guest's agent that lies in its snapshot: imports what is slow to import, then waits to be let go.

Under emulation gRPC takes seconds to import; the snapshot is taken behind it. What may change from run to run is not
here: once the checkout is mounted, `tests/softroce/lab/agent.py` goes on, from there.
"""

import importlib
import os
import subprocess
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads would not survive the agent's forks
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True


NAMES = """argparse asyncio ctypes json multiprocessing.connection runpy selectors unittest.mock uuid
grpc numpy numpy.random numpy.testing tenacity _pytest.assertion.rewrite pytest
pyverbs.addr pyverbs.cq pyverbs.device pyverbs.enums pyverbs.mr pyverbs.pd pyverbs.qp pyverbs.wr"""


def preload() -> None:
    """What the worker, the ports and the nodes import."""
    for name in NAMES.split():
        importlib.import_module(name)


def mount(tag: str, place: str, options: str = "") -> None:
    """One 9p share of the host."""
    words = f"trans=virtio,version=9p2000.L,msize=262144{options}"
    subprocess.run(["/bin/busybox", "mount", "-t", "9p", "-o", words, tag, place], check=True, timeout=30)


def main() -> None:
    """Waits for one line, `go NODE NODES TIME_S`, on the second serial line."""
    preload()
    line = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    subprocess.run(["/bin/busybox", "stty", "-F", "/dev/ttyS1", "raw", "-echo"], check=True, timeout=30)
    os.write(line, b"SNAP\n")
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(line, 100)
    _, node, nodes, now_s = said.decode().split()
    time.clock_settime(time.CLOCK_REALTIME, float(now_s))  # the stored clock is stale
    mount("src", "/src", ",ro,cache=mmap")
    mount("site", "/site", ",ro,cache=mmap")
    sys.path.insert(0, "/src")
    sys.path.append("/site")
    os.environ["PYTHONPATH"] = "/src"
    os.environ["OVERSPILL_LAB_NODE"], os.environ["OVERSPILL_LAB_NODES"] = node, nodes
    os.chdir("/src")
    from tests.softroce.lab import agent

    agent.main(int(node), int(nodes))


if __name__ == "__main__":
    main()
