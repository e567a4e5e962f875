"""A router's core and links, nodes that live and die, and a Consul that goes away: all real but time and the wires.

The core, its links with their dials and their supervision, the way a request is driven, the follower and the catalogue
are those of the product. Simulated are what lies outside: the agent's answers, and what a node does with a call.
Nothing here decides anything. Read `tests/sim/test_registry_outage.py` next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from discovery.agent.follower import Apply, Ask, Follower
from discovery.agent.url import ConsulTimes
from discovery.catalogue import Answered, Catalogue, Failed
from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError
from fabric.frame import Load
from router.aio import _drive
from router.config import RouterConfig
from router.core import Core
from router.links import Links
from tests.unit.router.fleet import NamedLink, answer, body, instance

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from discovery.instance import Change, Instance
    from discovery.registry import Registration
    from fabric.deadline import Deadline
    from fabric.transport import Answer, Call
    from router.workers import WorkerLink
    from tests.sim.virtual import VirtualLoop

TIMES = ConsulTimes()
SERVICE_S = 0.03
CONNECT_S = 0.002


class Agent:  # mutable: what it answers changes
    """A Consul agent: `up`, without its servers (`memory`), or `gone`."""

    def __init__(self, *entries: Instance) -> None:
        self.entries = {one.node_id: one for one in entries}
        self.index = 500
        self.state = "up"
        self._last_contact_s = 0.0
        self._changed = asyncio.Event()

    def become(self, state: str) -> None:
        """It loses its servers, or goes, or comes back."""
        self.state = state
        self._last_contact_s = asyncio.get_running_loop().time()
        self._wake()

    def restart_empty(self) -> None:
        """It comes back without its data, with a lower index."""
        self.entries, self.index = {}, 10
        self.become("up")

    def enter(self, one: Instance) -> None:
        """A node enters itself."""
        self.entries[one.node_id] = one
        self.index += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, ask: Ask) -> tuple[int, Answered]:
        """One read of the health list. Raises OSError."""
        await asyncio.sleep(0.001)
        if self.state == "up" and ask.index == self.index:
            try:
                async with asyncio.timeout(ask.wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if self.state == "gone" or (self.state == "memory" and ask.index):
            raise OSError("refused")
        age_s = asyncio.get_running_loop().time() - self._last_contact_s if self.state == "memory" else 0.0
        return self.index, Answered(tuple(self.entries.values()), age_s=age_s)


class Watch:  # mutable: follows
    """Follows the agent as `discovery/agent/watch.py` does, on the loop."""

    def __init__(self, agent: Agent, on_changes: Callable[[tuple[Change, ...]], None], seed: int) -> None:
        self._agent, self._on_changes = agent, on_changes
        self._clock = asyncio.get_running_loop().time
        self.catalogue = Catalogue(TIMES.guards)
        self._follower = Follower(TIMES, Random(seed), self._clock())
        on_changes(self.catalogue.handle(Answered(tuple(agent.entries.values())), self._clock()))
        self._task = asyncio.ensure_future(self._run())

    def age_s(self) -> float:
        return self.catalogue.age_s(self._clock())

    def trouble(self) -> str:
        return "" if self._follower.proven else "discovery is stale"

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        ask = self._follower.begin(self._clock())
        while True:
            await asyncio.sleep(ask.pause_s)
            ask = self._follower.ask(ask, self.catalogue.look_again_s(self._clock()))
            try:
                index, answered = await self._agent.read(ask)
            except OSError:
                self.catalogue.handle(Failed("refused"), self._clock())
                commands = self._follower.failed(self._clock())
            else:
                commands = self._follower.answered(index, 0.001, self._clock())
                if any(isinstance(command, Apply) for command in commands):
                    self._on_changes(self.catalogue.handle(answered, self._clock()))
            last = commands[-1]
            assert isinstance(last, Ask)
            ask = last


class Registry:
    """What a router opens."""

    def __init__(self, agent: Agent, seed: int) -> None:
        self._agent, self._seed = agent, seed
        self.opened: Watch | None = None

    def read(self) -> tuple[Instance, ...]:
        return tuple(self._agent.entries.values())

    def watch(self, on_changes: Callable[[tuple[Change, ...]], None]) -> Watch:
        self.opened = Watch(self._agent, on_changes, self._seed)
        return self.opened

    def register(self, instance: Instance) -> Registration:
        raise AssertionError("a router enters nobody")


class Node:  # mutable: lives, works, dies
    """A node that takes each call for 30 ms. A dead one ends its links, and what is out on them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive, self.doomed = True, False
        self.links: list[NodeLink] = []
        self.served = 0

    def cut(self) -> None:
        """All links to it end, whether it lives or not."""
        links, self.links = self.links, []
        for link in links:
            link.lost()

    def die(self) -> None:
        self.alive = False
        self.cut()


