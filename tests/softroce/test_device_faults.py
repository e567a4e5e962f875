"""Faults of the device itself, and those that credits and sizes keep from happening: each is made to happen here, is
told by its name, and is followed by a good connection.

A device that was reset, or whose completion queue overran, is closed and opened again: nothing that was open of it can
be used. Both ends are in one guest.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import Fate, NodeLost, OverspillError, Unavailable
from fabric.rdma.rounds import Rounds
from tests.contract.world import wait_until
from tests.softroce.echo import EchoWorld, after, make_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.rdma.channel import RdmaChannel
    from fabric.rdma.engine import Engine

pytestmark = pytest.mark.guests(1)
DEVICE_FATAL = 8
CALLERS = 8
AGAIN_S = 20.0
PAUSE_S = 3.0


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def good_again(world: EchoWorld) -> None:
    """A new connection, as a link would open one, as soon as that can be."""
    end_s = time.monotonic() + AGAIN_S
    while True:
        try:
            channel = world.open()
            break
        except OverspillError:
            assert time.monotonic() < end_s, "rdma did not come back"
            time.sleep(0.1)
    for size in (100, 300_000):
        world.echoes(channel, size)
    channel.close(after(5.0))


def out_at_once(world: EchoWorld, channel: RdmaChannel) -> list[OverspillError]:
    """What some calls at the same time ended with."""
    errors: list[OverspillError] = []

    def ask() -> None:
        try:
            channel.call(world.request(make_body(100)), after(30.0))
        except OverspillError as error:
            errors.append(error.with_traceback(None))

    threads = [threading.Thread(target=ask, name="asker") for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


def echo_often(world: EchoWorld, channel: RdmaChannel) -> None:
    for _ in range(80):
        world.echoes(channel, 100)


def tells(engine: Engine, code: int) -> None:
    """The device has this to tell."""
    device, codes = engine._device, [code]
    assert device is not None
    good = device.take_event
    device.take_event = lambda: codes.pop() if codes else good()  # type: ignore[method-assign]
    engine.call_soon(engine._told)


def tells_when_all_are_out(engine: Engine, code: int) -> None:
    assert wait_until(lambda: len(engine.awaited) == CALLERS)
    time.sleep(0.2)  # the last of them is being sent
    tells(engine, code)


def test_a_device_that_was_reset_is_opened_again() -> None:
    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, 100)
        world.pause_s = PAUSE_S
        end_s = time.monotonic() + PAUSE_S + 1.0
        before = world.caller._device
        teller = threading.Thread(target=tells_when_all_are_out, args=(world.caller, DEVICE_FATAL))
        teller.start()
        errors = out_at_once(world, channel)
        teller.join(60)
        assert any(error.fate is Fate.UNKNOWN for error in errors), errors
        assert all("DEVICE_FATAL" in str(error) for error in errors), errors
        assert not channel.alive
        world.pause_s = 0.0
        good_again(world)
        assert before is not None
        assert before.closed
        assert world.caller._device is not before
        time.sleep(max(0.0, end_s - time.monotonic()))  # what was asked before is over at the node, too


@pytest.mark.long
def test_a_receiver_that_is_not_ready_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credits keep it from happening: here the node gives credit for receives that it has not posted again."""
    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, 100)
        (serving,) = [member for member, _ in world.node._members.values()]
        monkeypatch.setattr(serving._pairs._ctl, "post_receive", lambda _: None)  # type: ignore[attr-defined]
        with pytest.raises(NodeLost, match="RNR_RETRY_EXC_ERR") as told:
            echo_often(world, channel)
        assert told.value.fate is Fate.UNKNOWN
        assert not channel.alive
        good_again(world)


@pytest.mark.long
def test_a_receive_that_cannot_be_posted_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise Unavailable("injected")

    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, 100)
        (calling,) = [member for member, _ in world.caller._members.values()]
        monkeypatch.setattr(calling._pairs._ctl, "post_receive", refused)  # type: ignore[attr-defined]
        with pytest.raises(NodeLost, match="injected") as told:
            world.echoes(channel, 100)
        assert told.value.fate is Fate.UNKNOWN
        good_again(world)


@pytest.mark.long
def test_a_completion_queue_that_overran_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size keeps it from happening: here it holds a few, and nobody takes them for a while."""
    take = Rounds._take

    def late(rounds: Rounds) -> None:
        time.sleep(0.3)
        take(rounds)

    with EchoWorld() as world:
        with monkeypatch.context() as patch:
            patch.setattr("fabric.rdma.engine.LINKS_PER_QUEUE", 1)
            patch.setattr("fabric.rdma.engine.COMPLETIONS_PER_LINK", 4)
            channel = world.open()
        world.echoes(channel, 100)
        before = [engine._device for engine in (world.caller, world.node)]
        monkeypatch.setattr(Rounds, "_take", late)
        errors = out_at_once(world, channel)
        assert errors, "everybody was answered"
        assert all("CQ_ERR" in str(error) or isinstance(error, NodeLost) for error in errors), errors
        monkeypatch.undo()
        assert wait_until(lambda: not world.caller.links and not world.node.links)
        good_again(world)
        assert any(device is not None and device.closed for device in before), "nobody heard of it"
