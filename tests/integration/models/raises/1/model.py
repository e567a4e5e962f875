"""Raises what it is told to."""

import numpy as np


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        what = inputs["what"][0].decode()
        if what == "ValueError":
            raise ValueError("what is asked of it cannot be had; ask for something else")
        if what == "MemoryError":
            raise MemoryError
        if what == "multiline":
            raise RuntimeError("first line\n  second line\n\tthird line " + "long " * 200)
        if what == "KeyError":
            {}["missing"]
        outputs["ok"] = np.array([True])
