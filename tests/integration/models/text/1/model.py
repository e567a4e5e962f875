"""Upper case: BYTES in and out."""

import numpy as np


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        outputs["out"] = np.array([item.upper() for item in inputs["text"]], dtype=object)
