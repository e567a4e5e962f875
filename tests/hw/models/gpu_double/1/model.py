"""Twice the input, on the GPU by a RawKernel, with one copy each way between the caller's slots and the card."""

import cupy
import numpy as np

CODE = r"""
extern "C" __global__ void twice(const float* x, float* y, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
BLOCK = 256


class Model:
    def __init__(self, config):
        self._twice = cupy.RawKernel(CODE, "twice")
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def execute(self, inputs, outputs):
        self._run(inputs["x"], outputs.allocate("y", np.float32, inputs["x"].shape))

    def _run(self, x, y):
        with self._stream:
            there = cupy.empty(x.shape, np.float32)
            there.set(x, stream=self._stream)
            back = cupy.empty_like(there)
            self._twice((max(1, -(-x.size // BLOCK)),), (BLOCK,), (there, back, np.uint64(x.size)))
            back.get(stream=self._stream, out=y)
            self._stream.synchronize()

    def warm_up(self):
        x = np.ones(1 << 16, np.float32)
        self._run(x, np.empty_like(x))
