"""A request and its reply as the front door handles them, whichever protocol they came by.

`frontdoor/grpc_infer.py` and `frontdoor/http_infer.py` read requests into these values and write replies from them.
Nothing is checked here but what a value must be to be one. Read `frontdoor/door.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.dtypes import DType
    from fabric.layout import TensorSpec

Parameter = bool | int | float | str
Parameters = tuple[tuple[str, Parameter], ...]

RESERVED = "triton_"
EMPTY_FINAL = "triton_enable_empty_final_response"
_TIMEOUT_US_MAX = 2**63 - 1
_PRIORITY_LOWEST = 255
"""Levels on a node end here; the protocol's priorities have 64 bits."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a registered region: `offset` and `nbytes` within it."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Given:
    """One input: its bytes in the protocol's raw form, or the place in shared memory where they lie."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: memoryview | Place


@dataclass(frozen=True, slots=True)
class Wanted:
    """One requested output: where it goes, in how many classes it is told (0: as it is), and for HTTP its form."""

    name: str
    place: Place | None = None
    classes: int = 0
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What the parameters of a request say. `timeout_us` 0 is none."""

    priority: int = 0
    timeout_us: int = 0
    empty_final: bool = False
    binary_output: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `outputs` empty wants all of them."""

    model: str
    version: str
    id: str
    inputs: tuple[Given, ...]
    outputs: tuple[Wanted, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class Output:
    """One output: `data` lies in the engine's memory; it is None when the bytes went to `place`."""

    spec: TensorSpec
    data: memoryview | None
    place: Place | None
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Done:
    """A reply. `release` gives its memory back; nothing of it may be read afterwards."""

    model: str
    version: str
    id: str
    outputs: tuple[Output, ...]
    release: Callable[[], None]


def _whole(name: str, value: Parameter) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"parameter {name!r} is {value!r}; give a whole number of at least 0")
    return value


def _flag(name: str, value: Parameter) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"parameter {name!r} is {value!r}; give true or false")
    return value


def options_of(parameters: Parameters) -> Options:
    """Reads a request's parameters; those of its own go by unread, as no model here takes any.

    Raises InvalidArgument for a value of the wrong kind, and for a name reserved for Triton that means nothing here.
    """
    priority = timeout_us = 0
    empty_final = binary_output = False
    for name, value in parameters:
        if name == "priority":
            priority = min(_whole(name, value), _PRIORITY_LOWEST)
        elif name == "timeout":
            timeout_us = min(_whole(name, value), _TIMEOUT_US_MAX)
        elif name == "sequence_id":
            if isinstance(value, float | bool):
                raise InvalidArgument(f"parameter {name!r} is {value!r}; give a whole number or a text")
        elif name in {"sequence_start", "sequence_end"}:
            _flag(name, value)
        elif name == "binary_data_output":
            binary_output = _flag(name, value)
        elif name == EMPTY_FINAL:
            empty_final = _flag(name, value)
        elif name.startswith(RESERVED):
            raise InvalidArgument(f"parameter {name!r} is reserved and unknown here; choose a name of your own")
    return Options(priority, timeout_us, empty_final, binary_output)


def place_of(tensor: str, parameters: Parameters) -> Place | None:
    """The shared memory that a tensor's parameters name; None for none.

    Raises InvalidArgument where a part is missing or of the wrong kind.
    """
    found = dict(parameters)
    region = found.get("shared_memory_region")
    if region is None:
        if "shared_memory_byte_size" in found or "shared_memory_offset" in found:
            raise InvalidArgument(f"tensor {tensor!r} names a part of shared memory without its region; name that too")
        return None
    if not isinstance(region, str):
        raise InvalidArgument(f"parameter 'shared_memory_region' of {tensor!r} is {region!r}; give a region's name")
    nbytes = found.get("shared_memory_byte_size")
    if nbytes is None:
        raise InvalidArgument(f"tensor {tensor!r} lies in region {region!r} with no shared_memory_byte_size; give it")
    offset = found.get("shared_memory_offset", 0)
    return Place(region, _whole("shared_memory_offset", offset), _whole("shared_memory_byte_size", nbytes))
