"""R40: a caller's W3C trace comes in with its request and goes out with what the node did; and models that were loaded
at the node itself are served by its front door at once.
"""

from __future__ import annotations

import http.server
import json
import queue
import random
import threading
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.local.control import NodeControl, control_path
from frontdoor.trace_context import read_context
from frontdoor.trace_writer import open_sink
from frontdoor.traces import Traces
from tests.integration.frontdoors import (
    OK,
    RAISE,
    Front,
    code,
    config,
    front_models,
    given,
    grpc_client,
    http_client,
    running_front,
    wait_serving,
)
from tests.integration.nodes import wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

Span = dict[str, Any]
dice = random.Random(40)
ROUNDS = 12
OTHER = """
class Model:
    def __init__(self, config):
        self.name = config.outputs[0].name
    def execute(self, inputs, outputs):
        outputs[self.name] = inputs["x"]
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Path]]:
    """A node whose front door writes traces to a file."""
    folder = tmp_path_factory.mktemp("traces")
    file = folder / "traces.jsonl"
    (folder / "node.toml").write_text(f'frontdoor_traces = "{file}"\n')
    models = front_models(folder)
    write_model(models, "other", OTHER, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    words = ["--model-control", "explicit", "--config", str(folder / "node.toml")]
    for name in ("echo_FP32", "rough"):
        words += ["--load-model", name]
    with running_front(folder, models, *words) as front:
        wait_serving(front, "echo_FP32", "rough")
        yield front, file


def parent(*, sampled: bool = True) -> tuple[str, str]:
    """A new trace's id, and the header of it."""
    trace_id = f"{dice.getrandbits(128) or 1:032x}"
    return trace_id, f"00-{trace_id}-00f067aa0ba902b7-{'01' if sampled else '00'}"


def spans(file: Path) -> list[Span]:
    """All that were written so far."""
    found = []
    for line in file.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            found += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
    return found


def of_trace(file: Path, trace_id: str) -> dict[str, Span]:
    """The spans of a trace by name, once they are written."""
    wait_until(lambda: any(span["traceId"] == trace_id for span in spans(file)))
    return {span["name"]: span for span in spans(file) if span["traceId"] == trace_id}


X = np.ones(1024, np.float32)


def ask_grpc(front: Front, header: str) -> None:
    with grpc_client(front.grpc) as client:
        client.infer("echo_FP32", [given("x", X)], headers={"traceparent": header})


def ask_stream(front: Front, header: str) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client(front.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error), headers={"traceparent": header})
        client.async_stream_infer("echo_FP32", [given("x", X)])
        assert answers.get(timeout=30) is None


def ask_http(front: Front, header: str) -> None:
    import tritonclient.http as triton_http

    tensor = triton_http.InferInput("x", X.shape, "FP32")
    tensor.set_data_from_numpy(X)
    with http_client(front.http) as client:
        client.infer("echo_FP32", [tensor], headers={"traceparent": header})


@pytest.mark.parametrize("ask", [ask_grpc, ask_stream, ask_http])
def test_what_a_node_did_for_a_traced_request_is_told(traced: tuple[Front, Path], ask: Any) -> None:
    front, file = traced
    trace_id, header = parent()
    ask(front, header)
    found = of_trace(file, trace_id)
    assert found.keys() == {"infer", "queue", "h2d", "compute", "d2h"}
    whole = found["infer"]
    assert whole["parentSpanId"] == "00f067aa0ba902b7"
    at_ns = int(whole["startTimeUnixNano"])
    for name in ("queue", "h2d", "compute", "d2h"):
        assert found[name]["parentSpanId"] == whole["spanId"]
        assert at_ns - 1000 <= int(found[name]["startTimeUnixNano"]) <= int(found[name]["endTimeUnixNano"])
        at_ns = int(found[name]["endTimeUnixNano"])
    assert at_ns <= int(whole["endTimeUnixNano"]) + 5_000_000, "measured by three processes, on one clock"


def test_who_does_not_record_is_not_recorded_and_a_malformed_header_is_no_error(traced: tuple[Front, Path]) -> None:
    front, file = traced
    silent, header = parent(sampled=False)
    for each in (header, "00-zz", "", "x" * 4000, f"ff{header[2:]}"):
        ask_grpc(front, each)
        ask_http(front, each)
    marker, header = parent()
    ask_grpc(front, header)
    of_trace(file, marker)
    assert not any(span["traceId"] == silent for span in spans(file))


