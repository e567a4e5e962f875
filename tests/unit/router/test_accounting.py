"""Requests that are out, and the mark below which all are settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.accounting import Accounting


def test_a_request_is_out_from_its_number_to_its_end() -> None:
    accounting = Accounting()
    assert (accounting.enter(), accounting.enter()) == (1, 2)
    assert (accounting.active, accounting.ack_no) == (2, 1)
    accounting.leave(1)
    assert (accounting.active, accounting.ack_no) == (1, 2)
    accounting.leave(1)  # an interrupted caller may say it twice
    assert (accounting.active, accounting.ack_no) == (1, 2)
    accounting.leave(2)
    assert (accounting.active, accounting.ack_no) == (0, 3)


@given(st.lists(st.integers(0, 9), max_size=80))
def test_the_mark_is_the_smallest_number_that_is_out_and_never_falls(choices: list[int]) -> None:
    accounting, out, before = Accounting(), list[int](), 0
    for choice in choices:
        if choice < 5 or not out:
            out.append(accounting.enter())
        else:
            accounting.leave(out.pop(choice % len(out)))
        assert accounting.ack_no == min(out, default=accounting.next_no)
        assert accounting.ack_no >= before
        before = accounting.ack_no
    assert accounting.active == len(out)
