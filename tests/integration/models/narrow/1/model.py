"""Sleeps; at most one request may wait for it."""

import time


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        time.sleep(int(inputs["ms"][0]) / 1000)
        outputs["ms"] = inputs["ms"]
