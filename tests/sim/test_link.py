"""A link over two simulated wires to one node: what moves, how soon, and that nothing runs twice."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import pytest

from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError, StaleEpoch, Unavailable
from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.table import Role, State
from fabric.link.wires import LinkConfig, Wires
from fabric.transport import Answer
from tests.sim.link_net import QUICK, Asked, Net, SimPeer, after, wait

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def net() -> Iterator[Net]:
    with closing(Net()) as one:
        yield one


def test_a_call(net: Net) -> None:
    with net.link() as link:
        call = net.request()
        assert link.call(call, after(1.0)).memory == call.body.memory
        assert link.peer is not None
        assert link.peer.node_id == "n"
        assert link.alive
        assert not link.suspect


def test_signalled_death_of_a_wire(net: Net) -> None:
    with net.link() as link:
        asked = [Asked(link, net.request("slow")) for _ in range(4)]
        wait(lambda: len(net.node.runs) == 4)
        net.lose(link, Role.PREFERRED)
        began = time.monotonic()
        link.call(net.request(), after(10.0))
        assert time.monotonic() - began < 0.5, "a new request takes the other wire at once"
        assert all(isinstance(one.result(), Answer) for one in asked), [one.outcome for one in asked]
        assert set(net.node.runs.values()) == {1}
        assert link.statistics().moved >= 4
        wait(lambda: link.statistics().state is State.PREFERRED_LIVE)


@pytest.mark.parametrize(("losses", "slack_s"), [(2, 3.0), pytest.param(15, 0.0, marks=pytest.mark.long)])
def test_silent_loss_of_a_wire(net: Net, losses: int, slack_s: float) -> None:
    new, moved = [], []
    for _ in range(losses):
        # The pings are the real ones; only the way back is short, so that its losses fit a test.
        with net.link(LinkTimes(hold_down_s=0.2, backoff_s=0.05)) as link:
            asked = Asked(link, net.request())
            assert isinstance(asked.result(), Answer)
            net.run(lambda: net.world.network.partition("near", "n"))
            began = time.monotonic()
            asked = Asked(link, net.request())
            new.append(wait(lambda link=link: link.statistics().state is State.SUSPECT))  # type: ignore[misc]
            assert isinstance(asked.result(), Answer)
            moved.append(asked.ended_at - began)
            net.run(lambda: net.world.network.heal("near", "n"))
    assert median(new) <= 0.25 + slack_s, new
    assert median(moved) <= 0.6 + slack_s, moved
    assert set(net.node.runs.values()) == {1}


def test_a_short_stall_moves_nothing(net: Net) -> None:
    # Short by its counts: this test's own thread may be a while in coming to it.
    with net.link(LinkTimes(hold_down_s=0.3, silent_missed=60, last_missed=60)) as link:
        asked = Asked(link, net.request("slow"))
        wait(lambda: len(net.node.runs) == 1)
        net.run(lambda: net.world.network.partition("near", "n"))
        wait(lambda: link.statistics().state is State.SUSPECT)
        net.run(lambda: net.world.network.heal("near", "n"))
        assert isinstance(asked.result(), Answer)
        assert link.statistics().moved == 0
        wait(lambda: link.statistics().state is State.PREFERRED_LIVE)


def test_death_of_the_node(net: Net) -> None:
    with net.link() as link:
        asked = Asked(link, net.request("slow"))
        wait(lambda: len(net.node.runs) == 1)
        net.run(net.node.kill)
        lost = asked.result()
        assert isinstance(lost, NodeLost)
        assert lost.fate is Fate.UNKNOWN, "it was running"
        wait(lambda: not link.alive)
        with pytest.raises(NodeLost) as never:
            link.call(net.request(), after(10.0))
        assert never.value.fate is Fate.NEVER_RAN
        net.run(net.node.start)
        wait(lambda: link.statistics().state is State.CLOSED)  # another life needs another link


def test_an_address_takes_the_next_life(net: Net) -> None:
    with net.link(any_epoch=True, near=False) as link:
        link.call(net.request(), after(10.0))
        net.run(net.node.kill)
        wait(lambda: not link.alive)
        net.run(net.node.start)
        wait(lambda: link.alive)
        link.call(net.request(), after(10.0))
        assert link.peer is not None
        assert link.peer.node_epoch == net.node.epoch


def test_a_connection_that_breaks_is_opened_again(net: Net) -> None:
    """The last wire breaks and the node lives: the request attaches to itself over the next connection."""
    with net.link(near=False) as link:
        asked = Asked(link, net.request("slow"))
        wait(lambda: len(net.node.runs) == 1)
        net.lose(link, Role.FALLBACK)
        assert isinstance(asked.result(), Answer)
        assert set(net.node.runs.values()) == {1}


def test_a_silent_last_wire_fails_its_requests(net: Net) -> None:
    with net.link(near=False) as link:
        asked = Asked(link, net.request("slow"), 20.0)
        wait(lambda: len(net.node.runs) == 1)
        net.run(net.node.freeze)
        wait(lambda: link.suspect)
        lost = asked.result()
        assert isinstance(lost, NodeLost)
        assert lost.fate is Fate.UNKNOWN
        assert not link.alive


@pytest.mark.parametrize("near", [True, False], ids=["two wires", "one wire"])
def test_a_stopped_node_is_left_by_requests_that_may_run_elsewhere(net: Net, near: bool) -> None:
    with net.link(LinkTimes(), near=near) as link:
        asked = [Asked(link, net.request("slow", movable=True), 60.0) for _ in range(3)]
        wait(lambda: len(net.node.runs) == 3)
        net.run(net.node.freeze)
        began = time.monotonic()
        for one in asked:
            lost = one.result()
            assert isinstance(lost, NodeLost)
            assert lost.fate is Fate.UNKNOWN
        assert time.monotonic() - began < 10.0
        assert link.statistics().moved == 0, "the other wire leads to the same stopped node"


def test_a_stopped_node_is_waited_for_while_it_has_what_may_not_run_twice(net: Net) -> None:
    with net.link(LinkTimes(last_missed=1000), near=False) as link:
        movable, bound = Asked(link, net.request("slow", movable=True), 60.0), Asked(link, net.request("slow"), 60.0)
        wait(lambda: len(net.node.runs) == 2)
        net.run(net.node.freeze)
        wait(lambda: link._wiring.machine.missed[Role.FALLBACK] > LinkTimes().silent_missed)
        net.run(net.node.thaw)
        assert isinstance(movable.result(), Answer)
        assert isinstance(bound.result(), Answer)
        assert set(net.node.runs.values()) == {1}


def test_a_stale_epoch_ends_the_link(net: Net) -> None:
    with net.link() as link:
        net.node.epoch += 1
        with pytest.raises(OverspillError):
            link.call(net.request(), after(0.3))
        net.run(net.node.kill)
        wait(lambda: not link.alive)


def test_connect_says_why_it_failed(net: Net) -> None:
    net.run(net.node.kill)
    with pytest.raises(Unavailable, match="nobody listens"), net.link():
        pass
    net.run(net.node.start)
    net.run(lambda: net.world.network.partition("far", "n"))
    with pytest.raises(DeadlineExceeded), net.link(near=False):
        pass


def test_another_life_at_the_address(net: Net) -> None:
    peer = SimPeer("n", net.node.epoch + 1)
    link = Link(peer, Wires(None, net.opener("far")), LinkConfig(QUICK), net.loop)
    with pytest.raises(StaleEpoch):
        link.start(after(10.0))
    assert link.statistics().state is State.CLOSED


def test_close_lets_calls_finish_and_takes_no_new_one(net: Net) -> None:
    with net.link() as link:
        asked = Asked(link, net.request("slow"))
        wait(lambda: len(net.node.runs) == 1)
        closing_thread = threading.Thread(target=link.close, args=(after(10.0),))
        closing_thread.start()
        wait(lambda: link.wire is None)
        with pytest.raises(NodeLost, match="closed") as refused:
            link.call(net.request(), after(10.0))
        assert refused.value.fate is Fate.NEVER_RAN
        assert isinstance(asked.result(), Answer)
        closing_thread.join(5.0)
        assert link.statistics().state is State.CLOSED


def test_asynchronous_calls_move_too(net: Net) -> None:
    with net.link() as link:
        futures = [net.loop.submit(link.call_async(net.request("slow"), after(5.0))) for _ in range(4)]
        wait(lambda: len(net.node.runs) == 4)
        net.lose(link, Role.PREFERRED)
        assert all(isinstance(future.result(5.0), Answer) for future in futures)
        assert set(net.node.runs.values()) == {1}


def test_requests_wait_for_the_first_wire(net: Net) -> None:
    link = Link(SimPeer("n", net.node.epoch), Wires(net.opener("near"), None), LinkConfig(QUICK), net.loop)
    link.start()
    assert isinstance(link.call(net.request(), after(10.0)), Answer)
    link.abort("the test is over")


def test_storm(net: Net) -> None:
    """Eight threads call while the wires break, stall and heal: every request has one outcome and runs at most once."""
    random = Random(5)
    outcomes: list[Answer | OverspillError] = []
    stop = time.monotonic() + 3.0

    def call(link: Link) -> None:
        while time.monotonic() < stop:
            try:
                outcomes.append(link.call(net.request(), after(3.0)))
            except OverspillError as error:
                outcomes.append(error)

    with net.link() as link:
        threads = [threading.Thread(target=call, args=(link,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while time.monotonic() < stop:
            time.sleep(random.uniform(0.02, 0.3))
            host = random.choice(["near", "far"])
            what = random.choice(["lose", "cut", "heal", "heal"])
            if what == "cut" and host == "near":
                net.run(lambda: net.world.network.partition("near", "n"))
            elif what == "heal":
                net.run(lambda: net.world.network.heal("near", "n"))
            else:
                role = Role.PREFERRED if host == "near" else Role.FALLBACK
                if role in link._wiring.channels:
                    net.lose(link, role)
        net.run(lambda: net.world.network.heal("near", "n"))
        for thread in threads:
            thread.join(10.0)
        assert link.statistics().in_flight == 0
    answers = [one for one in outcomes if isinstance(one, Answer)]
    assert len(answers) > 30
    assert max(net.node.runs.values()) == 1
    failed = [one for one in outcomes if not isinstance(one, Answer)]
    assert len(failed) <= len(outcomes) // 5, failed[:3]


def test_a_request_never_moves_to_another_life(net: Net) -> None:
    """At an address that takes any life, a restart at once must not make the request run again."""
    with net.link(any_epoch=True, near=False) as link:
        call = net.request("slow")
        asked = Asked(link, call)
        wait(lambda: len(net.node.runs) == 1)

        def restart() -> None:
            net.node.kill()
            net.node.start()

        net.run(restart)
        lost = asked.result()
        assert isinstance(lost, NodeLost)
        assert lost.fate is Fate.UNKNOWN
        wait(lambda: link.wire is not None)
        assert isinstance(link.call(net.request(), after(2.0)), Answer)
        assert net.node.runs[call.id] == 1
