"""A reply of as many bytes as it is asked for."""

import numpy as np


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        y = outputs.allocate("y", np.uint8, (int(inputs["n"][0]),))
        y[:] = 7
