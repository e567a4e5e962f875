"""Random lives of a link: whatever its wires do, a request has one owner and one answer, and nobody waits in vain."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fabric.link.config import LinkTimes
from fabric.link.machine import Command, LinkMachine
from fabric.link.table import Do, Event, Role, State

TIMES = LinkTimes()


class LinkLife(RuleBasedStateMachine):
    """Carries out a machine's commands on pretended wires, with requests on them, in a random life.

    `on` says which wire owns a request; the peer of a wire answers what it still owns, once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.opening: set[Role] = set()
        self.open: set[Role] = set()
        self.use: Role | None = None
        self.on: dict[int, Role | None] = {}
        self.answered: dict[int, int] = {}
        self.failed: set[int] = set()
        self.timers: dict[Do, float] = {}
        self.fencing = False
        self.left_at = float("-inf")
        self.forced = False
        self.number = 0

    @initialize(
        wires=st.sampled_from(["both, open", "both, open", "both", "preferred", "fallback"]), seed=st.integers(0, 99)
    )
    def begin(self, wires: str, seed: int) -> None:
        self.machine = LinkMachine(TIMES, Random(seed), preferred=wires != "fallback", fallback=wires != "preferred")
        self.carry_out(self.machine.start(self.now))
        if wires == "both, open":
            self.end_opening(Role.PREFERRED, works=True)
            self.end_opening(Role.FALLBACK, works=True)
            self.request(3)

    def carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            do = command.do
            if self.use is Role.PREFERRED and do in {Do.USE_NONE, Do.USE_FALLBACK}:
                self.left_at = self.now
            if do is Do.USE_NONE:
                self.use = None
            elif do in {Do.USE_PREFERRED, Do.USE_FALLBACK}:
                role = Role.PREFERRED if do is Do.USE_PREFERRED else Role.FALLBACK
                assert role in self.open, "only an open wire is used"
                if role is Role.PREFERRED and self.use is Role.FALLBACK and not self.forced:
                    # By choice, not because the fallback died under it.
                    assert self.now - self.left_at >= TIMES.hold_down_s - 1e-9, self.machine.story
                self.use = role
            elif do in {Do.OPEN_PREFERRED, Do.PROBE_PREFERRED}:
                assert Role.PREFERRED not in self.open
                self.opening.add(Role.PREFERRED)
            elif do is Do.OPEN_FALLBACK:
                assert Role.FALLBACK not in self.open
                self.opening.add(Role.FALLBACK)
            elif do is Do.FENCE_PREFERRED:
                self.drop(Role.PREFERRED)
                self.fencing = True
            elif do is Do.DROP_FALLBACK:
                self.drop(Role.FALLBACK)
            elif do is Do.CLOSE_WIRES:
                self.drop(Role.PREFERRED)
                self.drop(Role.FALLBACK)
            elif do is Do.MOVE_IN_FLIGHT:
                self.move()
            elif do is Do.FAIL_IN_FLIGHT:
                self.failed |= {number for number, wire in self.on.items() if wire is None}
                self.on = {number: wire for number, wire in self.on.items() if wire is not None}
            else:
                self.timers[do] = self.now + command.delay_s

    def drop(self, role: Role) -> None:
        self.open.discard(role)
        self.on = {number: None if wire is role else wire for number, wire in self.on.items()}

    def move(self) -> None:
        assert self.use is not None, "requests move to a live wire"
        self.on = {number: self.use if wire is None else wire for number, wire in self.on.items()}

    def give(self, event: Event) -> None:
        self.carry_out(self.machine.handle(event, self.now))

    @rule(wait_s=st.floats(0.01, 20.0))
    def wait(self, wait_s: float) -> None:
        self.now += wait_s
        for do, event in (
            (Do.SCHEDULE_PROBE, Event.PROBE_DUE),
            (Do.SCHEDULE_RETRY, Event.RETRY_DUE),
            (Do.SCHEDULE_HOLD, Event.HOLD_OVER),
        ):
            if self.timers.get(do, float("inf")) <= self.now:
                del self.timers[do]
                self.give(event)

    @precondition(lambda self: self.opening)
    @rule(data=st.data(), works=st.booleans())
    def opened(self, data: st.DataObject, works: bool) -> None:
        self.end_opening(data.draw(st.sampled_from(sorted(self.opening, key=lambda one: one.value))), works=works)

    def end_opening(self, role: Role, *, works: bool) -> None:
        self.opening.discard(role)
        if works:
            self.open.add(role)
            self.give(Event.PREFERRED_OPENED if role is Role.PREFERRED else Event.FALLBACK_OPENED)
        else:
            self.give(Event.PREFERRED_FAILED if role is Role.PREFERRED else Event.FALLBACK_FAILED)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        role = data.draw(st.sampled_from(sorted(self.open, key=lambda one: one.value)))
        self.forced = role is Role.FALLBACK
        self.give(Event.PREFERRED_LOST if role is Role.PREFERRED else Event.FALLBACK_LOST)
        self.forced = False

    @precondition(lambda self: self.open)
    @rule(data=st.data(), missed=st.integers(0, 6), answered=st.integers(0, 6))
    def pings(self, data: st.DataObject, missed: int, answered: int) -> None:
        role = data.draw(st.sampled_from(sorted(self.open, key=lambda one: one.value)))
        for good in [False] * missed + [True] * answered:
            if role in self.open:
                self.now += TIMES.ping_s
                self.forced = role is Role.FALLBACK and not good
                take = self.machine.ping_answered if good else self.machine.ping_missed
                self.carry_out(take(role, self.now))
                self.forced = False

    @precondition(lambda self: self.fencing)
    @rule()
    def fenced(self) -> None:
        self.fencing = False
        self.give(Event.FENCED)

    @rule(dice=st.integers(0, 9))
    def epoch_changed(self, dice: int) -> None:
        if dice == 0:  # seldom, else no life is long
            self.give(Event.PEER_EPOCH_CHANGED)

    @rule(count=st.integers(1, 3))
    def request(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            if self.use is not None:
                self.on[self.number] = self.use
            elif self.machine.state in {State.CONNECTING, State.FALLING_BACK}:
                self.on[self.number] = None  # it waits
            else:
                self.failed.add(self.number)

    @precondition(lambda self: any(wire is not None for wire in self.on.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        out = sorted(number for number, wire in self.on.items() if wire is not None)
        number = data.draw(st.sampled_from(out))
        del self.on[number]
        self.answered[number] = self.answered.get(number, 0) + 1

    @invariant()
    def requests_are_owned_by_one_open_wire_and_answered_once(self) -> None:
        assert all(count == 1 for count in self.answered.values())
        assert not self.failed & set(self.answered), "a failed request is not answered too"
        assert not self.failed & set(self.on)
        assert all(wire is None or wire in self.open for wire in self.on.values())

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.machine_started() and any(wire is None for wire in self.on.values()):
            waiting = {State.CONNECTING, State.FALLING_BACK}
            assert self.fencing or (self.machine.state in waiting and self.opening), self.machine.story

    @invariant()
    def the_state_says_which_wire_is_used(self) -> None:
        if not self.machine_started():
            return
        used = {
            State.PREFERRED_ONLY: Role.PREFERRED,
            State.PREFERRED_LIVE: Role.PREFERRED,
            State.SUSPECT: Role.FALLBACK,
            State.FENCING: Role.FALLBACK,
            State.FALLBACK_LIVE: Role.FALLBACK,
            State.PROBING: Role.FALLBACK,
            State.STANDBY: Role.FALLBACK,
        }
        assert self.use is used.get(self.machine.state), self.machine.story

    @invariant()
    def a_link_that_is_down_will_try_again(self) -> None:
        if self.machine_started() and self.machine.state is State.DOWN:
            assert Do.SCHEDULE_PROBE in self.timers or self.opening

    def machine_started(self) -> bool:
        return hasattr(self, "machine")


LinkLife.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLinkLife = LinkLife.TestCase
