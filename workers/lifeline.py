"""Ties a child process to the one that started it, so that no child outlives its node, whatever way that ends.

The kernel sends the signal; nobody has to be alive to do so. Read `workers/executor.py` next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent dies; ends at once if that happened before the call."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)