def test_a_failed_request_tells_why_and_settings_are_tritons(traced: tuple[Front, Path]) -> None:
    front, file = traced
    trace_id, header = parent()
    with grpc_client(front.grpc) as client:
        words = [given("x", np.array([RAISE, 1]), "INT64")]
        assert code(partial(client.infer, "rough", words, headers={"traceparent": header})) == "INTERNAL"
        assert of_trace(file, trace_id)["infer"]["status"]["code"] == 2
        told = client.get_trace_settings().settings
        assert list(told["trace_mode"].value) == ["opentelemetry"]
        assert list(told["trace_level"].value) == ["TIMESTAMPS"]
        client.update_trace_settings("rough", settings={"trace_rate": "1", "trace_count": "2"})
        before = len(spans(file))
        for _ in range(3):
            client.infer("rough", [given("x", np.array([OK, 1]), "INT64")])
        wait_until(lambda: len(spans(file)) == before + 10)
        assert list(client.get_trace_settings("rough").settings["trace_count"].value) == ["0"]
        assert list(client.get_trace_settings().settings["trace_count"].value) == ["-1"]
    with http_client(front.http) as other:
        assert other.get_trace_settings("rough")["trace_rate"] == "1"
        told = other.update_trace_settings("rough", settings={"trace_rate": None, "trace_count": None})
        assert (told["trace_rate"], told["trace_count"]) == ("1000", "-1"), "None asks for the default"
    page = urllib.request.urlopen(f"http://{front.http}/metrics", timeout=30).read().decode()
    assert 'overspill_frontdoor_traces{state="written"}' in page


def test_a_model_that_was_loaded_at_the_node_is_served_at_once(traced: tuple[Front, Path]) -> None:
    front, _ = traced
    control = NodeControl(control_path(front.node.path))
    with grpc_client(front.grpc) as client, http_client(front.http) as other:
        for number in range(ROUNDS):
            control.load("other")
            if number % 3 == 0:
                assert client.infer("other", [given("x", X)]).as_numpy("y") is not None
            elif number % 3 == 1:
                assert client.is_model_ready("other")
            else:
                states = {each["name"]: each.get("state") for each in other.get_model_repository_index()}
                assert states["other"] == "READY"
            control.unload("other")
        wait_until(lambda: not client.is_model_ready("other"))


def test_what_another_load_changed_is_known(traced: tuple[Front, Path]) -> None:
    front, _ = traced
    control = NodeControl(control_path(front.node.path))
    with grpc_client(front.grpc) as client:
        for name in ("y", "z"):
            tensors = [{"name": each, "data_type": "TYPE_FP32", "dims": ["-1"]} for each in ("x", name)]
            told = {"name": "other", "backend": "python", "input": tensors[:1], "output": tensors[1:]}
            control.load("other", json.dumps(told))
            assert [each.name for each in client.get_model_metadata("other").outputs] == [name]
            assert client.infer("other", [given("x", X)]).as_numpy(name) is not None
        control.unload("other")


@contextmanager
def collector(status: int) -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """An HTTP server that takes whatever is posted: its address, and (path, content type, body) of each."""
    found: list[tuple[str, str, bytes]] = []

    class Take(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append((self.path, self.headers["Content-Type"], body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_collector_gets_what_a_file_would() -> None:
    with collector(200) as (url, found):
        open_sink(url)(b"{}\n")
        open_sink(f"{url}/mine")(b"{}\n")
    assert found == [("/v1/traces", "application/json", b"{}\n"), ("/mine", "application/json", b"{}\n")]
    with pytest.raises(OSError, match="refused"):
        open_sink(url)(b"{}\n")
    with collector(503) as (url, _), pytest.raises(OSError, match="503"):
        open_sink(url)(b"{}\n")


@pytest.mark.long
def test_a_context_that_is_not_recorded_costs_next_to_nothing(traced: tuple[Front, Path]) -> None:
    """R40: under 2 % of what a call of 4 KiB costs its front door."""
    front, _ = traced
    calls = 2000
    with grpc_client(front.grpc) as client:
        inputs = [given("x", X)]
        client.infer("echo_FP32", inputs)
        before_us = cpu_us(front.pid)
        for _ in range(calls):
            client.infer("echo_FP32", inputs)
        call_us = (cpu_us(front.pid) - before_us) / calls
    _, header = parent(sampled=False)
    of, metadata = Traces("here"), (("user-agent", "grpc-python/1.0"), ("traceparent", header), ("tracestate", "a=1"))
    began_ns = time.process_time_ns()
    for _ in range(calls):
        told = dict(metadata)
        assert of.begin("echo_FP32", read_context(told["traceparent"], told["tracestate"])) is None
    assert (time.process_time_ns() - began_ns) / 1000 / calls < 0.02 * call_us


def cpu_us(pid: int) -> float:
    """What a process has taken of processors."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000
