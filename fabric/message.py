"""A request and its reply, as both ends see them: names, tensors, and what happened on the way.

Inputs are anything that numpy or DLPack can show; they are copied at most once, into a slot (`stage`). Outputs are
read-only numpy arrays over the reply's slot, which returns when the last of them is gone. This module never picks a
wire or a worker. Read `fabric/memory/slots.py`, then `fabric/frame.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np

from fabric.dtypes import DType, bytes_encode, dtype_of
from fabric.errors import InvalidArgument
from fabric.layout import Layout, TensorSpec, layout_of
from fabric.memory.copying import copy_array
from fabric.memory.lease import Lease, tensor_view

SMALL_BODY_BYTES: Final = 64 * 1024
"""Bodies below this are copied (64 KiB: about 2 us) instead of leased: cheaper than the accounting of a slot."""


class RequestId(NamedTuple):  # made for each request: a named tuple costs half of a frozen dataclass
    """`client_id` is 64 random bits of one client process, `request_no` counts its requests from 1. The pair is the
    idempotence key: it stays the same over retries, wires and nodes."""

    client_id: int
    request_no: int

    def __str__(self) -> str:
        return f"{self.client_id:016x}-{self.request_no}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named input: its spec and a C-contiguous array of its bytes."""

    spec: TensorSpec
    data: np.ndarray[Any, Any]

    @classmethod
    def of(cls, name: str, value: object) -> Tensor:
        """Makes a tensor of an array, a DLPack object on the CPU, a scalar, or a (nested) sequence.

        Strings and bytes become BYTES. Raises InvalidArgument for anything else, and for arrays on another device.
        """
        array = _as_array(name, value)
        dtype = dtype_of(array)
        if dtype is DType.BYTES:
            raw = np.frombuffer(bytes_encode(array.reshape(-1).tolist()), np.uint8)
            return cls(TensorSpec(name, dtype, array.shape, raw.nbytes), raw)
        if array.dtype != dtype.numpy:
            array = array.view(np.uint16) if dtype is DType.BF16 else array.astype(dtype.numpy)
        shape = array.shape
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return cls(TensorSpec(name, dtype, shape, array.nbytes), array)


def _as_array(name: str, value: object) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception:  # noqa: BLE001 - the object is another library's, which may raise anything
            raise InvalidArgument(
                f"input {name!r} is on a device, or of a kind numpy cannot see; copy it to the CPU as a numpy array"
            ) from None
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        raise InvalidArgument(f"input {name!r} is no array of one shape and dtype; give a numpy array") from None
    if array.dtype == np.dtype(object) and not all(isinstance(x, (bytes, str)) for x in array.reshape(-1)):
        raise InvalidArgument(f"input {name!r} holds {type(value).__name__} objects; give a numpy array, bytes or str")
    return array


@final
@dataclass(init=False, slots=True)
class Body:  # mutable: made for each request, see fabric/frame_values.py
    """The inputs of one request, staged: their layout and the memory that holds them, small bytes or a lease."""

    layout: Layout
    memory: bytes | Lease

    def __init__(
        self,
        layout: Layout,
        memory: bytes | Lease,
    ) -> None:
        self.layout = layout
        self.memory = memory

    def view(self) -> memoryview:
        """The body's bytes."""
        if isinstance(self.memory, Lease):
            return self.memory.view[: self.layout.body_bytes]
        return memoryview(self.memory)


def tensors_of(inputs: Mapping[Any, object]) -> tuple[Tensor, ...]:
    """The inputs as tensors, in the mapping's order. Raises InvalidArgument for what cannot travel."""
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(f"the inputs are a {type(inputs).__name__}; give arrays by name, such as {{'x': array}}")
    for name in inputs:
        if not isinstance(name, str):
            raise InvalidArgument(f"a tensor is named {name!r}, which is no text; name each one with a str")
    return tuple(Tensor.of(name, value) for name, value in inputs.items())


def write_tensors(memory: memoryview, layout: Layout, sources: tuple[Tensor, ...]) -> None:
    """Copies each tensor to its place in a body."""
    for spec, offset, source in zip(layout.specs, layout.offsets, sources, strict=True):
        if spec.nbytes and not spec.referred:
            target = tensor_view(memory, spec, offset)
            copy_array(target, source.data if source.data.shape == target.shape else source.data.reshape(target.shape))


def small_body(sources: tuple[Tensor, ...]) -> Body:
    """Stages tensors as plain bytes; meant for bodies below `SMALL_BODY_BYTES`."""
    layout = layout_of(tuple(source.spec for source in sources))
    if len(sources) == 1:
        return Body(layout, sources[0].data.tobytes().ljust(layout.body_bytes, b"\0"))
    memory = bytearray(layout.body_bytes)
    write_tensors(memoryview(memory), layout, sources)
    return Body(layout, bytes(memory))
