"""R40: what a caller's W3C trace context says, and that no header is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontdoor.trace_context import Context, read_context

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
IDS = f"{TRACE}-{PARENT}"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{IDS}-01", True),
        (f"00-{IDS}-00", False),
        (f"00-{IDS}-03", True),
        (f" 00-{IDS}-01\t", True),
        (f"cc-{IDS}-01", True),
        (f"cc-{IDS}-01-what-will-be", True),
    ],
)
def test_a_context_is_read(header: str, sampled: bool) -> None:
    assert read_context(header) == Context(TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "", "00", f"00-{IDS}", f"00-{IDS}-", f"00-{IDS}-1", f"00-{IDS}-01-more", f"00-{IDS}-01-", f"ff-{IDS}-01",
        f"cc-{IDS}-01.more", f"00-{IDS.upper()}-01", f"00-{'0' * 32}-b7ad6b7169203331-01", f"0-{IDS}-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", f"00-{IDS}-0x", f"00-{IDS[1:]}-01", f"00-{IDS}-01\n",
        f"00_{IDS}_01", "\N{ARABIC-INDIC DIGIT ZERO}" * 2 + f"-{IDS}-01", f"00-{IDS}-01" * 1000, "\0",
    ],
)  # fmt: skip
def test_what_is_malformed_is_no_context_and_no_error(header: str) -> None:
    assert read_context(header) is None


@given(st.text(), st.text())
def test_whatever_a_header_holds_it_is_no_error(header: str, state: str) -> None:
    read_context(header, state)
    assert read_context(f"00-{IDS}-01", state) is not None


def test_the_vendors_state_goes_along_unless_it_is_none() -> None:
    for state, kept in (("a=1,b=2", "a=1,b=2"), (" a=1 ", "a=1"), ("a" * 513, ""), ("a=\n", ""), ("é", "")):
        context = read_context(f"00-{IDS}-01", state)
        assert context is not None
        assert context.state == kept
