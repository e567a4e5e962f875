"""An executor that was killed and cannot go yet: the kernel is at a call of its driver, and no signal ends that.

What stands in for the driver is a tracer: a process that it watches stops on its way out until it is let go. Meanwhile
its requests are answered by the standby, those too that the process had in hand and not begun.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.errors import OverspillError
from tests.integration.bad_node import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.fake_cards import FakeNode

pytestmark = [
    pytest.mark.long,
    pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies"),
]

SEIZE, CONTINUE = 0x4206, 7
TRACE_EXIT = 1 << 6
"""PTRACE_SEIZE, PTRACE_CONT and PTRACE_O_TRACEEXIT of ptrace(2)."""
BEHIND = 4
ROUNDS = 3
ANSWERED_S = 10.0


class Tracer(threading.Thread):
    """Holds a process on its way out. Everything is asked by the thread that began it, as the kernel wants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.began = threading.Event()
        self.refused = False
        self.let_go = threading.Event()
        self.start()
        assert self.began.wait(10.0)

    def run(self) -> None:
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.refused = ptrace(SEIZE, self._pid, None, TRACE_EXIT) != 0
        self.began.set()
        if not self.refused:
            self.let_go.wait(60.0)
            ptrace(CONTINUE, self._pid, None, None)

    @property
    def holds(self) -> bool:
        """Whether it has stopped the process on its way out (proc(5): t, stopped by a tracer)."""
        return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "t"


def test_what_it_had_not_begun_is_answered_while_it_lingers(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node("sleep", standby="full", extra="quarantine_faults = 0\n")
    for _ in range(10):
        node.ask()
    for round_no in range(1, ROUNDS + 1):
        assert wait_until(lambda wanted=round_no: node.node.log.count("has a standby") == wanted, 30.0), node.node.log
        held = Tracer(node.node.executors()[0])
        if held.refused:
            pytest.skip("this kernel lets nobody trace a process of its own")
        try:
            one_round(node, held)
        finally:
            held.let_go.set()


def one_round(node: FakeNode, held: Tracer) -> None:
    """One request meets a run without an end, and some stand behind it, in the executor's hands and elsewhere."""
    answered: list[float] = []
    flag = node.folder / "sleep"
    node.break_next("sleep")
    first = threading.Thread(target=met_by, args=(node,))
    first.start()
    while flag.exists():
        pass  # what comes within 5 ms is still given to it
    others = [threading.Thread(target=lambda: answered.append(node.ask()[0])) for _ in range(BEHIND)]
    for other in others:
        other.start()
    assert wait_until(lambda: held.holds, 20.0), node.node.log
    assert wait_until(lambda: len(answered) == BEHIND, ANSWERED_S), "they wait for a process that does not go"
    assert held.holds
    held.let_go.set()
    for thread in (first, *others):
        thread.join(30.0)


def met_by(node: FakeNode) -> None:
    """Asks for a run that never ends, in a time that is soon over."""
    with suppress(OverspillError):
        node.ask(timeout_s=0.5)
