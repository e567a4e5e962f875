"""Times copies of its input, where it lies, to the GPU."""

import cupy
import numpy as np

COPIES = 5


class Model:
    def __init__(self, config):
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def execute(self, inputs, outputs):
        x = inputs["x"]
        there = cupy.empty(x.shape, np.float32)
        taken = []
        for _ in range(COPIES):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(self._stream)
            there.set(x, stream=self._stream)
            end.record(self._stream)
            end.synchronize()
            taken.append(cupy.cuda.get_elapsed_time(begin, end))
        if not bool((there[-4:].get() == x[-4:]).all()):
            raise RuntimeError("what arrived on the GPU is not what was sent")
        outputs["h2d_ms"] = np.array(taken)

    def warm_up(self):
        cupy.empty(1).fill(0)
