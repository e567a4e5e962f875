"""Stock tritonclient over gRPC against a real node: every call, every datatype, streams, deadlines, health."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import TYPE_CHECKING, Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.integration.frontdoors import DTYPES, RAISE, SLEEP, Front, grpc_client
from tests.integration.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(front: Front) -> Iterator[Any]:
    with grpc_client(front.grpc) as client:
        yield client


def given(name: str, array: np.ndarray[Any, Any], dtype: str) -> Any:
    tensor = triton.InferInput(name, array.shape, dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def words(*numbers: int) -> list[Any]:
    return [given("x", np.array(numbers, np.int64), "INT64")]


def sample(dtype: str) -> np.ndarray[Any, Any]:
    """Values at both ends of each datatype, the empty and a long element for BYTES."""
    if dtype == "BYTES":
        return np.array([b"", b"a", "ä".encode(), bytes(1 << 20)], object)
    if dtype == "BOOL":
        return np.array([True, False, True])
    if dtype in {"FP16", "FP32", "FP64", "BF16"}:
        kind = ml_dtypes.bfloat16 if dtype == "BF16" else np.dtype(f"f{int(dtype[2:]) // 8}")
        return np.array([0.0, -1.5, 2.0, np.inf], kind)
    limits = np.iinfo(dtype.lower())
    return np.array([limits.min, 0, limits.max], dtype.lower())


def status(call: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as raised:
        call()
    return raised.value.status(), raised.value.message()


def test_server_and_models_are_described(front: Front, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("trio")
    assert client.is_model_ready("trio", "1")
    assert not client.is_model_ready("nobody")
    assert status(lambda: client.get_model_metadata("nobody"))[0] == "StatusCode.NOT_FOUND"
    assert status(lambda: client.get_inference_statistics("nobody"))[0] == "StatusCode.INVALID_ARGUMENT"
    assert "system_shared_memory" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("batch")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("batch", ["1"], "python")
    assert list(metadata.inputs[0].shape) == [-1, 4]  # the batch is a dimension here, as clients expect
    config = client.get_model_config("batch").config
    assert (config.max_batch_size, list(config.input[0].dims), config.backend) == (8, [4], "python")
    names = [model.name for model in client.get_model_repository_index().models]
    assert {"trio", "scalar", "echo_BYTES"} <= set(names)
    assert all(model.state == "READY" for model in client.get_model_repository_index().models)


def test_statistics_count_as_tritons_do(client: Any) -> None:
    before = client.get_inference_statistics("batch").model_stats[0]
    for rows in (1, 3):
        client.infer("batch", [given("x", np.ones((rows, 4), np.float32), "FP32")])

    def counted() -> int:
        return client.get_inference_statistics("batch").model_stats[0].inference_count - before.inference_count

    wait_until(lambda: counted() >= 4)  # the node hears of a run after its client has the answer
    after = client.get_inference_statistics("batch").model_stats[0]
    assert after.inference_count - before.inference_count == 4
    assert after.execution_count - before.execution_count == 2
    assert after.inference_stats.success.count - before.inference_stats.success.count == 2
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.last_inference > 1_600_000_000_000
    assert {model.name for model in client.get_inference_statistics().model_stats} >= {"batch", "trio"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_datatype_travels_raw(client: Any, dtype: str) -> None:
    array = sample(dtype)
    answer = client.infer(f"echo_{dtype}", [given("x", array, dtype)]).as_numpy("y")
    np.testing.assert_array_equal(answer, array)


def test_every_datatype_with_a_typed_form_travels_so(front: Front) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    fields = {
        "BOOL": "bool", "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64", "UINT8": "uint",
        "UINT16": "uint", "UINT32": "uint", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
    }  # fmt: skip
    with grpc.insecure_channel(front.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for dtype, field in fields.items():
            array = sample(dtype)
            request = service_pb2.ModelInferRequest(model_name=f"echo_{dtype}")
            tensor = request.inputs.add(name="x", datatype=dtype, shape=array.shape)
            getattr(tensor.contents, f"{field}_contents").extend(array.tolist())
            answer = triton.InferResult(stub.ModelInfer(request)).as_numpy("y")
            np.testing.assert_array_equal(answer, array, dtype)


def test_scalars_and_empty_tensors_travel(client: Any) -> None:
    scalar = client.infer("scalar", [given("x", np.array(2.5, np.float32), "FP32")]).as_numpy("y")
    assert (scalar.shape, float(scalar)) == ((), 2.5)
    empty = client.infer("grid", [given("x", np.empty((3, 0), np.float32), "FP32")])
    assert list(empty.get_output("y").shape) == [3, 0]


def test_outputs_come_as_asked_for(client: Any) -> None:
    arrays = [np.full(n + 1, n, np.float32) for n in range(3)]
    inputs = [given(f"x{n}", array, "FP32") for n, array in enumerate(arrays)]
    wanted = [triton.InferRequestedOutput("y2"), triton.InferRequestedOutput("y0")]
    result = client.infer("trio", inputs, outputs=wanted, request_id="seven")
    response = result.get_response()
    assert (response.id, response.model_version) == ("seven", "1")
    assert [output.name for output in response.outputs] == ["y2", "y0"]
    np.testing.assert_array_equal(result.as_numpy("y2"), arrays[2])


def test_classes_are_told(client: Any) -> None:
    rows = np.array([[0, 3, 1, 2], [9, 8, 7, 6]], np.float32)
    wanted = [triton.InferRequestedOutput("y", class_count=2)]
    answer = client.infer("batch", [given("x", rows, "FP32")], outputs=wanted).as_numpy("y")
    assert answer.tolist() == [[b"3.000000:1", b"2.000000:3"], [b"9.000000:0", b"8.000000:1"]]


def test_parameters_are_read_as_stock_clients_send_them(client: Any) -> None:
    x = words(0, 1)
    for sequence in (7, "seven"):
        client.infer(
            "rough", x, priority=1, timeout=10_000_000, sequence_id=sequence, sequence_start=True, sequence_end=True
        )
    client.infer("rough", x, parameters={"of_my_own": 1.5})


def test_asyncio_client(front: Front) -> None:
    async def talk() -> None:
        async with triton_aio.InferenceServerClient(front.grpc) as client:
            assert await client.is_server_ready()
            array = np.arange(5, dtype=np.float32)
            results = await asyncio.gather(
                *(client.infer("echo_FP32", [given("x", array + n, "FP32")]) for n in range(20))
            )
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("y"), array + n)

    asyncio.run(talk())


def test_a_stream_answers_in_order_and_survives_errors(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    try:
        # The first takes longest: its answer comes first all the same.
        client.async_stream_infer("rough", words(SLEEP, 100), request_id="0", enable_empty_final_response=True)
        client.async_stream_infer("rough", words(RAISE, 0), request_id="1")
        client.async_stream_infer("nobody", words(0, 0), request_id="2")
        client.async_stream_infer("rough", words(0, 3), request_id="3")
        found = [answers.get(timeout=30) for _ in range(4)]
    finally:
        client.stop_stream()
    assert [error is None for _, error in found] == [True, False, False, True]
    assert found[0][0].get_response().id == "0"
    assert found[0][0].get_response().parameters["triton_final_response"].bool_param
    assert "six" in found[1][1].message()
    assert "nobody" in found[2][1].message()
    assert found[3][0].as_numpy("y").tolist() == [0, 3]


def test_a_deadline_and_a_cancel_take_the_request_out_of_the_queue(front: Front, client: Any) -> None:
    before = len(front.node.ran())
    blocker: queue.Queue[Any] = queue.Queue()
    client.async_infer("rough", words(SLEEP, 2500), lambda result, error: blocker.put(error))
    wait_until(lambda: len(front.node.ran()) == before + 1)
    late: queue.Queue[Any] = queue.Queue()
    client.async_infer("rough", words(0, 111), lambda result, error: late.put(error), client_timeout=0.2)
    given_up = client.async_infer("rough", words(0, 222), lambda result, error: late.put(error))
    time.sleep(0.1)
    given_up.cancel()
    errors = {late.get(timeout=30).status(), late.get(timeout=30).status()}
    assert errors == {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"}
    # The protocol's own time limit is refused in Triton's words.
    assert status(lambda: client.infer("rough", words(0, 333), timeout=100_000))[0] == "StatusCode.UNAVAILABLE"
    assert blocker.get(timeout=30) is None
    assert client.infer("rough", words(0, 444)).as_numpy("y").tolist() == [0, 444]
    assert front.node.ran()[before:] == [2500, 444], "what was given up never ran"


def test_settings_of_traces_and_logs(client: Any) -> None:
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert client.get_log_settings().settings["log_info"].bool_param
    assert status(lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}))[0].endswith(
        "UNIMPLEMENTED"
    )
    assert status(lambda: client.update_log_settings({"log_verbose_level": 1}))[0].endswith("UNAVAILABLE")


def test_models_are_the_operators_to_load(client: Any) -> None:
    code, message = status(lambda: client.load_model("trio"))
    assert code == "StatusCode.UNAVAILABLE"
    assert "--model-control explicit" in message


def health(front: Front, channel: grpc.Channel) -> Any:
    from frontdoor.messages import message

    kinds = message("HealthCheckRequest"), message("HealthCheckResponse")
    codecs = (kinds[0].SerializeToString, kinds[1].FromString)
    check = channel.unary_unary("/grpc.health.v1.Health/Check", *codecs)
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch", *codecs)
    return (lambda name: check(kinds[0](service=name)).status), (lambda name: watch(kinds[0](service=name), timeout=60))


def test_health_watch_hears_of_a_lost_executor_at_once(front: Front) -> None:
    with grpc.insecure_channel(front.grpc) as channel:
        check, watch = health(front, channel)
        assert check("") == check("rough") == check("inference.GRPCInferenceService") == 1
        with pytest.raises(grpc.RpcError) as raised:
            check("nobody")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        watcher = watch("rough")
        assert next(watcher).status == 1
        with grpc_client(front.grpc) as client:
            code, _ = status(lambda: client.infer("rough", words(1, 0)))
        assert code == "StatusCode.UNAVAILABLE"
        assert next(watcher).status == 2, "not serving while its executor is started again"
        assert next(watcher).status == 1
        watcher.cancel()
