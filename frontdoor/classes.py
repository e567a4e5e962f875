"""An output told as classes: the highest values with their indices, as the protocol's `classification` has it.

Each row of a batch (the whole tensor, where there is no batch) becomes its `count` highest elements, as texts such as
`0.930000:207`. There are no labels: models here have no label files. Read `frontdoor/door.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fabric.dtypes import DType, bf16_to_float32, bytes_encode
from fabric.errors import InvalidArgument
from fabric.layout import TensorSpec


def classified(spec: TensorSpec, view: memoryview, count: int, *, batched: bool) -> tuple[TensorSpec, memoryview]:
    """The `count` highest classes of an output, as a BYTES tensor of its own. Raises InvalidArgument for BYTES."""
    if spec.dtype is DType.BYTES:
        raise InvalidArgument(f"output {spec.name!r} is BYTES, which has no classes; ask for it as it is")
    array: np.ndarray[Any, Any] = np.frombuffer(view, spec.dtype.numpy)
    if spec.dtype is DType.BF16:
        array = bf16_to_float32(array)
    height, rest = (spec.shape[0], spec.shape[1:]) if batched and spec.shape else (1, spec.shape)
    rows = array.reshape(height, prod(rest))
    count = min(count, rows.shape[1])
    texts = []
    for row in rows:
        best = np.argsort(-row.astype(np.float64), kind="stable")[:count]
        texts += [f"{row[index]:f}:{index}" if row.dtype.kind == "f" else f"{row[index]}:{index}" for index in best]
    raw = bytes_encode(texts)
    shape = (len(rows), count) if batched and spec.shape else (count,)
    return TensorSpec(spec.name, DType.BYTES, shape, len(raw)), memoryview(raw)
