"""The rows of the bad input table that make sense on the simulated network: no inputs are looked at there, frames are.

The other wires' rows are in `tests/integration/test_bad_input.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import (
    DeadlineExceeded,
    Draining,
    Fate,
    InvalidArgument,
    OverspillError,
    ProtocolError,
    QueueFull,
    StaleEpoch,
    Unavailable,
    UnknownModel,
)
from fabric.frame import ReplyFrame, encode_reply
from fabric.message import RequestId, Tensor, small_body
from fabric.sim.node import SimModel, echo
from fabric.sim.world import SimWorld
from fabric.transport import Call
from tests.integration.bad_node import collect
from tests.integration.bad_ways import check_sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.sim.channel import SimChannel
    from fabric.sim.node import SimNode

ARENA_BYTES = 1 << 16
BODY = small_body((Tensor.of("x", np.arange(16, dtype=np.float32)),))


class Bench:
    """One simulated node, a channel to it, and numbers for its requests."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.node: SimNode = world.add_node("n", {"echo": SimModel(0.001, echo)})
        self.channel = self.connect()
        self.numbers = itertools.count(1)

    def connect(self, epoch: int = 0) -> SimChannel:
        expect = ("n", epoch) if epoch else None
        return self.world.connect("n", 7, self.world.deadline(1.0), arena_bytes=ARENA_BYTES, expect=expect)

    def ask(self, model: str = "echo", timeout_s: float = 5.0) -> None:
        call = Call(RequestId(7, next(self.numbers)), model, BODY)
        self.channel.call(call, self.world.deadline(timeout_s))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Channels that were closed are gone before the look for leaks."""
    yield from collect()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with SimWorld(seed=5) as world:
        made = Bench(world)
        yield made
        made.__dict__.clear()  # pytest keeps what it gave to a test a little longer than the look for leaks


def _full(bench: Bench) -> None:
    bench.node.queue_max = 0
    bench.ask()


def _draining(bench: Bench) -> None:
    bench.node.draining = True
    bench.ask()


def _spoilt(frame: Callable[[bytes], bytes]) -> Callable[[Bench], None]:
    def act(bench: Bench) -> None:
        def spoil(reply: ReplyFrame) -> bytes:
            bench.node.spoil = None
            return frame(bytes(encode_reply(reply)))

        bench.node.spoil = spoil
        bench.ask()

    return act


@dataclass(frozen=True, slots=True)
class SimRow:
    """What is done, the error, its fate, and words of it; `same_channel`: it goes on with the channel that it had."""

    name: str
    act: Callable[[Bench], None]
    error: type[OverspillError]
    fate: Fate
    words: tuple[str, ...]
    same_channel: bool = True


_NEVER, _UNKNOWN = Fate.NEVER_RAN, Fate.UNKNOWN
ROWS = (
    SimRow("unknown model", lambda bench: bench.ask("dubble"), UnknownModel, _NEVER, ("'dubble'", "overspill models")),
    SimRow("no time", lambda bench: bench.ask(timeout_s=0.0), DeadlineExceeded, _NEVER, ("time",)),
    SimRow("negative time", lambda bench: bench.ask(timeout_s=-1.0), InvalidArgument, _NEVER, ("give seconds",)),
    SimRow("full queue", _full, QueueFull, _NEVER, ("send fewer or to another node",)),
    SimRow("draining", _draining, Draining, _NEVER, ("send the request to another node",)),
    SimRow("another life", lambda bench: bench.connect(99), StaleEpoch, _NEVER, ("ask discovery again",)),
    SimRow("garbage", _spoilt(lambda _: b"garbage" * 9), ProtocolError, _UNKNOWN, ("wrong magic",), same_channel=False),
    SimRow("cut", _spoilt(lambda frame: frame[:-3]), ProtocolError, _UNKNOWN, ("whole frames",), same_channel=False),
    SimRow("flipped", _spoilt(lambda frame: frame[:50] + b"\xee" + frame[51:]), ProtocolError, _UNKNOWN,
           ("checksum",), same_channel=False),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "_"))
def test_each_bad_request_is_told_and_the_next_one_works(bench: Bench, row: SimRow) -> None:
    with pytest.raises(OverspillError) as caught:
        row.act(bench)
    assert type(caught.value) is row.error, repr(caught.value)
    assert caught.value.fate is row.fate
    check_sentence(caught.value, *row.words)
    bench.node.queue_max, bench.node.draining = 1024, False
    assert bench.channel.alive is row.same_channel
    if not row.same_channel:
        bench.channel = bench.connect()
    bench.ask()


def test_nobody_listens() -> None:
    with SimWorld(seed=5) as world:
        with pytest.raises(Unavailable) as caught:
            world.connect("n", 7, world.deadline(1.0))
        check_sentence(caught.value, "start it, or choose another")
        Bench(world).ask()
