"""Notes its process and the time in a file, then does what it is told: an executor that dies, stops or hangs.

`what` is one of: `ok`, `sleep MS`, `kill` (SIGKILL to itself), `kill once` (unless the note was there before),
`exit 0`, `leave` (SystemExit), `stop` (SIGSTOP to itself).
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


class Model:
    def __init__(self, config):
        pass

    def execute(self, inputs, outputs):
        verb, _, value = inputs["what"][0].decode().partition(" ")
        note = Path(inputs["note"][0].decode())
        seen = note.exists()
        with note.open("ab", 0) as file:
            file.write(b"%d %d\n" % (os.getpid(), time.monotonic_ns()))
        if verb == "sleep":
            time.sleep(int(value) / 1000)
        elif verb == "kill" and not (seen and value == "once"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "exit":
            os._exit(int(value))
        elif verb == "leave":
            sys.exit(0)
        elif verb == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        outputs["pid"] = np.array([os.getpid()])
