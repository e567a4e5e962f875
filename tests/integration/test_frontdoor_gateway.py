"""`overspill gateway`: stock clients over a router and two nodes, one of which is killed under load."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import shared_memory

from tests.integration.frontdoors import ECHO, SLEEP, code, config, grpc_client, http_client
from tests.integration.gateways import Gateway, gateway_process, given, running_gateway
from tests.integration.nodes import ROOT, running_node, wait_until, write_model
from tests.integration.rpc_certificates import Authority
from workers.runtime import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRACES = "traces.jsonl"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(folder, 2, words=("--traces", str(folder / TRACES))) as gateway:
        yield gateway


def test_models_of_the_registry_are_served(gateway: Gateway) -> None:
    with grpc_client(gateway.address) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("echo_FP32")
        states = {model.name: model for model in client.get_model_repository_index().models}
        assert (states["echo_FP32"].state, states["broken"].state) == ("READY", "UNAVAILABLE")
        assert "no such card" in states["broken"].reason
        assert client.get_model_metadata("echo_FP32").inputs[0].datatype == "FP32"
        assert client.get_model_config("echo_BYTES").config.input[0].data_type == 13
        before = client.get_inference_statistics("echo_FP32").model_stats[0].inference_count
        for dtype, array in (
            ("FP32", np.arange(40_000, dtype=np.float32)),
            ("BF16", np.array([1.5, -2.0], ml_dtypes.bfloat16)),
            ("BYTES", np.array([b"", b"abc"], object)),
            ("FP32", np.empty(0, np.float32)),
        ):
            answer = client.infer(f"echo_{dtype}", [given(array, dtype)])
            if array.size:
                np.testing.assert_array_equal(answer.as_numpy("y"), array)
        after = client.get_inference_statistics("echo_FP32").model_stats[0]
        assert after.inference_count - before == 2
        assert after.inference_stats.compute_infer.ns > 0


def test_errors_have_the_same_codes_as_at_a_node(gateway: Gateway) -> None:
    x = given(np.ones(2, np.float32))
    with grpc_client(gateway.address) as client:
        assert code(lambda: client.infer("nobody", [x])) == "NOT_FOUND"
        assert code(lambda: client.infer("broken", [x])) == "UNAVAILABLE"
        assert code(lambda: client.infer("echo_FP32", [given(np.ones((2, 2), np.float32))])) == "INVALID_ARGUMENT"
        assert code(lambda: client.infer("echo_FP32", [given(np.ones(2, np.float32), name="z")])) == "INVALID_ARGUMENT"
        assert code(lambda: client.load_model("echo_FP32")) == "UNAVAILABLE"
        late = given(np.array([SLEEP, 300]), "INT64")
        assert code(lambda: client.infer("rough", [late], client_timeout=0.1)) == "DEADLINE_EXCEEDED"


def test_a_model_with_many_answers_is_refused_and_the_client_told_whom_to_ask(gateway: Gateway) -> None:
    x, answers = given(np.arange(3), "INT64"), queue.Queue[tuple[Any, Any]]()
    with grpc_client(gateway.address) as client:
        assert code(lambda: client.infer("many", [x])) == "UNIMPLEMENTED"
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("many", [x])
        client.async_stream_infer("echo_FP32", [given(np.ones(1, np.float32))])
        _, error = answers.get(timeout=30)
        assert "at the front door of a node that has it" in error.message()
        result, error = answers.get(timeout=30)
        assert error is None, "the stream goes on"
        assert result.as_numpy("y").tolist() == [1.0]
        client.stop_stream()
    with http_client(gateway.http) as client:
        assert code(lambda: client.infer("many", [http_given(np.arange(3))])) == "501"


def http_given(array: np.ndarray[Any, Any]) -> Any:
    tensor = triton_http.InferInput("x", array.shape, "INT64")
    tensor.set_data_from_numpy(array)
    return tensor


def test_a_traced_request_tells_which_way_it_went(gateway: Gateway) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with grpc_client(gateway.address) as client:
        client.infer(
            "echo_FP32", [given(np.ones(3, np.float32))], headers={"traceparent": f"00-{trace_id}-{7:016x}-01"}
        )
    file = gateway.nodes[0].log.parents[1] / TRACES
    wait_until(lambda: trace_id in file.read_text())
    (span,) = json.loads(file.read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]
    told = {each["key"]: each["value"] for each in span["attributes"]}
    assert (span["traceId"], span["parentSpanId"], span["name"]) == (trace_id, f"{7:016x}", "infer")
    assert told["overspill.worker"]["stringValue"] in {"n0", "n1"}
    assert told["overspill.attempts"] == {"intValue": "1"}
    assert told["overspill.compute_ms"]["doubleValue"] >= 0.0


def test_shared_memory_and_metrics_are_the_same(gateway: Gateway) -> None:
    x = np.arange(50_000, dtype=np.float32)
    handle = shared_memory.create_shared_memory_region("both", "/osp_test_gateway", 2 * x.nbytes)
    try:
        shared_memory.set_shared_memory_region(handle, [x])
        with grpc_client(gateway.address) as client:
            client.register_system_shared_memory("both", "/osp_test_gateway", 2 * x.nbytes)
            tensor, output = triton.InferInput("x", x.shape, "FP32"), triton.InferRequestedOutput("y")
            tensor.set_shared_memory("both", x.nbytes)
            output.set_shared_memory("both", x.nbytes, x.nbytes)
            client.infer("echo_FP32", [tensor], outputs=[output])
            client.unregister_system_shared_memory()
        found = shared_memory.get_contents_as_numpy(handle, np.float32, list(x.shape), offset=x.nbytes)
        np.testing.assert_array_equal(found, x)
        del found
    finally:
        shared_memory.destroy_shared_memory_region(handle)
    with urllib.request.urlopen(f"http://{gateway.http}/metrics", timeout=20) as answer:
        page = answer.read().decode()
    assert 'nv_inference_request_success{model="echo_FP32",version="1"}' in page
    assert "overspill_workers 2" in page


@pytest.mark.leaks("killed nodes leave their runtime folders, which the next node sweeps")
def test_a_node_killed_under_load_loses_no_request(tmp_path: Path) -> None:
    with running_gateway(tmp_path, 2) as gateway, grpc_client(gateway.address) as client:
        answers: queue.Queue[Any] = queue.Queue()
        for number in range(60):
            words = given(np.array([SLEEP, 20 + number % 3]), "INT64")
            client.async_infer("rough", [words], lambda result, error: answers.put((result, error)))
        wait_until(lambda: len(gateway.nodes[0].ran()) + len(gateway.nodes[1].ran()) >= 6)
        gateway.nodes[0].process.kill()
        for _ in range(60):
            result, error = answers.get(timeout=60)
            assert error is None, error
            assert result.as_numpy("y")[0] == SLEEP
        # The last node's end is seen too: by links at once, and told by health.
        gateway.nodes[1].process.kill()
        wait_until(lambda: not client.is_server_ready())
        assert code(lambda: client.infer("rough", [words])) == "UNAVAILABLE"


def test_a_gateway_told_to_stop_finishes_what_runs(tmp_path: Path) -> None:
    with running_gateway(tmp_path, 1) as gateway, grpc_client(gateway.address) as client:
        answers: queue.Queue[Any] = queue.Queue()
        words = given(np.array([SLEEP, 1500]), "INT64")
        client.async_infer("rough", [words], lambda result, error: answers.put((result, error)))
        wait_until(lambda: gateway.nodes[0].ran() == [1500])
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not client.is_server_ready())
        result, error = answers.get(timeout=30)
        assert error is None, error
        assert result.as_numpy("y").tolist() == [SLEEP, 1500]
        assert gateway.process.wait(30) == 0


def test_certificates_and_a_token_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, ours, client_files = (authority.issue(name) for name in ("node", "gateway", "client"))
    (tmp_path / "node.toml").write_text('rpc_token = "a secret"\nlisten = "127.0.0.1:0"\n')
    (tmp_path / "token").write_text("a secret\n")
    files = {"cert": own.certificate, "key": own.key, "ca": authority.file}
    node_words = ["--config", str(tmp_path / "node.toml"), "--wires", "rpc"]
    node_words += [word for name, file in files.items() for word in (f"--tls-{name}", str(file))]
    ours_by_name = {"cert": ours.certificate, "key": ours.key, "ca": authority.file}
    words = ["--node-token-file", str(tmp_path / "token")]
    for side in ("tls", "node"):
        words += [word for name, file in ours_by_name.items() for word in (f"--{side}-{name}", str(file))]
    with running_gateway(tmp_path, 1, tuple(node_words), tuple(words)) as gateway:
        client = triton.InferenceServerClient(
            gateway.address, ssl=True, root_certificates=str(authority.file), private_key=str(client_files.key),
            certificate_chain=str(client_files.certificate),
        )  # fmt: skip
        try:
            x = np.arange(3, dtype=np.float32)
            np.testing.assert_array_equal(client.infer("echo_FP32", [given(x)]).as_numpy("y"), x)
        finally:
            client.close()
        with grpc_client(gateway.address) as stranger:
            assert code(stranger.get_server_metadata) == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("words", "number", "told"),
    [
        (["--registry", "nowhere", "--listen", "0"], 2, "registry"),
        (["--registry", "dir:/tmp", "--listen", "somewhere"], 2, "--listen"),
        (["--registry", "dir:/tmp", "--listen", "0", "--shm", "map"], 2, "copy, trust, off"),
        (["--registry", "dir:/tmp", "--listen", "0", "--tls-cert", "x.pem"], 2, "--tls-key"),
        (["--registry", "consul:http://127.0.0.1:9", "--listen", "0"], 3, "Consul"),
    ],
)
def test_what_a_gateway_cannot_begin_with_is_told(words: list[str], number: int, told: str) -> None:
    command = [sys.executable, "-m", "overspill", "gateway", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (number, 1), done.stderr
    assert told in done.stderr


def test_nodes_that_hang_are_not_ready_and_are_ready_when_they_go_on(tmp_path: Path) -> None:
    with running_gateway(tmp_path, 1) as gateway, grpc_client(gateway.address) as client:
        x = given(np.ones(2, np.float32))
        assert client.infer("echo_FP32", [x]).as_numpy("y").tolist() == [1, 1]
        os.kill(gateway.nodes[0].process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not client.is_server_ready() and not client.is_model_ready("echo_FP32"), 10.0)
            assert code(lambda: client.infer("echo_FP32", [x], client_timeout=5.0)) == "UNAVAILABLE"
        finally:
            os.kill(gateway.nodes[0].process.pid, signal.SIGCONT)
        wait_until(client.is_server_ready)
        assert client.infer("echo_FP32", [x]).as_numpy("y").tolist() == [1, 1]


@pytest.mark.long
def test_a_node_that_is_killed_while_nobody_asks_is_not_ready_soon(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Over rpc, and by a list that never tells: the gateway's link knows it by itself."""
    models = tmp_path / "models"
    write_model(models, "echo_FP32", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with running_node(tmp_path, models, "--wires", "rpc", "--listen", "127.0.0.1:0") as node:
        found = re.search(r"127\.0\.0\.1:(\d+)", node.log.read_text())
        assert found is not None
        with gateway_process(f"static:127.0.0.1:{found[1]}") as (_, address, _), grpc_client(address) as client:
            wait_until(client.is_server_ready)
            time.sleep(2.0)
            began = time.monotonic()
            node.process.kill()
            wait_until(lambda: not client.is_server_ready())
            took_s = time.monotonic() - began
    record_property("told as not ready after, ms", f"{took_s * 1e3:.0f}")
    sweep(Path(os.environ["XDG_RUNTIME_DIR"]))  # what the killed node left
    assert took_s < 1.5, "its link knows within milliseconds, and stalls of 0.6 s are bridged"


def test_a_gateway_over_a_fixed_list_has_what_its_nodes_have(tmp_path: Path) -> None:
    """Nobody tells of models there: their names are taken at the client's word, and the node says what it has."""
    models = tmp_path / "models"
    write_model(models, "echo_FP32", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    words = ("--wires", "local,rpc", "--listen", "127.0.0.1:0")
    with running_node(tmp_path, models, *words) as node:
        found = re.search(r"127\.0\.0\.1:(\d+)", node.log.read_text())
        assert found is not None
        with gateway_process(f"static:127.0.0.1:{found[1]}") as (_, address, _), grpc_client(address) as client:
            wait_until(client.is_server_ready)
            x = np.arange(3, dtype=np.float32)
            assert client.infer("echo_FP32", [given(x)]).as_numpy("y").tolist() == [0, 1, 2]
            assert [model.name for model in client.get_model_repository_index().models] == ["echo_FP32"]
            assert code(lambda: client.infer("nobody", [given(x)])) == "NOT_FOUND"
            assert [model.name for model in client.get_model_repository_index().models] == ["echo_FP32"]
            assert node.stop() == 0
            wait_until(lambda: not client.is_server_ready())
            assert code(lambda: client.infer("echo_FP32", [given(x)])) == "UNAVAILABLE"
            assert code(lambda: client.infer("nobody", [given(x)])) == "NOT_FOUND"
