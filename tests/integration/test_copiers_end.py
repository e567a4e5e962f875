"""Copiers of shared memory as processes: they end with their front door, and without a word."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from frontdoor import copier
from tests.integration.nodes import ROOT, wait_until


def test_copiers_end_with_their_parent_a_stopped_one_too() -> None:
    command = [sys.executable, "-m", "tests.integration.shm_attack", "orphans"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
        finally:
            parent.kill()
            Path(f"/dev/shm/osp_test_attack_{parent.pid}").unlink(missing_ok=True)
    killed_s = time.monotonic()
    wait_until(lambda: not any(lives(pid) for pid in pids), 20.0)
    assert time.monotonic() - killed_s < 10.0, "at once, on a machine that is not busy"


def test_a_copier_whose_answer_nobody_reads_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-I", "-S", copier.__file__, str(theirs.fileno()), str(os.getpid())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE)
    ours.send(copier.words(copier.DO_COPY, 1, 0, 2, 0, 1))
    assert select.select([ours], [], [], 20.0)[0], "it has answered"
    ours.close()
    assert (process.communicate(timeout=20.0)[1], process.returncode) == (b"", 0)


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "XZ"
    return False
