"""The caller's end of one simulated connection: the `Channel` contract over a network that loses and damages frames.

A caller hands its question to the clock's thread and waits for the end, blocking or on an asyncio loop. This module
never sends a frame: `fabric/sim/flights.py` does. Read `fabric/sim/world.py` next.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.errors import Cancelled, Fate, NodeLost, OverspillError
from fabric.frame import Kind, Load
from fabric.hello import Welcome
from fabric.sim.flight import Flight
from fabric.transport import Answer, Call, PeerFacts, WireName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.sim.flight import Result
    from fabric.sim.flights import Flights
    from fabric.sim.pump import Pump
    from fabric.sim.session import SimSession

_LATE_S = 1.0
"""The clock ends a call at its deadline; a caller waits this much longer before it calls that a bug."""


class SimChannel:  # mutable: a connection
    """An open simulated connection; made by `fabric/sim/world.py`."""

    def __init__(self, pump: Pump, flights: Flights) -> None:
        self._pump, self._flights = pump, flights
        self._facts = PeerFacts("", 0, 0)

    @property
    def wire(self) -> WireName:
        """Always `sim`."""
        return WireName.SIM

    @property
    def peer(self) -> PeerFacts:
        """What the node said in its WELCOME."""
        return self._facts

    @property
    def arena(self) -> Arena | None:
        """The memory that the node writes large replies to, if this channel has one."""
        return self._flights.arena

    @property
    def alive(self) -> bool:
        """False once closed or lost."""
        return not self._flights.closing

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError."""
        answer = self._ask(call, deadline)
        assert isinstance(answer, Answer), "a request is answered by an answer"
        return answer

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same on an asyncio loop; cancelling it cancels the request at the node."""
        answer = await self._ask_async(call, deadline)
        assert isinstance(answer, Answer), "a request is answered by an answer"
        return answer

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a running call; the call's own outcome still comes."""
        self._pump.post(lambda: self._flights.cancel(request))

    async def ping(self, deadline: Deadline) -> Load:
        """Asks the node's own code for a sign of life. Raises OverspillError."""
        load = await self._ask_async(Kind.PING, deadline)
        assert isinstance(load, Load), "a ping is answered by a load"
        return load

    def watch(self, doubted: Callable[[], None]) -> None:
        """`doubted()` is called, from the clock's thread, when the connection is over."""
        self._flights.watcher.watch(doubted)

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, then aborts."""
        self._flights.closing = True
        self._pump.post(self._flights.see_idle)
        self._pump.wait(self._flights.idle, deadline.at_s)
        self.abort("the channel was closed; open another one")

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises `NodeLost`. Safe from any thread, twice too."""
        self._flights.closing = True
        self._pump.post(lambda: self._flights.lose(reason))

    def open(self, session: SimSession, deadline: Deadline) -> None:
        """Greets the node. Raises OverspillError; the channel is then closed."""
        self._flights.attach(session)
        try:
            welcome = self._ask(Kind.HELLO, deadline)
        except OverspillError as error:
            self.abort("the node did not answer the greeting")
            error.fate = Fate.NEVER_RAN  # nothing but a greeting was sent
            raise
        assert isinstance(welcome, Welcome), "a hello is answered by a welcome"
        self._facts = PeerFacts(welcome.node_id, welcome.node_epoch, welcome.version)
        self._flights.node_epoch = welcome.node_epoch

    def _ask(self, call: Call | Kind, deadline: Deadline) -> Result:
        flight = Flight(call, deadline)
        self._pump.post(lambda: self._flights.launch(flight))
        try:
            ended = self._pump.wait(flight.done, deadline.at_s + _LATE_S)
        except BaseException:
            # Whatever interrupts the wait (Ctrl-C, mostly), the node must not go on for nobody.
            self._pump.post(lambda: self._flights.give_up(flight, Cancelled("the caller was interrupted")))
            raise
        if not ended:  # the pump was closed under it
            raise NodeLost("the simulated network was closed while the request was out")
        return self._result(flight)

    async def _ask_async(self, call: Call | Kind, deadline: Deadline) -> Result:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        flight = Flight(call, deadline)

        def settle() -> None:
            if not ended.done():
                ended.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(settle)

        flight.on_done = tell
        self._pump.post(lambda: self._flights.launch(flight))
        try:
            await ended
        except asyncio.CancelledError:
            self._pump.post(lambda: self._flights.give_up(flight, Cancelled("the caller gave the request up")))
            raise
        return self._result(flight)

    @staticmethod
    def _result(flight: Flight) -> Result:
        result, flight.result = flight.result, None
        assert result is not None, "a flight that ended has a result"
        if not isinstance(result, OverspillError):
            return result
        try:
            raise result
        finally:
            del result  # else error, traceback and this frame hold each other, and the arena, until a collection
