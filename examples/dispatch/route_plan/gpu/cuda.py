"""The engine that runs the kernels on an NVIDIA GPU, by CuPy: memory, copies, launches, one stream.

Request and reply cross by page-locked blocks that are kept and grow as needed; kernels are compiled for the card at
hand when a kind of worth first needs them, and kept in CuPy's cache on disk. CuPy is imported when the first engine
opens. It never decides what to launch. Next: `bench.py`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.dispatch.route_plan.gpu import packing
from examples.dispatch.route_plan.gpu.geometry import LANES
from examples.dispatch.route_plan.gpu.source import program

if TYPE_CHECKING:
    from examples.dispatch.route_plan.contract import Answer, Batch
    from examples.dispatch.route_plan.gpu.geometry import Launch, Work

WORTHS = ("Narrow", "Wide", "Hard")
REGISTERS_MAX = 128  # of a thread; without a bound the compiler takes 240, and half as many warps fit
GROW = 1.5  # blocks grow by more than asked, so that rounds of rising size do not allocate each time
PLAIN_SHARED_BYTES = 48 * 1024  # a block may have more, but must ask for it


class GpuMissing(RuntimeError):
    """There is no GPU, or no CuPy, to plan with; the text says what to install or set."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What tests vary; the answers do not depend on it."""

    registers_max: int = REGISTERS_MAX
    warps: int = 0  # of a block; 0: as geometry.py says


def open_engine(settings: Settings | None = None) -> CudaEngine:
    """An engine on the current GPU. Raises GpuMissing with one sentence that says what to do."""
    if importlib.util.find_spec("cupy") is None:
        raise GpuMissing("route_plan on a GPU needs CuPy: install it with `pip install cupy-cuda13x`.")
    import cupy

    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if count == 0:
        raise GpuMissing(
            "route_plan was asked for on a GPU, but CUDA finds none here: check `nvidia-smi`, or set the model's"
            ' parameter device to "cpu".'
        )
    return CudaEngine(cupy, settings or Settings())


class CudaEngine:  # mutable: holds memory that grows, and compiled kernels
    """One stream on one GPU; for one thread at a time."""

    def __init__(self, cupy: Any, settings: Settings) -> None:
        self._cupy = cupy
        self._settings = settings
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._kernels: list[Any] = [None] * len(WORTHS)
        self._block: Any = None
        self._block_bytes = 0
        self._staging = np.zeros(0, np.uint8)
        self._reply = np.zeros(0, np.uint8)
        self._plan: packing.Plan | None = None
        self._pairs = 0
        self._shared_max = int(cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    @property
    def build(self) -> str:
        """What compiles the kernels here, for which card."""
        runtime = self._cupy.cuda.runtime
        card = runtime.getDeviceProperties(self._cupy.cuda.Device().id)["name"].decode()
        nvrtc = ".".join(map(str, self._cupy.cuda.nvrtc.getVersion()))
        return f"CuPy {self._cupy.__version__} and NVRTC {nvrtc} for {card}, registers {self._settings.registers_max}"

    def load(self, plan: packing.Plan, batch: Batch) -> None:
        """Bring a batch to the device; the copies are on their way when this returns."""
        self._make_room(plan)
        self._plan, self._pairs = plan, len(batch.pairs)
        packing.stage(plan, batch, self._block.ptr, self._staging)
        self._bring(packing.Section(0, plan.staged.size), self._staging)
        for section, tensor in zip(plan.inputs, batch.tensors().values(), strict=True):
            if packing.is_direct(tensor):
                self._bring(section, tensor)

    def run(self, worth: int, hands: Work, pairs: Work) -> Answer:
        """Plan hands and pairs and fetch the reply, whose arrays are good until the next call."""
        self.launch_all(worth, hands, pairs)
        return self.fetch()

    def launch_all(self, worth: int, hands: Work, pairs: Work) -> None:
        """Put the kernels on the stream."""
        plan = self._plan
        assert plan is not None
        rows = np.concatenate([hands.rows, pairs.rows])
        # The copy before may still read the staging block; what it reads there now is not touched.
        packing.put(self._staging, plan.rows, rows)
        self._bring(packing.Section(plan.rows.at, rows.nbytes), self._staging[plan.rows.at :])
        kernel = self._kernel(worth)
        for work, offset in ((hands, 0), (pairs, len(hands.rows))):
            for launch in work.launches:
                self._launch(kernel, launch, plan.rows.at + 4 * offset)

    def fetch(self) -> Answer:
        """Copy the reply and wait for it."""
        plan = self._plan
        assert plan is not None
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            self._reply.ctypes.data,
            self._block.ptr + plan.reply.at,
            plan.reply.size,
            runtime.memcpyDeviceToHost,
            self.stream.ptr,
        )
        self.stream.synchronize()
        return packing.answer_of(plan, self._pairs, self._reply[: plan.reply.size])

    def _launch(self, kernel: Any, launch: Launch, rows_at: int) -> None:
        warps = self._settings.warps or launch.warps
        warps = max(1, min(warps, self._shared_max // launch.warp_bytes))
        count = launch.last - launch.first
        shared = warps * launch.warp_bytes
        if shared > PLAIN_SHARED_BYTES and kernel.max_dynamic_shared_size_bytes < shared:
            kernel.max_dynamic_shared_size_bytes = self._shared_max
        arguments = (
            np.uint64(self._block.ptr),
            np.uint64(self._block.ptr + rows_at + 4 * launch.first),
            np.int32(count),
            np.int32(launch.orders),
            np.int32(launch.flags),
            np.int32(launch.warp_bytes),
        )
        with self.stream:
            kernel((-(-count // warps),), (LANES * warps,), arguments, shared_mem=shared)

    def _kernel(self, worth: int) -> Any:
        if self._kernels[worth] is None:
            options: tuple[str, ...] = ("--std=c++17", "--fmad=false", f"-DWORTH={WORTHS[worth]}")
            if self._settings.registers_max:
                options += (f"--maxrregcount={self._settings.registers_max}",)
            module = self._cupy.RawModule(code=program(), options=options)
            self._kernels[worth] = module.get_function("plan_rows")
        return self._kernels[worth]

    def _bring(self, section: packing.Section, source: np.ndarray[Any, Any]) -> None:
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            self._block.ptr + section.at,
            source.ctypes.data,
            section.size,
            runtime.memcpyHostToDevice,
            self.stream.ptr,
        )

    def _make_room(self, plan: packing.Plan) -> None:
        self.stream.synchronize()  # a batch that failed half way may still be read from the blocks
        if plan.size > self._block_bytes:
            self._block = None  # let go of the old one first
            self._block_bytes = int(GROW * plan.size)
            self._block = self._cupy.cuda.alloc(self._block_bytes)
        if plan.staged.size > len(self._staging):
            self._staging = self._locked(plan.staged.size)
        if plan.reply.size > len(self._reply):
            self._reply = self._locked(plan.reply.size)

    def _locked(self, size: int) -> np.ndarray[Any, Any]:
        size = int(GROW * size)
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
