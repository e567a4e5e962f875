"""The contract suite's node inside a guest: the echo process, and behind it one port, both in the guest that is named.

The host starts and signals them, so that whatever happens to the network they can be reached. It knows no wire.
Read `tests/softroce/worlds.py` next.
"""

from __future__ import annotations

import itertools
import signal
from contextlib import suppress

from tests.softroce.lab import here

START_S = 60.0
_NUMBERS = itertools.count(1)


class GuestNode:
    """Two processes that live and die together. `words` gives what the port wants to know of a node."""

    node_id = "echo"

    def __init__(self, where: int, port_module: str, *extra: str) -> None:
        self.where = where
        self.node_epoch = 0
        self.port = 0
        self._module, self._extra = port_module, extra
        self._path = f"/tmp/echo-{next(_NUMBERS)}.sock"
        self._echo: here.Process | None = None
        self._port: here.Process | None = None
        self.start()

    @property
    def echo(self) -> here.Process:
        """The node."""
        assert self._echo is not None
        return self._echo

    @property
    def wire(self) -> here.Process:
        """Its port."""
        assert self._port is not None
        return self._port

    def start(self) -> None:
        """A new life, in a new epoch, at the same port where the wire has one."""
        self.node_epoch += 1
        epoch = str(self.node_epoch)
        self._echo = here.Process(self.where, "tests.contract.echo_node", self._path, self.node_id, epoch)
        assert self._echo.line(START_S) == "ready", "the echo node did not start"
        words = [word.replace("PORT", str(self.port)) for word in self._extra]
        self._port = here.Process(self.where, self._module, self._path, self.node_id, epoch, *words)
        said = self._port.line(START_S)
        assert said.isdecimal(), f"the port did not start: {said}"
        self.port = int(said)

    def arm(self, what: str) -> None:
        """Tells the node what to do wrong."""
        self.echo.write(f"{what}\n")
        assert self.echo.line(START_S) == "armed", "the echo node does not listen"

    def signal(self, number: int) -> None:
        """To both."""
        for process in (self.wire, self.echo):
            process.signal(number)

    def kill(self) -> None:
        """SIGKILL to both, and waits for the end."""
        for process in (self.echo, self.wire):
            with suppress(here.AskError):  # it has ended
                process.signal(signal.SIGKILL)
        for process in (self.echo, self.wire):
            assert process.wait(START_S) is not None

    def serves(self) -> bool:
        """Whether both are there."""
        return self.echo.alive() and self.wire.alive()

    def end(self) -> None:
        """Ends them in an orderly way, or at all."""
        for process in (self.wire, self.echo):
            with suppress(here.AskError):  # it has ended, or does just now
                process.signal(signal.SIGCONT)
                process.end_input()
            if process.wait(10.0) is None:
                with suppress(here.AskError):
                    process.signal(signal.SIGKILL)
                process.wait(START_S)
