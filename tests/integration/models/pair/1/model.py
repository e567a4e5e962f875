"""Two inputs of different kinds, so that each of their names, dtypes, shapes and ranks can be wrong."""

import numpy as np


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        outputs["sum"] = np.array([inputs["a"].sum() + inputs["b"].sum()], np.float32)
