"""Twice the input after five milliseconds on the card, and the process that it was. On a fake card it only waits."""

import os
import time

import numpy as np

RUN_MS = 5
CODE = r"""
extern "C" __global__ void twice_late(const float* x, float* y, unsigned long long n, unsigned long long run_ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < run_ns);
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
BLOCK = 256


class Model:
    def __init__(self, config):
        self._twice = None
        if not os.environ["CUDA_VISIBLE_DEVICES"].startswith("FAKE-"):
            import cupy

            self._cupy = cupy
            self._twice = cupy.RawKernel(CODE, "twice_late")
            self._stream = cupy.cuda.Stream(non_blocking=True)

    def execute(self, inputs, outputs):
        outputs["pid"] = np.array([os.getpid()])
        outputs["y"] = self._run(inputs["x"])

    def warm_up(self):
        self._run(np.ones(64, np.float32))

    def _run(self, x):
        if self._twice is None:
            time.sleep(RUN_MS / 1e3)
            return 2 * x
        with self._stream:
            there = self._cupy.empty(x.shape, np.float32)
            there.set(x, stream=self._stream)
            back = self._cupy.empty_like(there)
            words = (there, back, np.uint64(x.size), np.uint64(RUN_MS * 1_000_000))
            self._twice((max(1, -(-x.size // BLOCK)),), (BLOCK,), words)
            return back.get(stream=self._stream)
