"""What is wrong with a request before anything of it is copied: outputs that nobody has, sizes that do not add up.

It knows a model as its engine tells of it, and no tensor's values. Read `frontdoor/door.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import BODY_BYTES_MAX, NDIM_MAX, TensorSpec

if TYPE_CHECKING:
    from frontdoor.engine import Model
    from frontdoor.values import Asked, Given


def strange(model: Model, asked: Asked) -> str:
    """The first output asked for that the model is not known to have; none where its outputs are not known."""
    known = {tensor.name for tensor in model.outputs}
    return next((wanted.name for wanted in asked.outputs if known and wanted.name not in known), "")


def check_wanted(model: Model, asked: Asked) -> None:
    """Raises InvalidArgument for an output that the model has not, or that is asked for twice."""
    if unknown := strange(model, asked):
        names = ", ".join(tensor.name for tensor in model.outputs)
        raise InvalidArgument(f"model {model.name!r} has no output {unknown[:80]!r}; it has {names}")
    if len({wanted.name for wanted in asked.outputs}) != len(asked.outputs):
        raise InvalidArgument("an output is asked for twice; ask for each once")


def spec_of(given: Given) -> TensorSpec:
    """The spec of an input. Raises InvalidArgument where shape and bytes do not add up."""
    if len(given.shape) > NDIM_MAX or any(dim < 0 for dim in given.shape):
        raise InvalidArgument(f"input {given.name[:80]!r} has shape {list(given.shape)[:8]}; give sizes of at least 0")
    nbytes = given.data.nbytes
    if given.dtype is DType.BYTES:
        return TensorSpec(given.name, given.dtype, given.shape, nbytes)
    expected = prod(given.shape) * given.dtype.numpy.itemsize
    if expected != nbytes or expected > BODY_BYTES_MAX:
        raise InvalidArgument(
            f"input {given.name[:80]!r} brings {nbytes} bytes; its shape {list(given.shape)} of {given.dtype.name}"
            f" takes {expected}"
        )
    return TensorSpec(given.name, given.dtype, given.shape, nbytes)
