"""The caller's end of the local wire, as a `Channel`: blocking calls on pooled sockets, asynchronous ones on one
for each loop that makes them.

All sockets belong to one session with one arena. When any of them ends without our doing, the session is over: every
caller wakes with NodeLost, and the arena lends nothing any more, since an executor may still be writing to it. This
module never retries and never chooses: `fabric/link` does. Read `fabric/local/pool.py` and `fabric/local/mux.py`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError, ProtocolError, ReplyTooLarge, StaleEpoch
from fabric.hello import Hello
from fabric.local.begun import begin
from fabric.local.exchange import (
    GROWTHS_MAX,
    Places,
    read_final,
    request_frame,
    small_reply_bytes,
    take_leased_reply,
)
from fabric.local.loops import LoopSockets
from fabric.local.mux import MuxSocket
from fabric.local.page import LocalPage
from fabric.local.pool import SocketPool
from fabric.local.session import join_session, open_session
from fabric.local.unclaimed import Unclaimed
from fabric.reply_sizes import ReplySizes
from fabric.transport import Answer, Call, PeerFacts, WireName
from fabric.watcher import Watcher

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.frame import Load
    from fabric.hello import Welcome
    from fabric.load_page import Reading
    from fabric.memory.arena import Arena
    from fabric.message import RequestId


class LocalChannel:  # mutable: open, then closed
    """A session with a node of this host. Made by `open`."""

    def __init__(self, path: str, hello: Hello, sock: socket.socket, welcome: Welcome, arena: Arena) -> None:
        self._client_id = hello.client_id
        self._peer = PeerFacts(welcome.node_id, welcome.node_epoch, welcome.version)
        self._arena = arena
        self._page = LocalPage(path)
        self._sizes = ReplySizes()
        lost = _weakly(self)
        join = partial(join_session, path, replace(hello, session=welcome.session))
        self._unclaimed = Unclaimed()
        self._watcher = Watcher()
        self._mux = MuxSocket(sock, lost, self._unclaimed)
        self._loops = LoopSockets(join, lost, self._unclaimed)
        sockets_max = max(1, welcome.sockets_max - 1)  # one of them is the session's first
        self._pool = SocketPool(arena, welcome.node_epoch, self._sizes, sockets_max, join, lost, self._unclaimed)

    @classmethod
    def open(
        cls,
        path: str,
        client_id: int,
        deadline: Deadline,
        arena_bytes: int = 0,
        expect: tuple[str, int] | None = None,
    ) -> LocalChannel:
        """Opens a session on the socket `path`. `arena_bytes` is what the arena should have, 0 for the node's choice;
        `expect` is the (node id, node epoch) that discovery gave.

        Raises Unavailable when nobody listens there, StaleEpoch when it is another node or another life of it,
        AccessDenied, ResourceExhausted, DeadlineExceeded or ProtocolError. The fate is never_ran with all of them.
        """
        hello = Hello(client_id, arena_bytes)
        sock, welcome, arena = open_session(path, hello, deadline)
        if expect is not None and expect != (welcome.node_id, welcome.node_epoch):
            sock.close()
            arena.close_fd()
            raise StaleEpoch(
                f"{path} is node {welcome.node_id} in epoch {welcome.node_epoch}, not {expect[0]} in {expect[1]};"
                " ask discovery again"
            )
        if arena.nbytes < arena_bytes:
            arena.table.remedy = f"raise arena_bytes_max in the node.toml of {welcome.node_id}"
        return cls(path, hello, sock, welcome, arena)

    @property
    def wire(self) -> WireName:
        """Always the local wire."""
        return WireName.LOCAL

    @property
    def peer(self) -> PeerFacts:
        """What the node said when the session opened."""
        return self._peer

    @property
    def arena(self) -> Arena:
        """The session's arena: inputs staged in leases of it are not copied again."""
        return self._arena

    @property
    def alive(self) -> bool:
        """False once the channel is closed or the session is known to be lost."""
        return not self._pool.closing

    def read_page(self, deadline: Deadline) -> Reading:  # noqa: ARG002 - that of all wires; this one never waits
        """What this client reads of the node's load page; nobody at the node is asked. Raises Unavailable, NodeLost."""
        return self._page.read(self._client_id, self._peer.node_epoch)

    @property
    def zombies(self) -> int:
        """Calls that were given up and still hold their slots, because their final frame has not come."""
        return self._pool.zombies + sum(mux.zombies for mux in self._muxes())

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError; whatever ends the wait early, an
        interrupt too, the node is told so, and the call's slots stay out of use until its final frame came."""
        if self._unclaimed.any:
            self._unclaimed.acknowledge(call.ack_no, time.monotonic())
        return self._pool.call(call, deadline)

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt from the running loop (the channel's own, or one for which `serves` says so), and waits.
        Raises OverspillError; when the await is cancelled, the node is told so, and the call's slots stay out of use
        until its final frame came."""
        if self._pool.closing:
            raise NodeLost(f"the channel is closed ({self._pool.closing}); choose another", Fate.NEVER_RAN)
        if self._unclaimed.any:
            self._unclaimed.acknowledge(call.ack_no, time.monotonic())
        mux = self._loops.of(asyncio.get_running_loop()) or self._mux
        mux.attach()
        await mux.until_settled(call.id, deadline)
        places = Places(self._arena)
        try:
            places.put_input(call)
            places.put_reply(max(self._sizes.guess(call), small_reply_bytes(self._arena)))
            for _ in range(GROWTHS_MAX):
                budget_us = deadline.remaining_us(time.monotonic())
                if not budget_us:
                    told = "the time was over before the request was sent; give more time"
                    raise DeadlineExceeded(told, Fate.NEVER_RAN)
                frame = request_frame(call, self._peer.node_epoch, budget_us, places)
                final = read_final(await mux.ask(call.id, frame, places, deadline), call.id, places)
                if not isinstance(final, ReplyTooLarge):
                    break
                places.grow_reply(final.needed_bytes)
                self._sizes.learn(call, final.needed_bytes)  # what finds no room must not keep smaller replies out
        except ProtocolError as error:
            self.abort(str(error))
            places.give_up()
            raise
        except BaseException:  # cancelled or failed: nobody here wants the slots, the mux keeps those that are lent
            places.give_up()
            raise
        places.settle()
        if isinstance(final, OverspillError):
            places.let_go()
            try:
                raise final
            finally:
                del final  # else error, traceback and this frame hold each other
        return take_leased_reply(*final, places)

    def begin(self, call: Call, budget_us: int, done: Callable[[Answer | OverspillError], None]) -> bool:
        """The same without a coroutine, on the running loop: `done` gets the outcome. False where it must be awaited
        instead; nothing was sent then. See `fabric.begins.Begins`."""
        if self._pool.closing or self._unclaimed.any:
            return False
        loop = self._mux.loop
        if loop is None or loop.is_closed():  # else it is the running one: to ask which that is, is a system call
            self._mux.attach()
        epoch = self._peer.node_epoch
        return begin(self._mux, self._arena, epoch, self._sizes, call, budget_us, done, self.abort)

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether calls may be awaited on `loop`, which is not the channel's own."""
        return self._loops.of(loop) is not None

    def welcomes(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether `serve` is to be asked for `loop`: not twice, and not again at once where it did not succeed."""
        return self._loops.wanted(loop)

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Opens a socket for calls that are awaited on `loop`: it may block for seconds, and may not succeed."""
        self._loops.open(loop)

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a running call, whose own outcome still comes. Safe from any thread."""
        self._pool.cancel(request)
        for mux in self._muxes():
            mux.cancel(request)

    async def ping(self, deadline: Deadline) -> Load:
        """Asks the node's own loop for a sign of life. Raises DeadlineExceeded or NodeLost."""
        self._mux.attach()
        self._pool.reap()  # pings come in a steady beat, so no zombie stays longer than one
        self._unclaimed.acknowledge(0, time.monotonic())  # and no late reply much longer than it may be asked again
        self._loops.sweep()
        return await self._mux.ping(self._client_id, deadline)

    def watch(self, doubted: Callable[[], None]) -> None:
        """`doubted()` is called, from any thread, when the session is over; the running loop sees its end."""
        self._watcher.watch(doubted)
        with suppress(NodeLost):  # it is over already
            self._mux.attach()

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, then ends the session. On the channel's
        own loop it does not wait for asynchronous calls, which could not end meanwhile."""
        self._pool.closing = self._pool.closing or "closed by its owner"
        self._pool.wait_idle(deadline)
        if not self._on_own_loop():
            while (
                any(mux.running for mux in self._muxes())
                and not self._mux.reason
                and not deadline.expired(time.monotonic())
            ):
                time.sleep(min(0.002, deadline.remaining_s(time.monotonic())))
        self.abort("closed by its owner")

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises NodeLost with this reason. Safe from any thread, twice too."""
        self._arena.retire()
        self._pool.end(reason)
        self._mux.end(reason)
        self._loops.end(reason)
        self._page.close()
        self._arena.close_fd()
        self._watcher.end()

    def _on_own_loop(self) -> bool:
        with suppress(RuntimeError):
            running = asyncio.get_running_loop()
            return any(running is mux.loop for mux in self._muxes())
        return False

    def _awaited(self) -> bool:
        return any(mux.running for mux in self._muxes())

    def _muxes(self) -> tuple[MuxSocket, ...]:
        return (self._mux, *self._loops.all)

    def __repr__(self) -> str:
        state = "open" if self.alive else f"closed: {self._pool.closing}"
        return f"<LocalChannel to {self._peer.node_id} epoch {self._peer.node_epoch}, {state}>"


def _weakly(channel: LocalChannel) -> Callable[[str], None]:
    """`channel.abort` for those whom the channel owns: a strong one would keep a closed arena mapped until the garbage
    collector finds the circle."""
    reference = weakref.ref(channel)

    def lost(reason: str) -> None:
        owner = reference()
        if owner is not None:
            owner.abort(reason)

    return lost
