"""An ensemble in legs, as a node decides about it: where it is cut, which way tensors go, when the first leg waits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fabric.errors import IllegalTransition, ModelBroken, ProtocolError
from workers.batchconfig import Batching
from workers.batching import BatchLine
from workers.chains import Chains
from workers.desks import ModelQueue
from workers.fitting import Fit
from workers.legs import BETWEEN_BYTES, BETWEEN_MAX, Leg, cut, given_on, taken_by
from workers.legwords import (
    NOWHERE,
    Contents,
    LegOrder,
    Part,
    Way,
    decode_contents,
    decode_order,
    encode_contents,
    encode_order,
)
from workers.lifecycle import ModelEvent
from workers.modelconfig import ModelConfig, read_config
from workers.parcels import TABLE, Parcel, ParcelEvent, ParcelState
from workers.reach import AGAIN_S, Reach
from workers.repository import ModelEntry
from workers.shelved import Shelved

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = """
backend: "python"
input { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "b" data_type: TYPE_FP32 dims: [ -1 ] }
"""
CHAIN = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output [ { name: "z" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "y1" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "s0" input_map { key: "a" value: "x" } output_map { key: "b" value: "y0" } },
  { model_name: "s1" input_map { key: "a" value: "y0" } output_map { key: "b" value: "y1" } },
  { model_name: "s2" input_map { key: "a" value: "y0" } output_map { key: "b" value: "z" } }
] }
"""


def config(name: str, text: str) -> ModelConfig:
    return read_config(text, "m", name, "1", f"/{name}/1")


def on(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("placed", "legs"),
    [
        ([on(0, 1), on(1)], [(0, 2, on(1))]),
        ([on(0), on(1)], [(0, 1, on(0)), (1, 2, on(1))]),
        ([on(0, 1), on(0), on(1)], [(0, 2, on(0)), (2, 3, on(1))]),
        ([on(0), on(1), on(0)], [(0, 1, on(0)), (1, 2, on(1)), (2, 3, on(0))]),
        ([on(0, 1, 2), on(1, 2), on(3), on(3, 4)], [(0, 2, on(1, 2)), (2, 4, on(3))]),
    ],
)
def test_a_leg_is_as_long_as_some_executor_has_all_of_it(
    placed: list[frozenset[int]], legs: list[tuple[int, int, frozenset[int]]]
) -> None:
    assert cut(placed) == tuple(Leg(*leg) for leg in legs)


def test_a_leg_gives_what_later_ones_or_the_caller_need_and_takes_what_it_reads() -> None:
    chain = config("chain", CHAIN)
    outputs = [decl.name for decl in chain.outputs]
    assert given_on(chain.steps, 0, 1, outputs) == {"y0"}
    assert given_on(chain.steps, 1, 2, outputs) == {"y1"}  # not y0 again, which the first one gave
    assert taken_by(chain.steps, 1, 2, outputs) == {"y0"}
    assert taken_by(chain.steps, 2, 3, outputs) == {"y0", "y1"}  # the last also what the caller gets


def chains(*placed: frozenset[int]) -> tuple[Chains, dict[str, Shelved]]:
    """Steps on these executors."""
    models: dict[str, Shelved] = {}
    for number, numbers in enumerate(placed):
        model = models[f"s{number}"] = Shelved(f"s{number}")
        model.served = ModelEntry(f"s{number}", "1", config(f"s{number}", STEP))
        model.fit = Fit(numbers)
    return Chains(models), models


def test_an_ensemble_is_put_on_all_executors_that_have_some_of_it() -> None:
    table, _ = chains(on(0), on(0), on(1))
    asked: list[int] = []

    def by_itself(nbytes: int) -> Fit:
        asked.append(nbytes)
        return Fit(on(0, 1, 2), need_bytes=nbytes)

    fit = table.place(config("chain", CHAIN), 0, by_itself)
    assert (fit.numbers, fit.legs) == (on(0, 1), (Leg(0, 2, on(0)), Leg(2, 3, on(1))))
    assert asked == [0, BETWEEN_BYTES], "memory between its cards is counted"
    table, _ = chains(on(0, 1), on(1, 2), on(1))
    assert table.place(config("chain", CHAIN), 0, by_itself) == Fit(on(1), need_bytes=0)
    table, _ = chains(on(0), on(5), on(1))
    with pytest.raises(ModelBroken, match="no executor has step 's1' of ensemble 'chain'"):
        table.place(config("chain", CHAIN), 0, by_itself)


