"""Twice the input; in its first place how often an input with this first number was executed: 1, unless twice."""


class Model:
    def __init__(self, config):
        self.seen = {}

    def execute(self, inputs, outputs):
        x = inputs["x"]
        number = int(x[0])
        self.seen[number] = self.seen.get(number, 0) + 1
        y = outputs.allocate("y", x.dtype, x.shape)
        y[:] = 2 * x
        y[0] = self.seen[number]
