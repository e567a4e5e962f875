"""Outputs: written into the caller's memory, kept aside when too large, refused when not as declared."""

from __future__ import annotations

import numpy as np
import pytest

from fabric.dtypes import DType
from fabric.errors import ModelFailed
from fabric.memory.lease import tensors
from workers.backends.base import Declared, Outputs, fits
from workers.modelconfig import TensorDecl

DECLARED = (
    TensorDecl("a", "FP32", (-1,)),
    TensorDecl("b", "INT64", (2, -1)),
    TensorDecl("t", "BYTES", (-1,)),
    TensorDecl("h", "BF16", (2,)),
)


def outputs(*names: str, room: int = 4096) -> tuple[Outputs, memoryview]:
    memory = memoryview(bytearray(room))
    return Outputs(Declared("m", tuple(decl for decl in DECLARED if decl.name in names)), memory), memory


def test_assigned_and_allocated_outputs_lie_in_the_callers_memory() -> None:
    out, memory = outputs("a", "b", "t", "h")
    out["a"] = np.arange(3, dtype=np.float32)
    out.allocate("b", "INT64", (2, 1))[:] = [[7], [8]]
    out["t"] = np.array([b"x", b"yz"], dtype=object)
    out["h"] = np.array([1, 2], dtype=np.uint16)
    layout, aside = out.finish()
    assert aside is None
    a, b, t, h = tensors(memory, layout)
    assert (a.tolist(), b.tolist(), t.tolist(), h.tolist()) == ([0, 1, 2], [[7], [8]], [b"x", b"yz"], [1, 2])
    assert [spec.dtype for spec in layout.specs] == [DType.FP32, DType.INT64, DType.BYTES, DType.BF16]
    assert all(offset % 64 == 0 for offset in layout.offsets)


@pytest.mark.parametrize("room", [0, 64, 128, 191])
def test_what_does_not_fit_is_kept_aside_whole(room: int) -> None:
    out, _memory = outputs("a", "b", room=room)
    out["a"] = np.arange(16, dtype=np.float32)
    out.allocate("b", np.int64, (2, 5))[:] = 3
    layout, aside = out.finish()
    assert aside is not None
    assert len(aside) == layout.body_bytes == 192
    a, b = tensors(memoryview(aside), layout)
    assert a.tolist() == list(range(16))
    assert (b == 3).all()


def test_a_strided_or_foreign_order_array_is_copied_right() -> None:
    out, memory = outputs("a", "b")
    out["a"] = np.arange(6, dtype=np.float32)[::2]
    out["b"] = np.arange(4, dtype=">i8").reshape(2, 2).T
    layout, _ = out.finish()
    a, b = tensors(memory, layout)
    assert (a.tolist(), b.tolist()) == ([0, 2, 4], [[0, 2], [1, 3]])


def test_an_alias_of_an_input_is_copied() -> None:
    source = np.arange(4, dtype=np.float32)
    out, memory = outputs("a")
    out["a"] = source
    source[:] = 9
    layout, _ = out.finish()
    assert tensors(memory, layout)[0].tolist() == [0, 1, 2, 3]


def test_empty_outputs() -> None:
    out, memory = outputs("a", room=0)
    out["a"] = np.empty(0, np.float32)
    layout, aside = out.finish()
    assert aside is None
    assert tensors(memory, layout)[0].shape == (0,)


@pytest.mark.parametrize(
    ("says", "misuse"),
    [
        ("does not declare", lambda out: out.allocate("z", "FP32", (1,))),
        ("sets output 'a' as FP64", lambda out: out.allocate("a", "FP64", (1,))),
        ("sets output 'a' as FP32 [1, 1]", lambda out: out.allocate("a", np.float32, (1, 1))),
        ("sets output 'b' as INT64 [3, 1]", lambda out: out.allocate("b", int, [3, 1])),
        ("twice", lambda out: [out.allocate("a", "FP32", (1,)) for _ in range(2)]),
        ("assign outputs['t']", lambda out: out.allocate("t", "BYTES", (1,))),
        ("of dtype 'nonsense'", lambda out: out.allocate("a", "nonsense", (1,))),
        ("sets output 't' as FP64", lambda out: out.__setitem__("t", 1.5)),
        ("sets output 'a' as BYTES", lambda out: out.__setitem__("a", "text")),
        ("without setting output 'a', 'b', 't'", lambda out: out.finish()),
    ],
)
def test_misuse_is_the_models_failure(says: str, misuse: object) -> None:
    assert callable(misuse)
    out, _ = outputs("a", "b", "t")
    with pytest.raises(ModelFailed) as caught:
        misuse(out)
    assert says in str(caught.value)


def test_checks_are_remembered_by_dtype_and_shape() -> None:
    declared = Declared("m", DECLARED)
    assert declared.spec("a", "FP32", (3,)) is declared.spec("a", "FP32", (3,))
    assert declared.spec("a", "FP32", (4,)).nbytes == 16


def test_fits() -> None:
    assert fits((-1, 2), (7, 2))
    assert not fits((-1, 2), (7, 3))
    assert not fits((-1,), (7, 2))
    assert fits((), ())
