"""Requests that are out, and the mark below which all are settled."""

from __future__ import annotations

from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.accounting import Accounting, Ticket


def test_a_request_is_out_until_its_block_ends_for_whatever_reason() -> None:
    accounting = Accounting(Lock())
    with Ticket(accounting) as ticket:
        assert ticket.request_no == 1
        assert accounting.active == 1
    with pytest.raises(KeyError), Ticket(accounting):
        raise KeyError
    assert accounting.active == 0
    assert accounting.ack_no == 3


@given(st.lists(st.integers(0, 9), max_size=80))
def test_the_mark_is_the_smallest_number_that_is_out_and_never_falls(choices: list[int]) -> None:
    accounting, out, before = Accounting(Lock()), list[Ticket](), 0
    for choice in choices:
        if choice < 5 or not out:
            out.append(Ticket(accounting).__enter__())
        else:
            out.pop(choice % len(out)).__exit__(None, None, None)
        assert accounting.ack_no == min((ticket.request_no for ticket in out), default=accounting.next_no)
        assert accounting.ack_no >= before
        before = accounting.ack_no
    assert accounting.active == len(out)
