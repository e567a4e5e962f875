"""What a front door answers to requests that are wrong: Triton's code for each, one sentence, and it serves on.

22 of the requests were put to Triton 2.51 as well, and the codes are its own, but for three that it lets pass: a raw
entry too many, an output asked for twice, a negative timeout.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from tests.integration.frontdoors import MESSAGE_BYTES, Front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def calls(front: Front) -> Iterator[Any]:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(front.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=20)  # its socket is no test's leak
        yield stub


def request(**fields: Any) -> Any:
    """A good request of echo_FP32, raw, with fields of the message changed."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name="echo_FP32")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[2])
    message.raw_input_contents.append(np.ones(2, np.float32).tobytes())
    for name, value in fields.items():
        setattr(tensor if name in {"datatype", "name"} else message, name, value)
    return message


def changed(change: Callable[[Any], object]) -> Any:
    message = request()
    change(message)
    return message


def parameter(where: Any, name: str, kind: str, value: object) -> None:
    setattr(where.parameters[name], f"{kind}_param", value)


def shm(message: Any, region: object = "r", size: object = 8, offset: object = None) -> None:
    del message.raw_input_contents[:]
    tensor = message.inputs[0]
    kinds = {str: "string", int: "int64", float: "double"}
    for name, value in (("region", region), ("byte_size", size), ("offset", offset)):
        if value is not None:
            parameter(tensor, f"shared_memory_{name}", kinds[type(value)], value)


def shape(message: Any, *dims: int) -> None:
    del message.inputs[0].shape[:]
    message.inputs[0].shape.extend(dims)


def second(message: Any, name: str = "x") -> None:
    message.inputs.add(name=name, datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))


