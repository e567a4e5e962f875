"""Writes every byte of its output: one copy of the input, into the reply's own memory."""

import numpy as np


class Model:
    """`y` is a copy of `x`."""

    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        """`x`, `y`: FP32 [n]."""
        x = inputs["x"]
        np.copyto(outputs.allocate("y", np.float32, x.shape), x)
