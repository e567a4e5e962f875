"""Twice the input by 64 launches, most of which change nothing: what a run of many small kernels costs to start."""

import cupy
import numpy as np

CODE = r"""
extern "C" __global__ void step(const float* x, float* y, unsigned long long n, int last) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = last ? 2.0f * x[i] : x[i];
}
"""
BLOCK = 256
STEPS = 64


class Model:
    def __init__(self, config):
        self._step = cupy.RawKernel(CODE, "step")

    def sizes(self, shapes):
        return {"y": shapes["x"]}

    def launch(self, inputs, outputs):
        x, y = inputs["x"], outputs["y"]
        grid = (max(1, -(-x.size // BLOCK)),)
        for number in range(STEPS):
            self._step(grid, (BLOCK,), (x, y, np.uint64(x.size), np.int32(number == STEPS - 1)))
