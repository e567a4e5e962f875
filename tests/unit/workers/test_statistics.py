"""Requests, items and runs are counted apart, as Triton counts them."""

from __future__ import annotations

import pytest

from fabric.control import (
    Duration,
    Question,
    Reply,
    TracedRun,
    decode_question,
    decode_reply,
    encode_question,
    encode_reply,
)
from fabric.errors import ModelBroken, ProtocolError
from workers.handover import Spent
from workers.statistics import BATCH_SIZES_MAX, REJECTED, ModelTally


def filled() -> ModelTally:
    tally = ModelTally("3")
    # A batch of 2 and 3 items that ran together, then one of 3 alone.
    tally.ran(Spent(1000, 50, 100, 200, 2, 5), leads=True, took_s=0.002, now=10.0)
    tally.ran(Spent(1000, 70, 100, 200, 3, 5), leads=False, took_s=0.003, now=10.0)
    tally.ran(Spent(400, 0, 10, 20, 3, 3), leads=True, took_s=0.001, now=11.5)
    tally.failed(REJECTED, 0.5)
    return tally


def test_counts() -> None:
    seen = filled().value("m", 4, epoch_s=1000.0)
    assert (seen.name, seen.version, seen.pending, seen.last_inference_ms) == ("m", "3", 4, 1_011_500)
    assert (seen.inference_count, seen.execution_count) == (8, 2)
    assert (seen.success, seen.fail) == (Duration(3, 6_000_000), Duration(1, 500_000_000))
    assert (seen.queue, seen.compute_input) == (Duration(3, 120_000), Duration(3, 210_000))
    assert (seen.compute_infer, seen.compute_output) == (Duration(3, 1_770_000), Duration(3, 420_000))
    assert [(each.batch_size, each.compute_infer) for each in seen.batches] == [
        (3, Duration(1, 370_000)),
        (5, Duration(1, 700_000)),
    ]
    assert seen.failures == ((REJECTED, 1),)


def test_nothing_ran_yet() -> None:
    seen = ModelTally("1").value("m", 0, epoch_s=1000.0)
    assert (seen.last_inference_ms, seen.success, seen.batches) == (0, Duration(), ())


def test_batch_sizes_are_bounded() -> None:
    tally = ModelTally("1")
    for rows in range(1, BATCH_SIZES_MAX + 10):
        tally.ran(Spent(5, 0, 1, 1, rows, rows), leads=True, took_s=0.0, now=0.0)
    seen = tally.value("m", 0, 0.0)
    assert len(seen.batches) == BATCH_SIZES_MAX
    assert seen.execution_count == BATCH_SIZES_MAX + 9


def test_the_way_to_the_control_socket_and_back() -> None:
    question = Question("load", "m", config='{"name": "m"}')
    assert decode_question(encode_question(question)) == question
    run = TracedRun(2**64 - 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    reply = Reply(statistics=(filled().value("m", 0, 0.0),), config="{}", traced=(run,))
    assert decode_reply(encode_reply(reply)) == reply
    with pytest.raises(ModelBroken, match="so and so"):
        decode_reply(encode_reply(ModelBroken("so and so")))


@pytest.mark.parametrize("line", [b"", b"[]", b'{"word": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_question_and_no_answer(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_question(line)
    with pytest.raises(ProtocolError):
        decode_reply(line)
