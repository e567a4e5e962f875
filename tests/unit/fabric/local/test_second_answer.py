"""An executor that dies as it answers: the node's own word about it is dropped by whoever has the answer."""

from __future__ import annotations

import pytest

from fabric.errors import ExecutorLost, ProtocolError
from fabric.frame import MAYBE_SECOND, ErrorFrame, Load, decode_final, encode_error, may_be_second
from fabric.local.exchange import Places, is_second, read_final
from fabric.memory.arena import Arena
from fabric.message import RequestId

LOST = ErrorFrame(1, 5, 9, ExecutorLost("the executor was ended by signal 9"), Load(1, 2, 3, 4))


def test_the_flag_travels_and_changes_nothing_else() -> None:
    plain, flagged = encode_error(LOST), encode_error(LOST, MAYBE_SECOND)
    assert (may_be_second(plain), may_be_second(flagged)) == (False, True)
    assert len(plain) == len(flagged)
    assert str(decode_final(flagged)) == str(decode_final(plain))


def test_only_a_flagged_frame_of_another_request_is_dropped() -> None:
    flagged = encode_error(LOST, MAYBE_SECOND)
    assert is_second(flagged, RequestId(1, 6))
    assert not is_second(flagged, RequestId(1, 5))  # it is the answer that is waited for
    assert not is_second(encode_error(LOST), RequestId(1, 6))  # a fault of the node, and told as one
    assert not is_second(flagged[:20], RequestId(1, 6))
    assert not is_second(flagged[:-1] + b"?", RequestId(1, 6))


def test_an_unflagged_answer_to_another_request_is_still_a_fault() -> None:
    arena = Arena.create(1 << 16)
    try:
        with pytest.raises(ProtocolError, match=r"where .* was due"):
            read_final(encode_error(LOST), RequestId(1, 6), Places(arena))
    finally:
        arena.close_fd()
