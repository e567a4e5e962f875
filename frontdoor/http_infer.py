"""An inference over HTTP: JSON with tensors in it, or with raw bytes behind it (the protocol's binary extension).

The header `Inference-Header-Content-Length` tells where the JSON ends; behind it stand the binary tensors in order. A
length of 0 means that the body is one tensor and nothing else. This module never waits. Read
`frontdoor/http_service.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import TENSORS_MAX
from frontdoor.grpc_infer import PARAMETERS_MAX, classes_of
from frontdoor.typed import check_shape, check_text, dtype_named, raw_of, values_of
from frontdoor.values import Asked, Given, Options, Parameters, Place, Wanted, options_of, place_of

if TYPE_CHECKING:
    from frontdoor.engine import Model
    from frontdoor.values import Done

HEADER_LENGTH = "Inference-Header-Content-Length"
_DIGITS_MAX = 20
DEPTH_MAX = 32
"""Lists within lists of one tensor: as many dimensions as one may have."""


def text_length(body: bytes, header_length: str | None) -> int:
    """Where the JSON of a body ends. Raises InvalidArgument for a header that tells nothing, RESOURCE_EXHAUSTED for
    more JSON than is read here."""
    length = len(body)
    if header_length is not None:
        digits = header_length.isascii() and header_length.isdigit() and len(header_length) < _DIGITS_MAX
        if not digits or int(header_length) > len(body):
            raise InvalidArgument(f"{HEADER_LENGTH} is {header_length[:40]!r}; the body has {len(body)} bytes")
        length = int(header_length)
    check_text(length)
    return length


def read_request(model: str, version: str, body: bytes, header_length: str | None) -> Asked:
    """The request in a body that is not one bare tensor. Raises InvalidArgument for what is none."""
    length = text_length(body, header_length)
    facts = parse_object(body[:length], "the request")
    parameters = _parameters(facts)
    options = options_of(parameters)
    binary = _Binary(memoryview(body)[length:])
    inputs = tuple(_given(each, binary) for each in _list(facts, "inputs"))
    binary.check_over()
    outputs = tuple(_wanted(each, options) for each in _list(facts, "outputs"))
    return Asked(model, version, _text(facts, "id"), inputs, outputs, options)


def read_bare(model: Model, version: str, body: bytes) -> Asked:
    """The request whose body is the only input of a model. Raises InvalidArgument where that cannot be told apart."""
    if len(model.inputs) != 1:
        raise InvalidArgument(
            f"model {model.name!r} has {len(model.inputs)} inputs; only one may come without a header"
        )
    (tensor,) = model.inputs
    dtype = DType[tensor.dtype]
    if dtype is DType.BYTES:
        body = len(body).to_bytes(4, "little") + body
    # A batch has one row here; then one size at most may be open.
    dims = (1, *tensor.dims[1:]) if model.max_batch_size else tensor.dims
    known = prod(dim for dim in dims if dim >= 0)
    elements = 1 if dtype is DType.BYTES else len(body) // dtype.numpy.itemsize
    whole = dtype is DType.BYTES or len(body) == elements * dtype.numpy.itemsize
    if dims.count(-1) > 1 or not whole or (known and elements % known):
        raise InvalidArgument(f"a bare body of {len(body)} bytes fits no shape {list(dims)}; send it with a header")
    shape = tuple(elements // max(1, known) if dim < 0 else dim for dim in dims)
    given = Given(tensor.name, dtype, shape, memoryview(body))
    return Asked(model.name, version, "", (given,), (), Options(binary_output=True))


class _Binary:  # mutable: a cursor over what stands behind the JSON
    def __init__(self, rest: memoryview) -> None:
        self._rest = rest
        self._at = 0

    def take(self, name: str, nbytes: int) -> memoryview:
        if nbytes > len(self._rest) - self._at:
            raise InvalidArgument(f"input {name!r} of {nbytes} bytes ends behind the body; send all of it")
        self._at += nbytes
        return self._rest[self._at - nbytes : self._at]

    def check_over(self) -> None:
        if self._at != len(self._rest):
            raise InvalidArgument(f"{len(self._rest) - self._at} bytes stand behind the last input; correct the sizes")


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """An object of JSON; an empty text is an empty one. Raises InvalidArgument."""
    if not raw:
        return {}
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidArgument(f"{what} is no JSON; send an object") from None
    if not isinstance(facts, dict):
        raise InvalidArgument(f"{what} is no JSON object; send one")
    return facts


def _list(facts: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = facts.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidArgument(f"{name!r} is no list of objects; give one")
    if len(found) > TENSORS_MAX:
        raise InvalidArgument(f"a request has {len(found)} {name}; at most {TENSORS_MAX} travel, so join some")
    return found


def _text(facts: dict[str, Any], name: str) -> str:
    found = facts.get(name, "")
    if not isinstance(found, str):
        raise InvalidArgument(f"{name!r} is {found!r}; give a text")
    return found


def _parameters(facts: dict[str, Any]) -> Parameters:
    found = facts.get("parameters", {})
    if isinstance(found, dict) and len(found) > PARAMETERS_MAX:
        raise InvalidArgument(f"there are {len(found)} parameters where {PARAMETERS_MAX} at most are taken; send fewer")
    if not isinstance(found, dict) or not all(isinstance(each, bool | int | float | str) for each in found.values()):
        raise InvalidArgument("'parameters' is no object of texts, numbers and booleans; give one")
    return tuple(found.items())


def _given(facts: dict[str, Any], binary: _Binary) -> Given:
    name, parameters = _text(facts, "name"), _parameters(facts)
    dtype = dtype_named(name, _text(facts, "datatype"))
    shape = facts.get("shape")
    if not isinstance(shape, list) or not all(isinstance(dim, int) and not isinstance(dim, bool) for dim in shape):
        raise InvalidArgument(f"input {name!r} has shape {str(shape)[:80]}; give a list of whole numbers")
    check_shape(name, shape)
    place = place_of(name, parameters)
    size = dict(parameters).get("binary_data_size")
    if sum(("data" in facts, place is not None, size is not None)) != 1:
        raise InvalidArgument(f"input {name!r} needs one of data, binary_data_size and shared_memory_region")
    data: memoryview | Place
    if place is not None:
        data = place
    elif size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidArgument(f"binary_data_size of input {name!r} is {size!r}; give a number of bytes")
        data = binary.take(name, size)
    else:
        values: list[Any] = []
        _flatten(facts["data"], values, name, 0)
        if dtype is not DType.BYTES and any(isinstance(value, str) for value in values):
            raise InvalidArgument(f"input {name!r} is {dtype.name} and holds a text; correct it")
        data = raw_of(name, dtype, shape, values)
    return Given(name, dtype, tuple(shape), data)


def _flatten(data: object, into: list[Any], name: str, depth: int) -> None:
    """Rows may be nested or not, as the protocol has it."""
    if not isinstance(data, list):
        into.append(data)
        return
    if depth > DEPTH_MAX:
        raise InvalidArgument(f"the data of input {name!r} is nested over {DEPTH_MAX} deep; flatten it")
    for each in data:
        _flatten(each, into, name, depth + 1)


def _wanted(facts: dict[str, Any], options: Options) -> Wanted:
    name, parameters = _text(facts, "name"), _parameters(facts)
    binary = dict(parameters).get("binary_data", options.binary_output)
    if not isinstance(binary, bool):
        raise InvalidArgument(f"binary_data of output {name!r} is {binary!r}; give true or false")
    return Wanted(name, place_of(name, parameters), classes_of(name, parameters), binary)


def text_bytes(done: Done) -> int:
    """The bytes of a reply that are to be told in JSON."""
    return sum(each.spec.nbytes for each in done.outputs if each.data is not None and not each.wanted.binary)


def write_response(done: Done) -> tuple[bytes, int | None]:
    """The body of a response, and where its JSON ends if there is more. Raises InvalidArgument for an output that JSON
    cannot hold."""
    outputs: list[str] = []
    behind: list[memoryview] = []
    for output in done.outputs:
        spec = output.spec
        told: dict[str, Any] = {"name": spec.name, "datatype": spec.dtype.name, "shape": list(spec.shape)}
        # Of what went to shared memory nothing is told: stock clients take any parameters for a binary tensor's.
        if output.data is not None and output.wanted.binary:
            told["parameters"] = {"binary_data_size": spec.nbytes}
            behind.append(output.data)
        if output.place is None and output.data is not None and not output.wanted.binary:
            # Some at a time: the encoder holds the interpreter, which other requests want too.
            parts = values_of(spec.dtype, prod(spec.shape), output.data)
            data = ", ".join(json.dumps(part)[1:-1] for part in parts)
            outputs.append(f'{json.dumps(told)[:-1]}, "data": [{data}]}}')
        else:
            outputs.append(json.dumps(told))
    facts = {"model_name": done.model, "model_version": done.version, **({"id": done.id} if done.id else {})}
    head = f'{json.dumps(facts)[:-1]}, "outputs": [{", ".join(outputs)}]}}'.encode()
    return b"".join((head, *behind)), len(head) if behind else None
