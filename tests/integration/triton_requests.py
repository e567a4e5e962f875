"""What is asked in the conversation with Triton: its models, its requests, good and bad, and what is kept of answers.

Only the stock client's messages are used. Read `tests/integration/triton_script.py` next.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = "/osp_transcript"
"""The shared memory that the conversation uses."""

CONFIGS = {
    "pair": """
name: "pair"
backend: "python"
max_batch_size: 0
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "difference" data_type: TYPE_FP32 dims: [ -1 ] } ]
""",
    "batch": """
name: "batch"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
""",
    "text": """
name: "text"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1 ] } ]
""",
    "spare": """
name: "spare"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1 ] } ]
""",
}
"""`pair` adds and subtracts, and fails where the first number of `a` is negative; `batch` doubles; the others echo.
`spare` is not loaded at the start."""
LOADED = ("batch", "pair", "text")


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def texts(*words: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(word)) + word for word in words)


def infer(model: str = "pair", **fields: Any) -> Any:
    """A good request for `pair`, unless `fields` say otherwise."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    if model == "pair" and not request.inputs:
        for name in ("a", "b"):
            request.inputs.add(name=name, datatype="FP32", shape=[2])
        request.raw_input_contents.extend([floats(1, 2), floats(3, 4)])
    return request


def changed(change: Callable[[Any], object], **fields: Any) -> Any:
    request = infer(**fields)
    change(request)
    return request


def one(model: str, dtype: str, shape: list[int], raw: bytes, name: str = "x") -> Any:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype=dtype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


def typed() -> Any:
    request = infer()
    del request.raw_input_contents[:]
    for tensor, numbers in zip(request.inputs, ((1, 2), (3, 4)), strict=True):
        tensor.contents.fp32_contents.extend(numbers)
    return request


def shared(tensor: Any, nbytes: int, offset: int = 0, region: str = "r") -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
    if offset:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def through_memory(region: str = "r", nbytes: int = 8, offset: int = 0) -> Any:
    """`a` from shared memory, `sum` into it; the rest in the message."""
    request = infer()
    del request.raw_input_contents[0]
    shared(request.inputs[0], nbytes, offset, region)
    shared(request.outputs.add(name="sum"), 8, 64, region)
    request.outputs.add(name="difference")
    return request


def bad_requests() -> Iterator[tuple[str, Any]]:
    """Requests that are refused, by what is wrong with them."""
    yield "unknown model", infer("nobody")
    yield "unknown version", infer(model_version="7")
    yield "an input is missing", changed(lambda r: (r.inputs.pop(), r.raw_input_contents.pop()))
    yield "an input is unknown", changed(lambda r: setattr(r.inputs[1], "name", "c"))
    yield "another datatype", changed(lambda r: setattr(r.inputs[1], "datatype", "INT32"))
    yield "too many dimensions", changed(lambda r: r.inputs[1].shape.append(1))
    yield "fewer bytes than the shape", changed(lambda r: r.raw_input_contents.__setitem__(1, floats(3)))
    yield "fewer raw inputs", changed(lambda r: r.raw_input_contents.pop())
    yield "raw and typed at once", changed(lambda r: r.inputs[1].contents.fp32_contents.extend([3, 4]))
    yield "an unknown output", changed(lambda r: r.outputs.add(name="product"))
    yield "a batch too large", one("batch", "FP32", [9, 4], floats(*range(36)))
    yield "a row too short", one("batch", "FP32", [1, 3], floats(1, 2, 3))
    yield "a text cut short", one("text", "BYTES", [1], texts(b"abc")[:-1])
    yield "a region that nobody registered", through_memory("nobody")
    yield "the model's own failure", changed(lambda r: r.raw_input_contents.__setitem__(0, floats(-1, 2)))


def good_requests() -> Iterator[tuple[str, Any]]:
    """Requests that are answered."""
    yield "raw", infer(id="seven")
    yield "typed", typed()
    yield "one output of two", changed(lambda r: r.outputs.add(name="difference"))
    yield (
        "outputs in another order",
        changed(lambda r: (r.outputs.add(name="difference"), r.outputs.add(name="sum")), model_version="1"),
    )
    yield "a batch", one("batch", "FP32", [2, 4], floats(*range(8)))
    yield "texts", one("text", "BYTES", [3], texts(b"", b"ab", b"\xff\x00"))
    yield "nothing of it", one("text", "BYTES", [0], b"")
    classes = one("batch", "FP32", [1, 4], floats(0, 3, 1, 2))
    classes.outputs.add(name="y").parameters["classification"].int64_param = 2
    yield "classes", classes


def reply(answer: Any) -> Any:
    """What is kept of a ModelInferResponse."""
    outputs = [[output.name, output.datatype, list(output.shape)] for output in answer.outputs]
    return [
        answer.model_name,
        answer.model_version,
        answer.id,
        outputs,
        [raw.hex() for raw in answer.raw_output_contents],
    ]


def metadata(answer: Any) -> Any:
    tensors = [[[t.name, t.datatype, list(t.shape)] for t in side] for side in (answer.inputs, answer.outputs)]
    return [answer.name, list(answer.versions), answer.platform, *tensors]


def config(answer: Any) -> Any:
    found = answer.config
    tensors = [[[t.name, t.data_type, list(t.dims)] for t in side] for side in (found.input, found.output)]
    return [found.name, found.backend, found.max_batch_size, *tensors]


def regions(answer: Any) -> Any:
    return sorted([each.name, each.key, each.offset, each.byte_size] for each in answer.regions.values())


def states(answer: Any) -> Any:
    return sorted([each.name, each.version, each.state] for each in answer.models if each.name in CONFIGS)


def write_models(folder: Path, code: str) -> None:
    """The models of the conversation; `code` is one model file that does for all of them."""
    for name, text in CONFIGS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(text)
        (version / "model.py").write_text(code)
