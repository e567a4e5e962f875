"""The table of bad requests: what is sent, which error answers it, its fate, and words that say what to do.

Each row is sent every way (`tests/integration/bad_ways.py`) unless it says otherwise, and a good request follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import (
    DeadlineExceeded,
    Fate,
    InvalidArgument,
    ModelFailed,
    OverspillError,
    ResourceExhausted,
    UnknownModel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

F32, I32, I64 = np.float32, np.int32, np.int64
ROUTERS = ("router", "async")
EVERY = (*ROUTERS, "channel")
X = np.arange(4, dtype=F32)
A, B = np.ones((1, 3), F32), np.ones((1, 2), I32)
NOTE = np.array([b"/dev/null"])


class OnDevice:
    """A tensor of another library that lies where numpy cannot see it."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __dlpack__(self, **_: object) -> object:
        raise self._error

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class NoDevice:
    """A DLPack object without the half of the protocol that numpy asks first."""

    def __dlpack__(self) -> object:
        raise BufferError


@dataclass(frozen=True, slots=True)
class Row:
    """One bad request. `kinds` are the ways that it makes sense for."""

    name: str
    model: str
    inputs: Mapping[str, object]
    error: type[OverspillError] = InvalidArgument
    fate: Fate = Fate.NEVER_RAN
    words: tuple[str, ...] = ()
    timeout_s: float = 20.0
    priority: int = 0
    kinds: tuple[str, ...] = EVERY
    quotes_model: bool = field(default=False)


def _shapes() -> tuple[Row, ...]:
    many = {f"t{number}": X for number in range(300)}
    return (
        Row("dtype", "double", {"x": X.astype(np.float64)}, words=("'x'", "FP64", "FP32")),
        Row("dtype of integers", "pair", {"a": A, "b": B.astype(I64)}, words=("'b'", "INT64", "INT32")),
        Row("size", "pair", {"a": np.ones((1, 4), F32), "b": B}, words=("'a'", "[1, 4]", "[-1, 3]")),
        Row("rank", "double", {"x": np.ones((2, 2), F32)}, words=("'x'", "[2, 2]", "[-1]")),
        Row("scalar", "double", {"x": F32(1)}, words=("'x'", "[]", "[-1]")),
        Row("rows", "pair", {"a": np.ones((9, 3), F32), "b": np.ones((9, 2), I32)}, words=("9 rows", "at most 8")),
        Row("missing input", "pair", {"a": A}, words=("needs input 'b'", "INT32")),
        Row("no input", "double", {}, words=("needs input 'x'",)),
        Row("unknown input", "double", {"x": X, "w": X}, words=("no input 'w'", "x")),
        Row("other case", "double", {"X": X}, words=("'x'",), kinds=("channel",)),
        Row("mistyped input", "double", {"X": X}, words=("'X'", "give x"), kinds=ROUTERS),
        Row("empty name", "double", {"": X}, words=("empty", "shorten")),
        Row("long name", "double", {"n" * 300: X}, words=("255 bytes", "shorten")),
        Row("many tensors", "double", many, words=("300 tensors", "at most 256", "join")),
        Row("many dimensions", "double", {"x": np.ones((1,) * 33, F32)}, words=("33 dimensions", "at most 32")),
        Row("long descriptors", "double", {f"{n:03}" + "n" * 250: X for n in range(256)}, words=("shorten",),
            kinds=("channel",)),
    )  # fmt: skip


def _values() -> tuple[Row, ...]:
    nan, inf = X.copy(), X.copy()
    nan[1], inf[2] = np.nan, -np.inf
    finite = ("NaN or infinity", "send finite numbers")
    record = np.zeros(2, [("a", F32), ("b", I32)])
    return (
        Row("object array", "double", {"x": np.array([object()])}, words=("bytes or str",)),
        Row("objects in a list", "double", {"x": [object(), 1]}, words=("'x'", "numpy array")),
        Row("mapping for an array", "double", {"x": {"y": 1}}, words=("'x'", "numpy array")),
        Row("None", "double", {"x": None}, words=("'x'", "numpy array")),
        Row("ragged list", "double", {"x": [[1.0], [1.0, 2.0]]}, words=("'x'", "numpy array")),
        Row("complex", "double", {"x": X.astype(np.complex64)}, words=("complex64", "convert", "FP32")),
        Row("dates", "double", {"x": X.astype("datetime64[s]")}, words=("datetime64", "convert")),
        Row("records", "double", {"x": record}, words=("convert",)),
        Row("on a device", "double", {"x": OnDevice(BufferError("it is elsewhere"))}, words=("'x'", "device", "copy")),
        Row("device that fails", "double", {"x": OnDevice(ValueError("no stream"))}, words=("'x'", "device", "copy")),
        Row("half of DLPack", "double", {"x": NoDevice()}, words=("'x'", "device", "copy")),
        Row("NaN", "finite", {"x": nan}, words=finite),
        Row("infinity", "finite", {"x": inf}, words=finite),
        Row("name of no text", "double", {1: X}, words=("name", "text")),  # type: ignore[dict-item]
        Row("inputs of no names", "double", [X], words=("inputs", "by name")),  # type: ignore[arg-type]
    )


