"""A ModelInferRequest as `Asked`, and `Done` as a ModelInferResponse.

The shape of a message is checked here (raw or typed, how many, of which kind), its meaning in `frontdoor/door.py`. This
module never waits. Read `frontdoor/grpc_service.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fabric.errors import InvalidArgument
from fabric.layout import TENSORS_MAX
from frontdoor.envelope import FIELDS_MAX, joined, split, wrapped
from frontdoor.messages import message
from frontdoor.typed import FIELDS, check_text, dtype_named, raw_of
from frontdoor.values import Asked, Given, Parameters, Place, Wanted, options_of, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fabric.dtypes import DType
    from frontdoor.values import Done

_Request = message("ModelInferRequest")
_Response = message("ModelInferResponse")
_StreamResponse = message("ModelStreamInferResponse")
_INFER_RESPONSE = 2  # its field in ModelStreamInferResponse
CLASSES_MAX = 65_536
PARAMETERS_MAX = 1024
"""Of one tensor. Of a request there are as many as a message has fields."""


def read_request(raw: bytes) -> Asked:
    """The request in a message, its raw tensors uncopied. Raises InvalidArgument for what is no such message."""
    return read_parts(*split(raw))


def read_parts(head: bytes, contents: tuple[memoryview, ...]) -> Asked:
    """The request in a message whose raw tensors were cut out."""
    check_text(len(head))
    request = _Request()
    try:
        request.ParseFromString(head)
    except Exception:  # noqa: BLE001 - each of protobuf's implementations has an error of its own
        raise InvalidArgument("the message is no ModelInferRequest; send one") from None
    if max(len(request.inputs), len(request.outputs)) > TENSORS_MAX:
        raise InvalidArgument(f"a request has over {TENSORS_MAX} inputs or outputs; send fewer")
    return Asked(
        request.model_name,
        request.model_version,
        request.id,
        _inputs(request, contents),
        tuple(_wanted(each) for each in request.outputs),
        options_of(_parameters(request.parameters, FIELDS_MAX)),
    )


def _parameters(entries: Mapping[str, Any], limit: int = PARAMETERS_MAX) -> Parameters:
    if len(entries) > limit:
        raise InvalidArgument(f"there are {len(entries)} parameters where {limit} at most are taken; send fewer")
    found = []
    for name, value in entries.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidArgument(f"parameter {name[:80]!r} has no value; give it one, or leave it out")
        found.append((name, getattr(value, kind)))
    return tuple(found)


def _inputs(request: Any, contents: tuple[memoryview, ...]) -> tuple[Given, ...]:
    """`contents` has an entry for each input that is not in shared memory, in order; or there are none at all."""
    found = []
    at = 0
    for tensor in request.inputs:
        dtype = dtype_named(tensor.name, tensor.datatype)
        place = place_of(tensor.name, _parameters(tensor.parameters))
        typed = _typed_fields(tensor)
        data: memoryview | Place
        if place is not None:
            if typed:
                raise InvalidArgument(f"input {tensor.name!r} has contents and shared memory; give one of them")
            data = place
        elif contents:
            if typed:
                raise InvalidArgument(f"input {tensor.name!r} has contents beside raw_input_contents; give one of them")
            if at >= len(contents):
                raise InvalidArgument(f"raw_input_contents ends before input {tensor.name!r}; give an entry for each")
            data = contents[at]
            at += 1
        else:
            data = _typed(tensor, dtype, typed)
        found.append(Given(tensor.name, dtype, tuple(tensor.shape), data))
    if at != len(contents):
        raise InvalidArgument(
            f"raw_input_contents has {len(contents)} entries for {at} inputs that are not in shared memory"
        )
    return tuple(found)


def _typed_fields(tensor: Any) -> tuple[str, ...]:
    if not tensor.HasField("contents"):
        return ()
    return tuple(field.name for field, _ in tensor.contents.ListFields())


def _typed(tensor: Any, dtype: DType, fields: tuple[str, ...]) -> memoryview:
    wanted = FIELDS.get(dtype)
    wrong = [field for field in fields if field != wanted]
    if wrong and wanted is not None:
        raise InvalidArgument(f"input {tensor.name!r} of {dtype.name} has {wrong[0]}; give {wanted}")
    values = getattr(tensor.contents, wanted) if wanted is not None else ()
    return raw_of(tensor.name, dtype, tensor.shape, values)


def _wanted(tensor: Any) -> Wanted:
    parameters = _parameters(tensor.parameters)
    return Wanted(tensor.name, place_of(tensor.name, parameters), classes_of(tensor.name, parameters))


def classes_of(name: str, parameters: Parameters) -> int:
    """The number of classes that an output's parameters ask for, 0 for none. Raises InvalidArgument."""
    count = dict(parameters).get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= CLASSES_MAX:
        raise InvalidArgument(f"classification of output {name!r} is {count!r}; give a number of classes")
    return count


def write_response(done: Done, *, final: bool | None = None) -> bytes:
    """The response of a reply. `final` is told with the responses of a stream."""
    response = _Response(model_name=done.model, model_version=done.version, id=done.id)
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    contents: list[memoryview | bytes] = []
    for output in done.outputs:
        spec = output.spec
        response.outputs.add(name=spec.name, datatype=spec.dtype.name, shape=spec.shape)
        # An entry for each output, an empty one where the bytes are elsewhere: clients count.
        contents.append(output.data if output.data is not None else b"")
    return joined(response.SerializeToString(), contents)


def write_stream_response(done: Done, *, final: bool = True) -> bytes:
    """A response of a stream; `final` is the last one of its request."""
    return wrapped(_INFER_RESPONSE, write_response(done, final=final))


def write_stream_end(asked: Asked) -> bytes:
    """The response of a stream that says that a request has no more answers."""
    response = _Response(model_name=asked.model, model_version=asked.version, id=asked.id)
    response.parameters["triton_final_response"].bool_param = True
    return wrapped(_INFER_RESPONSE, response.SerializeToString())


def write_stream_error(request_id: str, told: str) -> bytes:
    """The response of a stream that says why a request failed, with the request's id as far as it was read."""
    response = _StreamResponse(error_message=told)
    response.infer_response.id = request_id
    raw: bytes = response.SerializeToString()
    return raw
