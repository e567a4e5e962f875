"""The device interface on a real card: what each fault answers, and how long contexts take to come and to go.

Each fault has a process of its own, which it breaks. `make hw ARGS=tests/hw/test_gpu_device.py`.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency
from workers.cuda.faults import CudaClass, read_faults
from workers.cuda.nvml import Nvml
from workers.device import DeviceFault, OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report
    from workers.device import Card

pytestmark = [pytest.mark.hw, pytest.mark.timeout(300)]

RUNS = 5
CODES = {
    DeviceFault.ILLEGAL_ADDRESS: 700,
    DeviceFault.MISALIGNED: 716,
    DeviceFault.ASSERT: 710,
    DeviceFault.TRAP: 719,
}
SCRIPT = """
import sys, time
began = time.perf_counter()
from workers.cuda.driver import CudaDevice
from workers.device import DeviceError, DeviceFault
device = CudaDevice()
device.probe()
print("ready", 1e3 * (time.perf_counter() - began), *device.memory(), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    try:
        device.cause(DeviceFault(line.strip()))
        device.settle()
        print("fine", 1e3 * (time.perf_counter() - began), flush=True)
    except DeviceError as error:
        print(error.code, 1e3 * (time.perf_counter() - began), flush=True)
"""


class Victim:
    """A process with a context, which does what it is told."""

    def __init__(self, card: Card) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        word, self.ready_ms, self.free_bytes, _ = self._line()
        assert word == "ready"

    def cause(self, fault: str) -> tuple[str, float]:
        """(code or `fine`, milliseconds until it was known)."""
        self.tell(fault)
        word, taken_ms = self._line()
        return word, taken_ms

    def tell(self, fault: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{fault}\n")
        self.process.stdin.flush()

    def killed_ms(self) -> float:
        """From SIGKILL to the end, as the kernel tells it."""
        fd = os.pidfd_open(self.process.pid)
        began = time.perf_counter()
        self.process.send_signal(signal.SIGKILL)
        select.select([fd], [], [], 60.0)
        taken_ms = 1e3 * (time.perf_counter() - began)
        os.close(fd)
        self.close()
        return taken_ms

    def close(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(60)

    def _line(self) -> tuple[str, ...]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        return (words[0], *(float(word) for word in words[1:]))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    try:
        return Nvml()
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def card(nvml: Nvml, report: Report) -> Card:
    found = nvml.cards()[0]
    report.device = found.model
    return found


@pytest.mark.parametrize("fault", CODES, ids=lambda fault: fault.value)
def test_a_fault_answers_with_its_number_and_stays(card: Card, report: Report, fault: DeviceFault) -> None:
    known_ms, gone_ms = [], []
    for _ in range(RUNS):
        victim = Victim(card)
        code, taken_ms = victim.cause(fault.value)
        assert code == str(CODES[fault])
        assert read_faults().of_cuda(int(code)) is CudaClass.FATAL
        assert victim.cause("trap")[0] == code, "a broken context answers with the same number for ever"
        known_ms.append(taken_ms)
        gone_ms.append(victim.killed_ms())
    report.add(
        "contexts",
        **{
            f"{fault.value}_known_ms": round(statistics.median(known_ms), 2),
            f"{fault.value}_gone_ms": round(statistics.median(gone_ms), 2),
        },
    )


def test_out_of_memory_breaks_nothing(card: Card) -> None:
    victim = Victim(card)
    for _ in range(3):
        assert victim.cause("oom")[0] == "2"
    victim.close()


def test_contexts_come_and_go(card: Card, nvml: Nvml, report: Report) -> None:
    ready_ms, gone_ms, hung_ms, freed_ms, held = [], [], [], [], []
    for hang in (False, True):
        for _ in range(RUNS):
            victim = Victim(card)
            ready_ms.append(victim.ready_ms)
            if hang:
                victim.tell("hang")
                time.sleep(0.2)
            pid = victim.process.pid
            held += [holder.nbytes for holder in nvml.holders(card.uuid) if holder.pid == pid]
            (hung_ms if hang else gone_ms).append(victim.killed_ms())
            began = time.perf_counter()
            while any(holder.pid == pid for holder in nvml.holders(card.uuid)):
                assert time.perf_counter() - began < 30.0
                time.sleep(0.001)
            freed_ms.append(1e3 * (time.perf_counter() - began))
    figures = {"ready": ready_ms, "idle_gone": gone_ms, "hung_gone": hung_ms, "freed_after_end": freed_ms}
    report.add("contexts", **{f"{name}_ms": round(statistics.median(values), 2) for name, values in figures.items()})
    report.add(
        "contexts", context_bytes=max(held, default=0), holders_are_seen=bool(held), driver_answers=len(nvml.cards())
    )
    assert nvml.recovery_action(card.uuid) == 0
