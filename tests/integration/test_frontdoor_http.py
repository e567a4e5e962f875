"""Stock tritonclient over HTTP against a real node, with and without the binary extension; errors by number."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.integration.frontdoors import DTYPES, RAISE, Front, http_client
from tests.integration.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(front: Front) -> Iterator[Any]:
    with http_client(front.http) as client:
        yield client


def given(array: np.ndarray[Any, Any], dtype: str, name: str = "x", *, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, array.shape, dtype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def post(front: Front, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{front.http}{path}", body, sent, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            raw, number = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        with error:
            raw, number = error.read(), error.code
    return number, json.loads(raw) if raw[:1] == b"{" and raw[-1:] == b"}" else {}


def get(front: Front, path: str) -> str:
    with urllib.request.urlopen(f"http://{front.http}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_server_and_models_are_described(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("trio", "1")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("batch")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert client.get_model_config("batch")["max_batch_size"] == 8
    assert {"name": "trio", "version": "1", "state": "READY"} in client.get_model_repository_index()
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_log_settings()["log_info"] is True


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_datatype_travels_binary(client: Any, dtype: str) -> None:
    if dtype == "BYTES":
        array: np.ndarray[Any, Any] = np.array([b"", b"a\0b"], object)
    elif dtype == "BOOL":
        array = np.array([True, False])
    else:
        kind = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "BF16": ml_dtypes.bfloat16}.get(dtype, dtype.lower())
        array = np.array([0, 1, 100], kind)
    np.testing.assert_array_equal(client.infer(f"echo_{dtype}", [given(array, dtype)]).as_numpy("y"), array)


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("FP32", np.array([1.5, -2.0], np.float32)),
        ("INT64", np.array([-(2**63), 2**63 - 1])),
        ("UINT64", np.array([2**64 - 1], np.uint64)),
        ("BOOL", np.array([True, False])),
        ("BYTES", np.array(["ä", ""], object)),
    ],
)
def test_json_holds_tensors_too(client: Any, dtype: str, array: np.ndarray[Any, Any]) -> None:
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]
    result = client.infer(f"echo_{dtype}", [given(array, dtype, binary=False)], outputs=wanted)
    expected = np.array([x.encode() for x in array], object) if dtype == "BYTES" else array
    answer = result.as_numpy("y")
    if dtype == "BYTES":
        assert [x if isinstance(x, str) else x.decode() for x in answer] == array.tolist()
    else:
        np.testing.assert_array_equal(answer, expected)


def test_rows_may_be_nested(front: Front) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}]}
    number, answer = post(front, "/v2/models/grid/infer", json.dumps(body).encode())
    assert (number, answer["outputs"][0]["data"]) == (200, [1.0, 2.0, 3.0, 4.0])
    assert answer["outputs"][0]["shape"] == [2, 2]


def test_a_bare_body_is_the_only_input(front: Front) -> None:
    raw = np.arange(4, dtype=np.float32).tobytes()
    assert post(front, "/v2/models/echo_FP32/infer", raw, Inference_Header_Content_Length="0")[0] == 200
    number, answer = post(front, "/v2/models/trio/infer", raw, Inference_Header_Content_Length="0")
    assert number == 400
    assert "3 inputs" in answer["error"]


def test_compression_goes_both_ways(client: Any) -> None:
    array = np.zeros(100_000, np.float32)
    for how in ("gzip", "deflate"):
        result = client.infer(
            "echo_FP32", [given(array, "FP32")], request_compression_algorithm=how, response_compression_algorithm=how
        )
        np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_shared_memory_is_used_over_http(client: Any) -> None:
    from tritonclient.utils import shared_memory

    array = np.arange(1000, dtype=np.float32)
    handle = shared_memory.create_shared_memory_region("both", "/osp_test_http", 8000)
    try:
        shared_memory.set_shared_memory_region(handle, [array])
        client.register_system_shared_memory("both", "/osp_test_http", 8000)
        assert client.get_system_shared_memory_status() == [
            {"name": "both", "key": "/osp_test_http", "offset": 0, "byte_size": 8000}
        ]
        tensor = triton.InferInput("x", array.shape, "FP32")
        tensor.set_shared_memory("both", 4000)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("both", 4000, offset=4000)
        client.infer("echo_FP32", [tensor], outputs=[wanted])
        np.testing.assert_array_equal(
            shared_memory.get_contents_as_numpy(handle, np.float32, [1000], offset=4000), array
        )
        client.unregister_system_shared_memory("both")
        assert client.get_system_shared_memory_status() == []
    finally:
        shared_memory.destroy_shared_memory_region(handle)


GOOD = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
BAD: dict[str, tuple[int, str, object]] = {
    "unknown model": (404, "/v2/models/nobody/infer", {"inputs": [GOOD]}),
    "unknown version": (404, "/v2/models/echo_FP32/versions/7/infer", {"inputs": [GOOD]}),
    "no JSON": (400, "/v2/models/echo_FP32/infer", b"{"),
    "JSON that is no object": (400, "/v2/models/echo_FP32/infer", []),
    "no inputs": (400, "/v2/models/echo_FP32/infer", {}),
    "inputs that are no list": (400, "/v2/models/echo_FP32/infer", {"inputs": 3}),
    "unknown datatype": (400, "/v2/models/echo_FP32/infer", {"inputs": [{**GOOD, "datatype": "FLOAT"}]}),
    "shape that is a text": (400, "/v2/models/echo_FP32/infer", {"inputs": [{**GOOD, "shape": "2"}]}),
    "too few values": (400, "/v2/models/echo_FP32/infer", {"inputs": [{**GOOD, "shape": [3]}]}),
    "a value that is a text": (400, "/v2/models/echo_FP32/infer", {"inputs": [{**GOOD, "data": ["a", "b"]}]}),
    "a value that is an object": (400, "/v2/models/echo_FP32/infer", {"inputs": [{**GOOD, "data": [{}, 1]}]}),
    "FP16 as JSON": (400, "/v2/models/echo_FP16/infer", {"inputs": [{**GOOD, "datatype": "FP16"}]}),
    "unknown output": (400, "/v2/models/echo_FP32/infer", {"inputs": [GOOD], "outputs": [{"name": "z"}]}),
    "reserved parameter": (400, "/v2/models/echo_FP32/infer", {"inputs": [GOOD], "parameters": {"triton_x": 1}}),
    "bytes that are not there": (
        400,
        "/v2/models/echo_FP32/infer",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]},
    ),
    "region that is not there": (
        404,
        "/v2/models/echo_FP32/infer",
        {
            "inputs": [
                {
                    "name": "x", "datatype": "FP32", "shape": [2],
                    "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8},
                }
            ]
        },
    ),
    "an address that is none": (404, "/v2/nothing", {}),
    "a load that is not allowed": (503, "/v2/repository/models/trio/load", {}),
    "key with a slash": (400, "/v2/systemsharedmemory/region/r/register", {"key": "../x", "byte_size": 8}),
    "CUDA memory": (
        501,
        "/v2/cudasharedmemory/region/r/register",
        {"raw_handle": {"b64": "A" * 84 + "AA=="}, "device_id": 0, "byte_size": 8},
    ),
    "CUDA handle that is none": (400, "/v2/cudasharedmemory/region/r/register", {"raw_handle": {}, "byte_size": 8}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_has_its_number(front: Front, what: str) -> None:
    number, path, body = BAD[what]
    found, answer = post(front, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert (found, len(answer.get("error", "")) > 10) == (number, True), answer
    assert post(front, "/v2/models/echo_FP32/infer", json.dumps({"inputs": [GOOD]}).encode())[0] == 200


def test_errors_reach_the_stock_client(client: Any) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer("rough", [given(np.array([RAISE, 0]), "INT64")])
    assert "six" in raised.value.message()
    assert raised.value.status() == "500"


def test_metrics_have_tritons_names(front: Front, client: Any) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client.infer("batch", [given(np.ones((3, 4), np.float32), "FP32")])
    # The node hears of a run after its client has the answer.
    wait_until(lambda: client.get_inference_statistics("batch")["model_stats"][0]["inference_count"] >= 3)
    families = {family.name: family for family in text_string_to_metric_families(get(front, "/metrics"))}
    assert {
        "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
        "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us",
        "nv_inference_compute_infer_duration_us", "nv_inference_compute_output_duration_us",
        "nv_inference_pending_request_count", "nv_cpu_memory_total_bytes", "overspill_shm_regions",
        "overspill_shm_lease_expiries", "overspill_frontdoor_requests",
    } <= set(families)  # fmt: skip
    (generation,) = families["overspill_executor_generation"].samples
    assert (generation.value >= 1, generation.labels) == (True, {"executor": "0", "device": "cpu"})
    assert families["overspill_executor_restarts"].type == "counter"
    assert families["overspill_executor_registrations"].type == "counter"
    assert families["overspill_executor_pinned_bytes"].samples[0].value == 0  # on a processor
    counted = [s for s in families["nv_inference_count"].samples if s.labels["model"] == "batch"]
    assert counted[0].value >= 3
    assert counted[0].labels["version"] == "1"
    reasons = {s.labels["reason"] for s in families["nv_inference_request_failure"].samples}
    assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