def _no_thread(coroutine: Coroutine[Any, Any, Answer]) -> Future[Answer]:
    """Nothing is hedged here, so nothing needs a thread."""
    coroutine.close()
    raise AssertionError("a hedged request in a world of one loop")


class NodeLink(NamedLink):
    """A link to such a node."""

    def __init__(self, node: Node, may_have_died: Callable[[], None]) -> None:
        super().__init__(node.name)
        self._node, self._may_have_died = node, may_have_died
        self._out: set[asyncio.Future[None]] = set()

    def lost(self) -> None:
        """The end of the stream: whoever waits on it is told, then the router."""
        self.alive = False
        for waiting in tuple(self._out):
            if not waiting.done():
                waiting.set_exception(NodeLost("its link ended; send it again", Fate.UNKNOWN))
        self._may_have_died()

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        loop = asyncio.get_running_loop()
        if not self.alive:
            raise NodeLost("its link has ended; send it again", Fate.NEVER_RAN)
        ended: asyncio.Future[None] = loop.create_future()
        self._out.add(ended)
        node = self._node
        timer = loop.call_later(SERVICE_S, lambda: None if ended.done() else ended.set_result(None))
        if node.doomed:
            loop.call_later(SERVICE_S / 2, node.die)
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await ended
        except TimeoutError:
            raise DeadlineExceeded("its time is over; give it more", Fate.UNKNOWN) from None
        finally:
            timer.cancel()
            self._out.discard(ended)
        node.served += 1
        return answer(Load(node.served, node.served, 0, 1), compute_us=int(SERVICE_S * 1e6))


class OnLoop:
    """The background of a router whose callers live on the same loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def submit(self, coroutine: Coroutine[object, object, None]) -> Future[None]:
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task  # type: ignore[return-value]


class World:  # mutable: a router, its nodes, its registry
    """A router over nodes that an agent knows. Made and used on a running virtual loop."""

    def __init__(self, loop: VirtualLoop, *names: str, seed: int = 1) -> None:
        self.loop = loop
        self.nodes = {name: Node(name) for name in names}
        self.agent = Agent(*(instance(name) for name in names))
        self.core = Core(7, RouterConfig(seed=seed), None, Random(seed), loop.time)
        self.background = OnLoop()
        self.links = Links(self.core, self.background, self._open)
        self.registry = Registry(self.agent, seed)
        self.links.start(self.registry)
        self.served: Counter[str] = Counter()
        self.failed: list[str] = []
        self.retried = 0

    async def _open(self, found: Instance, may_have_died: Callable[[], None]) -> WorkerLink:
        await asyncio.sleep(CONNECT_S)
        node = self.nodes[found.node_id]
        if not node.alive:
            raise NodeLost("nothing listens there; start it", Fate.NEVER_RAN)
        link = NodeLink(node, may_have_died)
        node.links.append(link)
        return link

    async def request(self, model: str = "plan", timeout_s: float = 1.0) -> None:
        """One request, as the asyncio router sends it."""
        try:
            offer, deadline = self.core.admit(model, timeout_s, 0)
            life = self.core.life(model, body(), deadline, 0, offer.idempotent)
            reply = await _drive(self.core, life, None, _no_thread)
        except OverspillError as error:
            self.failed.append(f"{self.loop.time():.3f} s: {type(error).__name__}: {error}")
            return
        assert self.loop.time() <= deadline.at_s + 0.1
        self.served[reply.trace.worker] += 1
        self.retried += reply.trace.attempts > 1

    async def load(self, seconds: float, per_s: float) -> None:
        """Sends so many requests each second, whether earlier ones have ended or not, and waits for all."""
        out = []
        for _ in range(int(seconds * per_s)):
            out.append(asyncio.ensure_future(self.request()))
            await asyncio.sleep(1.0 / per_s)
        await asyncio.gather(*out)

    async def close(self) -> None:
        self.links.end_watch()
        self.core.close()
        for task in tuple(self.background.tasks):
            task.cancel()
        await asyncio.gather(*self.background.tasks, return_exceptions=True)
        await asyncio.sleep(0)