def test_a_step_may_move_only_to_where_its_leg_is() -> None:
    table, models = chains(on(0), on(0), on(1))
    model = models["chain"] = Shelved("chain")
    entry = ModelEntry("chain", "1", config("chain", CHAIN))
    model.serve(entry, table.fit(config("chain", CHAIN), Fit(on(0, 1))), 2)
    table.fit(config("s2", STEP), Fit(on(1)))
    with pytest.raises(ModelBroken, match="must be where that is"):
        table.fit(config("s2", STEP), Fit(on(0)))
    (later,) = model.queue.legs
    assert (model.queue.holders, later.holders) == (on(0), on(1))
    assert later.name == "chain (steps 3 to 3)"
    model.machine.handle(ModelEvent.LOAD_ASKED)
    model.machine.handle(ModelEvent.LOADED)
    assert model.facts().note == "steps 1 to 2 on executors 0; steps 3 to 3 on executors 1"


def test_the_first_leg_waits_while_too_many_are_past_it() -> None:
    queue = ModelQueue("chain", 10, None, idempotent=True)
    line = queue.line = BatchLine(Batching(1))
    queue.between_max = BETWEEN_MAX
    passes = []
    for more in (*[1] * BETWEEN_MAX, -1):
        queue.goes_on(more)
        passes.append(line.lets_pass)
    assert passes == [*[True] * (BETWEEN_MAX - 1), False, True]


def test_tensors_go_both_ways_until_a_card_has_read_the_other() -> None:
    reach = Reach(on(0, 1, 2))
    assert reach.way(0, on(1), 0.0) is Way.BOTH
    reach.learn(1, 0, 0.0, good=True)
    assert reach.way(0, on(1), 1.0) is Way.CARD
    assert reach.way(0, on(1, 2), 1.0) is Way.BOTH  # either may run it
    assert reach.way(1, on(0), 1.0) is Way.BOTH  # the other way round is another question
    assert reach.way(0, on(3), 1.0) is Way.HOST  # a processor
    reach.learn(1, 0, 2.0, good=False)
    assert reach.way(0, on(1), 2.0 + AGAIN_S - 1) is Way.HOST
    assert reach.way(0, on(1), 2.0 + AGAIN_S) is Way.BOTH
    reach.learn(1, 0, 100.0, good=True)
    assert reach.way(0, on(1), 100.0) is Way.CARD


def parcel(returned: Callable[[int], None], card_bytes: int = 5) -> tuple[Parcel, int]:
    reader, writer = os.pipe()
    os.close(writer)
    return Parcel(3, Contents(1, (), card_bytes, 0), (reader,), returned), reader


def test_a_parcel_is_let_go_once_whatever_came_before() -> None:
    for story in ((), ("TOLD",), ("TOLD", "CAME_BACK", "TOLD"), ("TOLD", "LEG_RAN")):
        told: list[int] = []
        held, fd = parcel(told.append)
        for event in story:
            held.handle(ParcelEvent[event])
        held.handle(ParcelEvent.ENDED)
        assert (held.state, told) == (ParcelState.OVER, [5])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        with pytest.raises(IllegalTransition, match="that is over met"):
            held.handle(ParcelEvent.TOLD)
    assert all(ParcelEvent.ENDED in edges for state, edges in TABLE.items() if state is not ParcelState.OVER)


def test_words_about_legs_come_back_as_they_went_and_nonsense_is_refused() -> None:
    part = Part("y", "FP32", (2, 3), 24, 0, 512)
    contents = Contents(7, (part,), 24, 536, "no room")
    assert decode_contents(encode_contents(contents)) == contents
    assert contents.descriptors == 2
    order = LegOrder(1, 3, 250, Way.BOTH, 1 << 30)
    assert decode_order(encode_order(order)) == order
    for bad in (
        b"", b"[]", b"[1,2,3,4,5]", b'{"a": 1}', b"\xff",
        encode_contents(Contents(7, (part,), 23, 536)),
        encode_contents(Contents(7, (part,), 24, 535)),
        encode_contents(Contents(7, (Part("y", "FP32", (2,), 8, NOWHERE, NOWHERE),), 24, 536)),
        encode_contents(Contents(7, (Part("y", "FP32", (2,), -8, 0, NOWHERE),), 24, 0)),
        encode_contents(Contents(7, (), -1, 0)),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="tensors between two steps that cannot be"):
            decode_contents(bad)
