"""The contract between an executor and whatever runs a model: read-only inputs in, named outputs out.

Outputs are written straight into the memory that the caller gave for the reply (`allocate`), or copied there once. What
does not fit is kept aside and told as too large, so that it never has to run twice. This module runs no model and sends
nothing. Read `workers/backends/python.py` next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fabric.dtypes import DType, bytes_encode, dtype_of
from fabric.errors import InvalidArgument, ModelFailed
from fabric.layout import ALIGN_BYTES, Layout, TensorSpec, layout_of
from fabric.memory.copying import copy_array
from workers.modelconfig import ModelConfig, TensorDecl

if TYPE_CHECKING:
    from workers.backends.on_card import CardArray

    Array = np.ndarray[Any, Any]

__all__ = ["Backend", "Inputs", "ModelConfig", "Outputs"]

CHECKED_MAX = 1024
"""Shapes of outputs that are remembered per model; beyond it they are checked again."""


class Inputs(Mapping[str, "Array"]):
    """The inputs of one request by name, as read-only arrays that are good until `execute` returns.

    Floats are views of the caller's memory, which the caller could change under the model's hands; everything that can
    choose an address (integers, BOOL, BYTES) is a private copy, so what was checked stays as it was. BF16 comes as
    uint16, BYTES as an object array of bytes.
    """

    __slots__ = ("_arrays", "_cards", "_residents")

    def __init__(
        self, arrays: dict[str, Array], residents: dict[str, bytes] | None = None,
        cards: dict[str, CardArray] | None = None,
    ) -> None:  # fmt: skip
        self._arrays = arrays
        self._residents = residents
        self._cards = cards

    def resident(self, name: str) -> bytes:
        """What names the content of an input that its caller keeps here over many requests (the same bytes have the
        same name), so that a model may keep what it makes of it, such as a copy on a device; empty for any other."""
        return self._residents.get(name, b"") if self._residents else b""

    def on_card(self, name: str) -> CardArray | None:
        """An input that lies on the executor's card already; None for one that is in `self[name]`. Only models that
        say `card_memory` meet any, and must not write there."""
        return self._cards.get(name) if self._cards is not None else None

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class Declared:  # mutable: remembers what it has checked
    """The outputs that a model declares. Names, dtypes and shapes repeat from run to run, so each is checked once."""

    __slots__ = ("_checked", "model", "tensors")

    def __init__(self, model: str, tensors: tuple[TensorDecl, ...]) -> None:
        self.model = model
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self._checked: dict[tuple[str, object, tuple[int, ...]], TensorSpec] = {}

    def spec(self, name: str, dtype: object, shape: tuple[int, ...]) -> TensorSpec:
        """The spec of an output of fixed size. Raises ModelFailed when it is not as declared."""
        try:
            known = self._checked.get((name, dtype, shape))
        except TypeError:
            known = None  # a list for a shape, which `_make` understands as well
        return known or self._make(name, dtype, tuple(map(int, shape)))

    def check(self, spec: TensorSpec) -> None:
        """Raises ModelFailed for an output that is not declared, or not so."""
        declared = self.tensors.get(spec.name)
        if declared is None:
            raise ModelFailed(
                f"model {self.model!r} sets output {spec.name!r}, which its config.pbtxt does not declare; add it there"
            )
        if declared.dtype != spec.dtype.name or not fits(declared.dims, spec.shape):
            raise ModelFailed(
                f"model {self.model!r} sets output {spec.name!r} as {spec.dtype.name} {list(spec.shape)};"
                f" its config.pbtxt declares {declared.dtype} {list(declared.dims)}; make them equal"
            )

    def _make(self, name: str, dtype: object, shape: tuple[int, ...]) -> TensorSpec:
        kind = _dtype(dtype)
        declared = self.tensors.get(name)
        if declared is not None and declared.dtype == "BF16" and kind is DType.UINT16:
            kind = DType.BF16  # numpy has no such dtype: its bits are what a model can give
        if kind is DType.BYTES:
            raise ModelFailed(f"model {self.model!r} allocates BYTES for {name!r}; assign outputs[{name!r}] instead")
        spec = TensorSpec(name, kind, shape, prod(shape) * kind.numpy.itemsize)
        self.check(spec)
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked[name, dtype, shape] = spec
        return spec


class Targets(Protocol):
    """Where outputs of one request are wanted on a card."""

    @property
    def reserves(self) -> bool:
        """Whether the reply has room for them all the same, as its descriptors say."""

    def take(self, spec: TensorSpec) -> CardArray | None:
        """Where a model writes that one itself; None for an output that is not wanted there."""


class Outputs:  # mutable: filled by the model, then finished once
    """The outputs of one request. A model sets each declared one, once, by `outputs[name] = array` or `allocate`.

    Raises ModelFailed for a name that is not declared or comes twice, and for a dtype or shape that is not as declared.
    """

    __slots__ = ("_aside", "_at", "_declared", "_elsewhere", "_memory", "_specs", "_targets")

    def __init__(self, declared: Declared, memory: memoryview, targets: Targets | None = None) -> None:
        self._declared = declared
        self._targets = targets
        self._elsewhere: set[str] = set()
        self._memory = memory
        self._at = 0
        self._specs: dict[str, TensorSpec] = {}
        self._aside: list[tuple[int, memoryview]] = []

    def allocate(self, name: str, dtype: str | type | np.dtype[Any] | DType, shape: tuple[int, ...]) -> Array:
        """Memory for an output, uninitialised: write every element before `execute` returns, and none afterwards.

        `dtype` is a numpy dtype or a datatype's name such as "FP32". BYTES have no fixed size: assign them instead.
        """
        spec = self._declared.spec(name, dtype, shape)
        return np.ndarray(spec.shape, spec.dtype.numpy, self._place(spec))

    def on_card(self, name: str, dtype: str | type | np.dtype[Any] | DType, shape: tuple[int, ...]) -> CardArray | None:
        """Where on the executor's card an output is wanted: write every element there before `execute` returns. None
        where it is not, and `allocate` has to be asked. Only models that say `card_memory` meet any."""
        if self._targets is None:
            return None
        spec = self._declared.spec(name, dtype, shape)
        there = self._targets.take(spec)
        if there is not None and self._targets.reserves:
            self._place(spec)
        elif there is not None:
            self._check_new(name)
            self._elsewhere.add(name)
        return there

    def __setitem__(self, name: str, value: object) -> None:
        array, kind, raw = self._seen(name, value)
        if kind is DType.BYTES:
            spec = TensorSpec(name, kind, array.shape, len(raw))
            self._declared.check(spec)
            self._place(spec)[:] = raw
            return
        spec = self._declared.spec(name, kind, array.shape)
        target = np.ndarray(spec.shape, spec.dtype.numpy, self._place(spec))
        copy_array(target, array.view(np.uint16) if kind is DType.BF16 and array.dtype != np.uint16 else array)

    def _seen(self, name: str, value: object) -> tuple[Array, DType, bytes]:
        """The value as an array, its datatype, and the serialised form of BYTES. What cannot travel is the model's
        fault here, and not the caller's."""
        try:
            array = np.asarray(value)
            kind = dtype_of(array)
            raw = bytes_encode(array.reshape(-1).tolist()) if kind is DType.BYTES else b""
        except (InvalidArgument, ValueError) as error:
            raise ModelFailed(f"model {self._declared.model!r} sets output {name!r} to no tensor: {error}") from None
        return array, kind, raw

    def finish(self) -> tuple[Layout, bytes | None]:
        """The layout of the reply and, when it did not fit the caller's memory, its bytes."""
        if len(self._specs) + len(self._elsewhere) < len(self._declared.tensors):
            set_by = self._specs.keys() | self._elsewhere
            missing = ", ".join(repr(name) for name in self._declared.tensors if name not in set_by)
            raise ModelFailed(
                f"model {self._declared.model!r} returned without setting output {missing}; set it in execute"
            )
        layout = layout_of(tuple(self._specs.values()))
        if not self._aside:
            return layout, None
        body = bytearray(layout.body_bytes)
        in_place = self._aside[0][0]
        body[:in_place] = self._memory[:in_place]
        for offset, memory in self._aside:
            body[offset : offset + len(memory)] = memory
        return layout, bytes(body)

    @property
    def any(self) -> bool:
        """Whether an output was set."""
        return bool(self._specs)

    def _check_new(self, name: str) -> None:
        if name in self._specs or name in self._elsewhere:
            raise ModelFailed(f"model {self._declared.model!r} sets output {name!r} twice")

    def _place(self, spec: TensorSpec) -> memoryview:
        self._check_new(spec.name)
        self._specs[spec.name] = spec
        offset = self._at
        self._at = end = -(-(offset + spec.nbytes) // ALIGN_BYTES) * ALIGN_BYTES
        if end <= len(self._memory) and not self._aside:
            return self._memory[offset : offset + spec.nbytes]
        aside = memoryview(bytearray(spec.nbytes))
        self._aside.append((offset, aside))
        return aside


def fits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape is as declared; -1 stands for any size."""
    return len(dims) == len(shape) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))


def _dtype(given: object) -> DType:
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given in DType.__members__:
        return DType[given]
    try:
        return dtype_of(np.empty(0, given))
    except (TypeError, InvalidArgument) as error:
        raise ModelFailed(f"the model asks for an output of dtype {given!r} ({error}); give a numpy dtype") from None


class Backend(Protocol):
    """A loaded model. Any exception of `execute` becomes the request's error; the executor lives on."""

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs one request: reads `inputs`, sets every declared output."""

    def warm_up(self) -> bool:
        """Does what the first request would otherwise pay for; False when the model has nothing to do."""

    # Backends that take `Inputs.on_card` and `Outputs.on_card` say so by an attribute `reads_cards` that is True.
