"""The kernels' own text compiled as C++, one lane to a warp: the same arithmetic on any machine that has a compiler.

It shows that the text plans rightly, not that a GPU runs it rightly: tests/hw does that.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.route_plan.gpu import packing
from examples.dispatch.route_plan.gpu.geometry import WORTH_BYTES, Work, task_bytes
from examples.dispatch.route_plan.gpu.source import Flag, program

if TYPE_CHECKING:
    from pathlib import Path

    from examples.dispatch.route_plan import Answer, Batch

FLAGS = ("-O2", "-std=c++17", "-ffp-contract=off", "-fwrapv", "-Wall", "-Wno-unused-function", "-shared", "-fPIC")
CANARY = 0xA5


def compiler() -> str | None:
    return shutil.which("g++")


def build(folder: Path) -> ctypes.CDLL:
    """Compile the kernels' text into a library."""
    source, library = folder / "route_plan.cpp", folder / "route_plan.so"
    source.write_text(program())
    subprocess.run([compiler() or "g++", *FLAGS, "-o", library, source], check=True, timeout=240)
    return ctypes.CDLL(str(library))


class CppEngine:
    """Runs launches on this processor, in memory as exactly sized as a warp's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._plan: packing.Plan | None = None
        self._block = np.zeros(0, np.uint8)
        self._pairs = 0

    def bytes_of_task(self, orders: int, worth: int, flags: Flag) -> int:
        lean, exact = int(Flag.LEAN in flags), int(Flag.EXACT in flags)
        return int(self._library.bytes_of_task(orders, WORTH_BYTES[worth], lean, exact))

    def load(self, plan: packing.Plan, batch: Batch) -> None:
        self._plan, self._pairs = plan, len(batch.pairs)
        self._block = np.full(plan.size + 64, CANARY, np.uint8)
        self._block = self._block[-self._block.ctypes.data % 64 :][: plan.size]
        packing.stage(plan, batch, self._block.ctypes.data, self._block)
        for section, tensor in zip(plan.inputs, batch.tensors().values(), strict=True):
            packing.put(self._block, section, tensor)

    def run(self, worth: int, hands: Work, pairs: Work) -> Answer:
        plan = self._plan
        assert plan is not None
        for work in (hands, pairs):
            rows = np.ascontiguousarray(work.rows, np.int32)
            for launch in work.launches:
                memory = np.full(task_bytes(launch.orders, worth, launch.flags, lanes=1) + 128, CANARY, np.uint8)
                at = -memory.ctypes.data % 16
                self._library.plan_rows(
                    worth,
                    ctypes.c_void_p(self._block.ctypes.data),
                    ctypes.c_void_p(rows.ctypes.data + 4 * launch.first),
                    launch.last - launch.first,
                    launch.orders,
                    int(launch.flags),
                    ctypes.c_void_p(memory.ctypes.data + at),
                )
                assert (memory[len(memory) - 128 + at + 0 :] == CANARY).all(), "a task wrote beyond its memory"
        reply = self._block[plan.reply.at : plan.reply.end].copy()
        return packing.answer_of(plan, self._pairs, reply)
