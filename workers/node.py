"""A node from start to end: it puts the parts together, publishes how it is, and drains when it is told to stop.

The process is one plain epoll loop without numpy or gRPC: whatever may block or hold the interpreter is a child. A
request goes by `reception`, `admission`, `shell`, `executor`; none of it is decided here. Read `workers/reception.py`.
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.instance import Instance, Readiness
from fabric.errors import AddressInUse, ConfigError, Draining, Fate, OverspillError
from fabric.frame import VERSION
from fabric.host import host_id
from fabric.local.control import control_path
from fabric.local.listener import ListenerLimits, LocalListener
from fabric.local.reactor import LOOK_S, Reactor
from fabric.peer import PeerFacts
from workers.admission import Admission
from workers.bulletin import public_host, tell_state, tell_stopped, warn_at_start
from workers.cards import NodeCards
from workers.control import ControlListener
from workers.crew import Crew
from workers.desks import ExecutorDesk
from workers.leaving import Leaving
from workers.library import ModelLibrary
from workers.load_writer import LoadWriter
from workers.ports import Ports
from workers.presence import Presence
from workers.reception import Reception
from workers.repository import read_repository
from workers.runtime import SOCKET, make_folder
from workers.shell import ExecutorShell
from workers.standing import Condition, readiness

if TYPE_CHECKING:
    from types import FrameType

    from workers.config import NodeConfig

_log = logging.getLogger(__name__)
DRAIN_LOOK_S = 0.02
STOP_TIMEOUT_S = 5.0
"""From the end of the last request: time for the port and the executors to end by themselves."""
PARENT_LOOK_S = 0.25


class Node:  # mutable: owns all processes, sockets and timers of the node
    """One life of a node. Raises ConfigError or AddressInUse when it cannot be as configured."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._entries = read_repository(config.models, may_be_empty=config.model_control == "explicit")
        self._node_id = config.node_id or f"{socket.gethostname()}-{secrets.token_hex(3)}"
        self._epoch = time.time_ns()  # grows from life to life, unless the clock is set back by more than the gap
        self._reactor = Reactor(LOOK_S)
        self._was_ready = False
        self._draining = False
        self._finishing = False
        self._failure: OverspillError | None = None
        self._published: Instance | None = None
        self._presence = Presence(config.registry) if config.registry else None
        self._own_folder = None if config.runtime_dir else make_folder(f"{config.registry} {self._node_id}")
        self._folder = Path(config.runtime_dir) if self._own_folder is None else self._own_folder.path
        self._socket_path = str(self._folder / SOCKET)
        self._cards = NodeCards(self._reactor, config, self._folder)
        desks = tuple(ExecutorDesk(number) for number in range(len(self._cards.seats)))
        self._admission = Admission((), desks, config.queue_max, config.resident_bytes_max)
        self._reception = Reception(self._reactor, self._epoch, self._admission, self._publish_soon)
        self._library = self._make_library()
        self._crew = self._reception.crew = self._make_crew()
        self._library.use(self._crew)
        facts = PeerFacts(self._node_id, self._epoch, VERSION)
        limits = ListenerLimits(tenants_max=config.tenants_max, arena_bytes_max=config.arena_bytes_max)
        try:
            self._listener = LocalListener(self._reactor, self._socket_path, facts, self._reception, limits)
        except AddressInUse:
            if config.runtime_dir:
                raise
            # The folder is made of the registry and the id, so whoever listens there has both.
            raise AddressInUse(
                f"the node id {self._node_id!r} is taken by a running node of the same registry on this host;"
                " stop that one, or give another --node-id"
            ) from None
        try:
            self._page = LoadWriter(self._reactor, self._folder, self._epoch, self._admission, self._reception)
            place, memory = control_path(self._socket_path), self._admission.card_memory
            self._control = ControlListener(self._reactor, place, self._library, memory, self._reception.traced)
        except OSError as error:
            why = error.strerror or str(error)  # a path that is too long has no number of the system's
            raise ConfigError(f"{self._folder} cannot be used ({why}); set runtime_dir to a short one") from None
        self._port = self._make_port() if "rpc" in config.wires or config.frontdoor else None

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT, then drains; gives the exit code. Raises what made a start impossible."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        config = self._config
        rpc_port = config.rpc_host_port[1] if "rpc" in config.wires else None
        warn_at_start(self._entries, config.registry, config.inject, rpc_port)
        if self._config.exit_with_parent:
            self._look_for_parent(os.getppid())
        try:
            self._crew.start()
            if self._port is not None:
                self._port.start()
            self._publish()
            self._reactor.run()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure
        tell_stopped(self._node_id)
        return 0

    # What it is made of.

    def _make_library(self) -> ModelLibrary:
        config = self._config
        explicit = config.model_control == "explicit"
        library = ModelLibrary(
            self._reactor, config.models, self._admission, self._reception.give_up_waiting, self._publish_soon,
            self._cards.spots, explicit=explicit, bytes_max=config.model_bytes_max,
        )  # fmt: skip
        library.begin(self._entries, frozenset(config.load_models) if explicit else None)
        return library

    def _make_crew(self) -> Crew:
        settings, sources = self._cards.settings(self._epoch), self._library.inventory.sources
        shells = tuple(
            ExecutorShell(
                self._reactor, desk, settings, partial(sources, desk.number), self._reception, self._library, seat
            )
            for desk, seat in zip(self._admission.desks, self._cards.seats, strict=True)
        )
        self._cards.listen(shells)
        self._admission.residents.dropped = (crew := Crew(self._reactor, shells)).drop_resident
        return crew

    def _make_port(self) -> Ports:
        return Ports(self._reactor, self._config, self._socket_path, self._node_id, self._epoch, self)

    # What it says of itself.

    def _publish_soon(self) -> None:
        """After the callers of a lost executor have their answers: logs and registries may be slow."""
        self._reactor.call_later(0.0, self._publish)

    def _publish(self) -> None:
        self._page.refresh()
        instance = self._instance()
        if self._port is not None:
            self._port.tell_ready(ready=self._condition().serves and not self._draining)
            self._port.tell_news()
        if instance == self._published:
            return
        if self._published is None or instance.readiness is not self._published.readiness:
            tell_state(instance, self._port.front if self._port is not None else (0, 0))
        self._published = instance
        if self._presence is not None:
            self._presence.publish(instance)

    def _condition(self) -> Condition:
        any_model = self._library.inventory.any_model
        return Condition(self._crew.ready, self._port is not None and self._port.down, any_model)

    def _instance(self) -> Instance:
        host, _ = self._config.rpc_host_port
        port = self._port.port if self._port is not None else 0
        state = readiness(
            self._condition(), was_ready=self._was_ready, draining=self._draining,
            rdma_missing=self._port is not None and self._port.rdma_missing,
        )  # fmt: skip
        self._was_ready = self._was_ready or state not in {Readiness.STARTING, Readiness.DRAINING}
        return Instance(
            node_id=self._node_id,
            node_epoch=self._epoch,
            host_id=host_id(),
            readiness=state,
            local=self._socket_path if "local" in self._config.wires else "",
            rpc=f"{public_host(host)}:{port}" if port else "",
            rpc_tls=bool(self._config.tls_cert),
            rdma=self._port.rdma if self._port is not None and port else "",
            devices=self._cards.words,
            cards=self._cards.facts,
            models=self._library.inventory.facts,
            rack=self._config.rack,
        )

    def port_changed(self) -> None:
        """The rpc port came up or went down."""
        self._publish()

    def port_failed(self, error: OverspillError) -> None:
        """The rpc port cannot be had: the node ends with that error."""
        self._failure = error
        self._finish()

    # How it ends.

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._reactor.call_soon_threadsafe(self._drain)

    def _look_for_parent(self, parent_pid: int) -> None:
        if os.getppid() != parent_pid:
            self._drain()
        else:
            self._reactor.call_later(PARENT_LOOK_S, lambda: self._look_for_parent(parent_pid))

    def _drain(self) -> None:
        if self._draining:  # told twice: whoever asks is in a hurry
            self._give_up()
            return
        self._draining = self._admission.draining = True
        self._publish()
        if self._port is not None:
            self._port.drain()
        self._await_idle(Leaving(time.monotonic(), self._config.drain_s, self._admission.refused_draining))

    def _await_idle(self, leaving: Leaving) -> None:
        if self._finishing:
            return
        now_s, idle, callers = time.monotonic(), self._reception.idle, bool(self._listener.tenants)
        if leaving.may_go(now_s, idle=idle, callers=callers, refused=self._admission.refused_draining):
            self._finish()
        elif leaving.is_late(now_s):
            self._give_up()
        else:
            self._reactor.call_later(DRAIN_LOOK_S, lambda: self._await_idle(leaving))

    def _give_up(self) -> None:
        self._crew.stop()  # first, so that what is killed is not started again
        self._crew.kill()  # then, for what an executor had not begun waits again after it
        self._reception.give_up_waiting(Draining("the node has no time left to drain; ask another one", Fate.NEVER_RAN))
        self._finish()

    def _finish(self) -> None:
        if self._finishing:
            return
        self._finishing = True
        self._draining = self._admission.draining = True
        if self._port is not None:
            self._port.stop()  # it still answers what the executors have just finished
        self._await_port(time.monotonic() + STOP_TIMEOUT_S)

    def _await_port(self, give_up_s: float) -> None:
        late = time.monotonic() >= give_up_s
        if self._port is not None and not self._port.gone and not late:
            self._reactor.call_later(DRAIN_LOOK_S, lambda: self._await_port(give_up_s))
            return
        if self._port is not None and late:
            self._port.kill()
        self._crew.stop()
        self._await_gone(time.monotonic() + STOP_TIMEOUT_S, killed=False)

    def _await_gone(self, give_up_s: float, *, killed: bool) -> None:
        late = time.monotonic() >= give_up_s
        if self._crew.gone and (self._port is None or self._port.gone):
            self._reactor.stop()
        elif late and killed:
            _log.error("a child process does not end although it was killed; leaving it to the kernel")
            self._reactor.stop()
        else:
            if late:
                self._crew.kill()
                give_up_s = time.monotonic() + STOP_TIMEOUT_S
            self._reactor.call_later(DRAIN_LOOK_S, lambda: self._await_gone(give_up_s, killed=killed or late))

    def _close(self) -> None:
        if self._presence is not None:
            self._presence.close()
        self._control.close()
        self._page.close()
        self._cards.close()
        self._listener.close()  # the last of the folder: with its lock the next life makes the same files
        self._crew.close()
        self._reactor.close()
        if self._own_folder is not None:
            self._own_folder.remove()


def run_node(config: NodeConfig) -> int:
    """Runs a node in this process, in its main thread, until it is told to stop; gives the exit code.

    Raises ConfigError (or AddressInUse, a kind of it) when the node cannot be as configured.
    """
    # Each client's socket is a descriptor here and in every executor, which inherits the limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return Node(config).run()
