"""The simulated network's world: the echo node's models on simulated executors, moved by the real clock."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import ModelFailed
from fabric.frame import FRAME_BYTES_MAX, Load, ReplyFrame, RequestFrame, encode_reply
from fabric.layout import TensorSpec, layout_of
from fabric.message import RequestId
from fabric.sim.network import SimOptions
from fabric.sim.node import SimModel, SimNode, SimReply, echo
from fabric.sim.pump import RealPump
from fabric.sim.world import SimWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.sim.channel import SimChannel
    from fabric.sim.node import Asker, Outcome

ARENA_BYTES = 256 << 20
DEATHS = {"die_hello": "hello", "die_request": "request", "die_reply": "reply"}


def _flip(descriptors: bytes, body: bytes) -> SimReply:
    return SimReply(descriptors, np.invert(np.frombuffer(body, np.uint8)).tobytes())


def _touch(_descriptors: bytes, body: bytes) -> SimReply:
    layout = layout_of((TensorSpec.of("out", DType.UINT8, (64,)),))
    return SimReply(layout.encoded, bytes([sum(body[:64]) & 0xFF]) * 64)


def _fail(_descriptors: bytes, _body: bytes) -> SimReply:
    raise ModelFailed("the model raised on purpose")


class EchoModels(dict[str, SimModel]):
    """The models of `tests/contract/echo_node.py`; what should be done is in the name."""

    def __contains__(self, name: object) -> bool:
        with suppress(KeyError, ValueError, IndexError):
            return bool(self[str(name)])
        return False

    def __missing__(self, name: str) -> SimModel:
        verb, *rest = name.split("/")
        plain = {"echo": echo, "flip": _flip, "touch": _touch, "fail": _fail}
        if verb in plain:
            return SimModel(0.0, plain[verb])
        if verb == "later":
            return SimModel(0.0, plain[rest[1]], queue_s=int(rest[0]) / 1e3)
        if verb == "run":
            return SimModel(int(rest[0]) / 1e3, plain[rest[1]])
        if verb == "grow":
            layout = layout_of((TensorSpec.of("out", DType.UINT8, (int(rest[0]),)),))
            return SimModel(0.0, lambda _descriptors, _body: SimReply(layout.encoded, bytes([7]) * layout.body_bytes))
        raise KeyError(name)


class EchoSimNode(SimNode):
    """Runs whatever comes at once, as the echo node does, and calls that one executor."""

    def load(self, client_id: int) -> Load:
        return replace(super().load(client_id), executors=1, accepted=sum(self._accepted.values()))

    def request(self, request: RequestFrame, body: bytes, asker: Asker, answer: Callable[[Outcome], None]) -> None:
        # The suite's clients are named by their address in memory, so a later one may repeat an earlier one's ids.
        key = RequestId(request.client_id, request.request_no)
        job = self._jobs.get(key)
        if job is not None and job.outcome is not None and job.asker[0] != asker[0]:
            del self._jobs[key]
        super().request(request, body, asker, answer)


def _spoiled(fault: str, reply: ReplyFrame) -> bytes:
    changes: dict[str, Callable[[], ReplyFrame]] = {
        "foreign_id": lambda: replace(reply, request_no=reply.request_no + 1_000_000),
        "outside": lambda: replace(reply, reply_offset=reply.reply_offset ^ (1 << 40)),
        "length": lambda: replace(reply, body_bytes=reply.body_bytes + 64),
    }
    if fault in changes:
        return bytes(encode_reply(changes[fault]()))
    frame = bytearray(encode_reply(reply))
    if fault == "bit":
        frame[-1] ^= 1
    elif fault == "cut":
        del frame[-8:]
    elif fault == "oversize":
        frame += bytes(FRAME_BYTES_MAX)
    elif fault == "noise":
        frame[:] = bytes(range(200))
    elif fault == "magic":
        frame[0] ^= 0xFF
    elif fault == "version":
        frame[8] = 99
    return bytes(frame)


class SimContractWorld:
    """The world. There is no delay on the way: delays, losses and late writes have tests of their own."""

    name = "sim"
    faults = ("foreign_id", "outside", "length", "bit", "cut", "oversize", "noise", "magic", "version")
    bytes_budget = 1 << 27  # every byte is copied several times on its way through one process

    def __init__(self) -> None:
        # Nothing is lost here, so nobody asks again: where the machine stood still for a second, the answer to that was
        # the one that a test had spoiled, and as a duplicate nobody read it.
        options = SimOptions(delay_min_s=0.0, delay_max_s=0.0, resend_s=60.0)
        self._world = SimWorld(options, seed=11, pump=RealPump())
        self._node = EchoSimNode(self._world.network, "echo", EchoModels(), executors=4096)
        self._world.nodes["echo"] = self._node

    def open_channel(self, timeout_s: float = 5.0) -> SimChannel:
        expect = ("echo", self._node.epoch)
        return self._world.connect(
            "echo", os.getpid(), self.deadline(timeout_s), arena_bytes=ARENA_BYTES, expect=expect
        )

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline.after(timeout_s, time.monotonic())

    def arm(self, what: str) -> None:
        if what in DEATHS:
            self._do(lambda: setattr(self._node, "dies_at", DEATHS[what]))
        else:
            self._do(lambda: setattr(self._node, "spoil", lambda reply: _spoiled(what, reply)))

    def kill(self) -> None:
        self._do(self._node.kill)

    def pause(self) -> None:
        self._do(self._node.freeze)

    def resume(self) -> None:
        self._do(self._node.thaw)

    def restart(self) -> None:
        def again() -> None:
            if self._node.alive:
                self._node.kill()
            self._node.start()

        self._do(again)

    def serves(self) -> bool:
        return self._node.alive

    def close(self) -> None:
        self._world.close()

    def _do(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self._world.pump.post(act)
        assert done.wait(10), "the simulation stands still"
