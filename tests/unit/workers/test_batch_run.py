"""A batch gives each request what it would have got alone, and a bad one in it harms nobody else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.dtypes import DType, bytes_decode, bytes_encode
from fabric.errors import InvalidArgument, ModelFailed
from fabric.frame import NO_SLOT, Load, RequestFrame
from fabric.layout import TensorSpec, layout_of
from workers.batch_run import Member, Scratch, run_batch
from workers.execution import LoadedModel
from workers.handover import Task
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import numpy as np
CALLS = []
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        x = inputs["x"]
        CALLS.append(len(x))
        if (x == 13).any():
            raise ValueError("thirteen")
        if (x == 14).any():
            outputs["y"] = x[:1]
        else:
            outputs["y"] = x * 2
        outputs["t"] = np.array([text + b"!" for text in inputs["t"]], dtype=object)
"""
CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "t" data_type: TYPE_STRING dims: [ ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "t" data_type: TYPE_STRING dims: [ ] }
parameters { key: "refuse_nan" value { string_value: "true" } }
"""
IDEMPOTENT = 'parameters { key: "idempotent" value { string_value: "true" } }'


class Bench:
    """A device that is always well."""

    def begin(self, tenant_no: int, request: RequestFrame) -> None:
        pass

    def end(self) -> None:
        pass


BENCH = Bench()


def loaded(folder: Path, more: str = IDEMPOTENT) -> LoadedModel:
    (folder / "model.py").write_text(CODE)
    return LoadedModel(read_config(CONFIG + more, "m/config.pbtxt", "m", "1", str(folder)), 1)


def member(x: np.ndarray, texts: list[bytes], slot_bytes: int = 1 << 16, deadline_ns: int = 1 << 62) -> Member:
    raw = bytes_encode(texts)
    layout = layout_of((TensorSpec.of("x", DType.FP32, x.shape), TensorSpec("t", DType.BYTES, (len(texts),), len(raw))))
    body = bytearray(layout.body_bytes)
    body[: x.nbytes] = x.tobytes()
    body[layout.offsets[1] : layout.offsets[1] + len(raw)] = raw
    request = RequestFrame(7, 1, 0, 10**6, 0, 0, len(body), NO_SLOT, 0, 0, 0, "m", layout.encoded)
    made = Member(Task(0, 1, 1, 1, 0, deadline_ns, Load(0, 0, 0, 1)), request)
    made.body, made.slot = memoryview(body).toreadonly(), memoryview(bytearray(slot_bytes))
    return made


def outputs(made: Member) -> tuple[np.ndarray, list[bytes]]:
    run = made.run()
    memory = memoryview(run.aside) if run.aside is not None else made.slot
    found = {}
    for spec, offset in zip(run.layout.specs, run.layout.offsets, strict=True):
        found[spec.name] = (spec, bytes(memory[offset : offset + spec.nbytes]))
    spec, raw = found["y"]
    text_spec, text_raw = found["t"]
    return np.frombuffer(raw, np.float32).reshape(spec.shape), list(bytes_decode(text_raw, text_spec.shape[0]))


def rows_of(rng: random.Random, rows: int) -> tuple[np.ndarray, list[bytes]]:
    x = np.array([[rng.randint(100, 10**6), 1.0] for _ in range(rows)], np.float32)
    return x, [rng.randbytes(rng.choice((0, 1, 3, 500))) for _ in range(rows)]


@pytest.mark.parametrize("seed", range(5))
def test_each_gets_its_own_rows_texts_too(tmp_path: Path, seed: int) -> None:
    rng, model, scratch = random.Random(seed), loaded(tmp_path), Scratch()
    for _ in range(20):
        asked = [rows_of(rng, rng.randint(1, 9)) for _ in range(rng.randint(2, 6))]
        slots = [rng.choice((0, 64, 1 << 16)) for _ in asked]
        members = [member(x, texts, slot) for (x, texts), slot in zip(asked, slots, strict=True)]
        run_batch(model, members, scratch, BENCH, 1)
        for (x, texts), made in zip(asked, members, strict=True):
            y, t = outputs(made)
            assert (y == x * 2).all()
            assert t == [text + b"!" for text in texts]
            assert made.spent.rows == len(x)
            assert made.spent.batch_rows == sum(len(x) for x, _ in asked)
        assert [made.leads for made in members] == [True] + [False] * (len(members) - 1)


def test_a_member_that_cannot_run_with_the_rest_is_left_to_run_alone(tmp_path: Path) -> None:
    rng, model = random.Random(1), loaded(tmp_path)
    good = [member(*rows_of(rng, 2)) for _ in range(3)]
    nan, texts = rows_of(rng, 2)
    nan[1, 0] = np.nan
    wide = member(np.ones((2, 3), np.float32), [b"a", b"b"])
    uneven = member(np.ones((2, 2), np.float32), [b"a"])
    late = member(*rows_of(rng, 2), deadline_ns=0)
    large = member(*rows_of(rng, 65))
    spoilt = [member(nan, texts), wide, uneven, late, large]
    run_batch(model, [good[0], *spoilt, *good[1:]], Scratch(), BENCH, 1)
    assert [made.has_run for made in good] == [True] * 3
    assert [made.has_run for made in spoilt] == [False] * 5
    assert good[0].spent.batch_rows == 6


@pytest.mark.parametrize("bad", [13, 14])
def test_a_batch_that_failed_is_left_to_run_one_by_one_only_where_that_is_safe(tmp_path: Path, bad: int) -> None:
    rng = random.Random(1)
    guilty = np.full((2, 2), bad, np.float32), [b"a", b"b"]
    members = [member(*rows_of(rng, 2)), member(*guilty)]
    run_batch(loaded(tmp_path), members, Scratch(), BENCH, 1)
    assert [made.has_run for made in members] == [False, False]
    members = [member(*rows_of(rng, 2)), member(*guilty)]
    run_batch(loaded(tmp_path, ""), members, Scratch(), BENCH, 1)
    for made in members:
        with pytest.raises((InvalidArgument, ModelFailed)):
            made.run()
