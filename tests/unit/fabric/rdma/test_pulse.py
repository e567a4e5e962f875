"""A peer that dies is noticed in bounded time, a peer that lives is not bothered, and alarms end whom they concern."""

from __future__ import annotations

import pytest

from fabric.rdma.alarms import why_all_end, why_ends
from fabric.rdma.config import RdmaConfig
from fabric.rdma.facts import DeviceFacts, GidFacts, Host, PortFacts
from fabric.rdma.pulse import IDLE_PULSE_S, PULSE_S, Pulse

CONFIG = RdmaConfig()


def test_silence_is_asked_about_sooner_while_replies_are_awaited() -> None:
    pulse = Pulse(CONFIG, 0.0)
    assert not pulse.due(PULSE_S / 2, awaited=True)
    assert pulse.due(PULSE_S, awaited=True)
    assert not pulse.due(PULSE_S, awaited=False)
    assert pulse.due(IDLE_PULSE_S, awaited=False)


def test_who_speaks_is_not_asked() -> None:
    pulse = Pulse(CONFIG, 0.0)
    for step in range(1, 50):
        pulse.heard()
        assert not pulse.due(step * PULSE_S, awaited=True)


def test_who_falls_silent_is_asked_at_the_second_look_behind_that() -> None:
    pulse = Pulse(CONFIG, 0.0)
    pulse.heard()
    assert not pulse.due(PULSE_S, awaited=True)
    assert pulse.due(1.95 * PULSE_S, awaited=True), "a look may come a little early"


def test_one_question_is_out_at_a_time_and_its_answer_counts_as_a_sign() -> None:
    pulse = Pulse(CONFIG, 0.0)
    pulse.asked(1.0)
    assert not pulse.due(1.5, awaited=True)
    pulse.answered(1.6)
    assert not pulse.due(1.6 + PULSE_S / 2, awaited=True)
    assert not pulse.overdue(100.0)


def test_a_nic_that_reports_nothing_is_given_up_later_than_it_would_report() -> None:
    pulse = Pulse(CONFIG, 0.0)
    pulse.asked(1.0)
    assert not pulse.overdue(1.0 + CONFIG.silence_s)
    assert pulse.overdue(1.0 + 2 * CONFIG.silence_s)


def test_a_doubted_peer_has_the_time_of_one_acknowledgement() -> None:
    pulse = Pulse(CONFIG, 0.0)
    pulse.asked(1.0)
    pulse.hurry(1.2)
    assert not pulse.overdue(1.2 + pulse.quick_s / 2)
    assert pulse.overdue(1.2 + pulse.quick_s)
    assert pulse.quick_s <= 0.1, "in-flight requests of a signalled death move within 100 ms"


def test_the_limits_follow_the_nics_own() -> None:
    slow = RdmaConfig(ack_timeout=18)
    assert slow.ack_s == pytest.approx(4.096e-6 * 2**18)
    assert slow.silence_s == pytest.approx(7 * slow.ack_s)
    assert Pulse(slow, 0.0).quick_s == pytest.approx(slow.ack_s)
    assert CONFIG.silence_s <= 0.5


@pytest.mark.parametrize("event", ["PORT_ERR", "DEVICE_FATAL", "LID_CHANGE", "CQ_ERR"])
def test_an_event_of_the_port_ends_all(event: str) -> None:
    assert event in why_all_end("rxe0", event)


def test_other_events_end_nobody() -> None:
    assert not why_all_end("rxe0", "PORT_ACTIVE")
    assert not why_all_end("rxe0", "GID_CHANGE")


def test_an_address_that_is_gone_ends_those_that_use_it_alone() -> None:
    port = PortFacts(1, "ACTIVE", "Ethernet", 0, (GidFacts(1, "a", "RoCE v2"),))
    host = Host((DeviceFacts("rxe0", -1, (port,)),), device_nodes=True, usable=True, rxe_module=True)
    assert not why_ends("rxe0", "a", host)
    assert "address b" in why_ends("rxe0", "b", host)
    assert "address a" in why_ends("rxe1", "a", host), "it is another device's"