def _models() -> tuple[Row, ...]:
    ran, known = Fate.RAN, ("double",)
    return (
        Row("unknown model", "dubble", {"x": X}, UnknownModel, words=("'dubble'", *known)),
        Row("empty model name", "", {"x": X}, UnknownModel, words=("''",)),
        Row("long model name", "m" * 70_000, {"x": X}, UnknownModel, words=("mmm",), kinds=ROUTERS),
        Row("longer than a frame", "m" * 70_000, {"x": X}, words=("shorten",), kinds=("channel",)),
        Row("model refuses", "raises", {"what": [b"ValueError"]}, fate=ran, words=("'raises'", "ask for something")),
        Row("model fails", "raises", {"what": [b"KeyError"]}, ModelFailed, ran, ("'raises'", "missing"),
            quotes_model=True),
        Row("model says much", "raises", {"what": [b"multiline"]}, ModelFailed, ran, ("first line second line",),
            quotes_model=True),
        Row("model out of memory", "raises", {"what": [b"MemoryError"]}, ResourceExhausted, ran, ("send less",)),
        Row("undeclared output", "answers", {"what": [b"name"]}, ModelFailed, ran, ("'z'", "config.pbtxt")),
        Row("output dtype", "answers", {"what": [b"dtype"]}, ModelFailed, ran, ("FP64", "declares FP32")),
        Row("output shape", "answers", {"what": [b"shape"]}, ModelFailed, ran, ("[3]", "declares FP32 [2]")),
        Row("no output", "answers", {"what": [b"missing"]}, ModelFailed, ran, ("without setting output 'y'",)),
        Row("output twice", "answers", {"what": [b"twice"]}, ModelFailed, ran, ("'y' twice",)),
        Row("output of no dtype", "answers", {"what": [b"complex"]}, ModelFailed, ran, ("'y'", "complex64")),
    )  # fmt: skip


def _times() -> tuple[Row, ...]:
    act = {"what": [b"sleep 1000"], "note": NOTE}
    seconds = ("give seconds between 0 and",)
    late, unknown = DeadlineExceeded, Fate.UNKNOWN
    return (
        Row("no time", "double", {"x": X}, late, words=("over", "give"), timeout_s=0.0),
        Row("a nanosecond", "double", {"x": X}, late, words=("give",), timeout_s=1e-9),
        Row("too little time", "act", act, late, unknown, words=("give", "time"), timeout_s=0.4),
        Row("negative time", "double", {"x": X}, words=("-1", *seconds), timeout_s=-1.0),
        Row("NaN seconds", "double", {"x": X}, words=("nan", *seconds), timeout_s=float("nan")),
        Row("endless time", "double", {"x": X}, words=("inf", *seconds), timeout_s=float("inf")),
        Row("milliseconds as seconds", "double", {"x": X}, words=seconds, timeout_s=100_000.0),
        Row("time of no number", "double", {"x": X}, words=seconds, timeout_s="1"),  # type: ignore[arg-type]
        Row("priority above", "double", {"x": X}, words=("priority is 256", "0 to 255"), priority=256, kinds=ROUTERS),
        Row("priority below", "double", {"x": X}, words=("priority is -1", "0 to 255"), priority=-1, kinds=ROUTERS),
        Row("half a priority", "double", {"x": X}, words=("1.5", "0 to 255"), priority=1.5,  # type: ignore[arg-type]
            kinds=ROUTERS),
        Row("priority in words", "double", {"x": X}, words=("'high'", "0 to 255"), kinds=ROUTERS,
            priority="high"),  # type: ignore[arg-type]
    )  # fmt: skip


ROWS = (*_shapes(), *_values(), *_models(), *_times())