BAD: dict[str, tuple[str, Callable[[Any], object]]] = {
    "no model name": ("NOT_FOUND", lambda m: setattr(m, "model_name", "")),
    "unknown model": ("NOT_FOUND", lambda m: setattr(m, "model_name", "nobody")),
    "unknown version": ("NOT_FOUND", lambda m: setattr(m, "model_version", "9")),
    "version that is no number": ("INVALID_ARGUMENT", lambda m: setattr(m, "model_version", "latest")),
    "input of another name": ("INVALID_ARGUMENT", lambda m: setattr(m.inputs[0], "name", "z")),
    "input without a name": ("INVALID_ARGUMENT", lambda m: setattr(m.inputs[0], "name", "")),
    "unknown datatype": ("INVALID_ARGUMENT", lambda m: setattr(m.inputs[0], "datatype", "FLOAT")),
    "other datatype": ("INVALID_ARGUMENT", lambda m: setattr(m.inputs[0], "datatype", "INT32")),
    "too few bytes": ("INVALID_ARGUMENT", lambda m: shape(m, 3)),
    "too many bytes": ("INVALID_ARGUMENT", lambda m: shape(m, 1)),
    "negative size": ("INVALID_ARGUMENT", lambda m: shape(m, -1)),
    "sizes whose product overflows 64 bits": ("INVALID_ARGUMENT", lambda m: shape(m, 2**62, 2**62)),
    "wrong rank": ("INVALID_ARGUMENT", lambda m: shape(m, 2, 1)),
    "rank 40": ("INVALID_ARGUMENT", lambda m: shape(m, 2, *([1] * 39))),
    "no input": ("INVALID_ARGUMENT", lambda m: (m.ClearField("inputs"), m.ClearField("raw_input_contents"))),
    "one input too many": ("INVALID_ARGUMENT", lambda m: second(m, "w")),
    "an input twice": ("INVALID_ARGUMENT", second),
    "300 inputs": ("INVALID_ARGUMENT", lambda m: [second(m, f"x{n}") for n in range(300)]),
    "raw entry missing": ("INVALID_ARGUMENT", lambda m: m.inputs.add(name="w", datatype="FP32", shape=[1])),
    "raw entry too many": ("INVALID_ARGUMENT", lambda m: m.raw_input_contents.append(b"")),
    "neither raw nor typed": ("INVALID_ARGUMENT", lambda m: m.ClearField("raw_input_contents")),
    "raw and typed": ("INVALID_ARGUMENT", lambda m: m.inputs[0].contents.fp32_contents.append(1.0)),
    "typed in the wrong field": (
        "INVALID_ARGUMENT",
        lambda m: (m.ClearField("raw_input_contents"), m.inputs[0].contents.int_contents.extend([1, 2])),
    ),
    "typed with a value missing": (
        "INVALID_ARGUMENT",
        lambda m: (m.ClearField("raw_input_contents"), m.inputs[0].contents.fp32_contents.append(1.0)),
    ),
    "unknown output": ("INVALID_ARGUMENT", lambda m: m.outputs.add(name="z")),
    "an output twice": ("INVALID_ARGUMENT", lambda m: (m.outputs.add(name="y"), m.outputs.add(name="y"))),
    "classes of a negative number": (
        "INVALID_ARGUMENT",
        lambda m: parameter(m.outputs.add(name="y"), "classification", "int64", -1),
    ),
    "unregistered region": ("NOT_FOUND", shm),
    "region without a size": ("INVALID_ARGUMENT", lambda m: shm(m, size=None)),
    "size without a region": ("INVALID_ARGUMENT", lambda m: shm(m, region=None)),
    "region that is a number": ("INVALID_ARGUMENT", lambda m: shm(m, region=1)),
    "region's size that is a text": ("INVALID_ARGUMENT", lambda m: shm(m, size="8")),
    "negative offset": ("INVALID_ARGUMENT", lambda m: shm(m, offset=-1)),
    "region and typed": (
        "INVALID_ARGUMENT",
        lambda m: (shm(m), m.inputs[0].contents.fp32_contents.append(1.0)),
    ),
    "reserved parameter": ("INVALID_ARGUMENT", lambda m: parameter(m, "triton_wish", "int64", 1)),
    "priority that is a text": ("INVALID_ARGUMENT", lambda m: parameter(m, "priority", "string", "high")),
    "negative timeout": ("INVALID_ARGUMENT", lambda m: parameter(m, "timeout", "int64", -5)),
    "parameter without a value": ("INVALID_ARGUMENT", lambda m: m.parameters["mine"]),
    "larger than the limit": (
        "RESOURCE_EXHAUSTED",
        lambda m: (shape(m, MESSAGE_BYTES), m.raw_input_contents.__setitem__(0, bytes(4 * MESSAGE_BYTES))),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_has_its_code(calls: Any, what: str) -> None:
    code, change = BAD[what]
    with pytest.raises(grpc.RpcError) as raised:
        calls.ModelInfer(changed(change), timeout=20)
    assert raised.value.code().name == code, raised.value.details()
    assert len(raised.value.details()) > 15
    assert "Traceback" not in raised.value.details()
    good = calls.ModelInfer(request(), timeout=20)
    assert np.frombuffer(good.raw_output_contents[0], np.float32).tolist() == [1.0, 1.0]


def test_what_may_be_sent_again_is_told(calls: Any) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        calls.ModelInfer(request(model_name="nobody"), timeout=20)
    assert dict(raised.value.trailing_metadata())["overspill-fate"] == "never_ran"


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x05abc", b"\x0a\x03a", b"\x0b", bytes(64)]
)
def test_garbage_is_no_message(front: Front, calls: Any, raw: bytes) -> None:
    with grpc.insecure_channel(front.grpc) as channel:
        for method in ("ModelInfer", "ModelReady", "SystemSharedMemoryRegister"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as raised:
                call(raw, timeout=20)
            assert raised.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    assert calls.ModelInfer(request(), timeout=20).outputs[0].name == "y"


def test_a_large_message_leaves_the_connection_standing(front: Front) -> None:
    from tritonclient.grpc import service_pb2_grpc

    with grpc.insecure_channel(front.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as raised:
                stub.ModelInfer(changed(BAD["larger than the limit"][1]), timeout=20)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert stub.ModelInfer(request(), timeout=20).model_name == "echo_FP32"


def test_a_client_that_pings_often_stays(front: Front) -> None:
    """It pings a hundred times as often as stock clients are told to, and is not told "too many pings"."""
    from tritonclient.grpc import service_pb2_grpc

    options = [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(front.grpc, options=options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(2):
            assert stub.ModelInfer(request(), timeout=20).model_name == "echo_FP32"
            time.sleep(1.0)  # ten pings without data
        channel.unsubscribe(states.append)
        assert not {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.IDLE} & set(states[1:])
