"""A process that may lock little memory, as a plain user: `python -m tests.softroce.plain BYTES MODULE WORDS...`.

It stays this one process, whose number stands in a file: root may raise its limit while it runs. Read
`tests/softroce/test_memlock.py` next.
"""

from __future__ import annotations

import os
import resource
import runpy
import sys
import tempfile
from pathlib import Path

PLAIN = 1000
"""The guests' plain user."""
PID_FILE = Path("/tmp/plain.pid")


def main() -> None:
    """Becomes the module."""
    nbytes, module = int(sys.argv[1]), sys.argv[2]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))
    PID_FILE.write_text(str(os.getpid()))
    os.setgroups([])
    os.setgid(PLAIN)
    os.setuid(PLAIN)
    os.environ["XDG_RUNTIME_DIR"] = os.environ["HOME"] = tempfile.mkdtemp(prefix="plain-")
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
