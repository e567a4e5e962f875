"""A front door over its life: killed and back, drained in order, models loaded by clients, crowds, large messages."""

from __future__ import annotations

import os
import queue
import re
import signal
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from tests.integration.frontdoors import (
    ECHO,
    SLEEP,
    Front,
    config,
    front_models,
    grpc_client,
    http_client,
    running_front,
)
from tests.integration.nodes import client_of, running_node, wait_until, write_model
from tests.integration.rpc_certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


def words(*numbers: int) -> list[Any]:
    return [given(np.array(numbers, np.int64), "INT64")]


def given(array: np.ndarray[Any, Any], dtype: str = "FP32") -> Any:
    tensor = triton.InferInput("x", array.shape, dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def code(call: Any) -> str:
    with pytest.raises(InferenceServerException) as raised:
        call()
    return str(raised.value.status()).removeprefix("StatusCode.")


def is_ready(front: Front) -> bool:
    with grpc_client(front.grpc) as client:
        try:
            return bool(client.is_server_ready())
        except InferenceServerException:
            return False


def test_a_killed_front_door_comes_back_and_nobody_else_notices(tmp_path: Path) -> None:
    with running_front(tmp_path, front_models(tmp_path)) as front, client_of(front.node) as other:
        ports, executors, old = front.ports, front.node.children("workers.executor"), front.pid
        os.kill(old, signal.SIGKILL)
        assert other.call("rough", 0, 1) == [0, 1]  # over the local wire, meanwhile
        wait_until(lambda: front.node.children("frontdoor.port") not in ([], [old]))
        wait_until(lambda: is_ready(front))
        assert front.ports == ports
        assert front.node.children("workers.executor") == executors
        with grpc_client(front.grpc) as client:
            assert client.infer("rough", words(0, 2)).as_numpy("y").tolist() == [0, 2]


def test_a_drained_node_finishes_what_runs_and_refuses_the_rest(tmp_path: Path) -> None:
    with running_front(tmp_path, front_models(tmp_path)) as front, grpc_client(front.grpc) as client:
        answers: queue.Queue[Any] = queue.Queue()
        client.async_infer("rough", words(SLEEP, 800), lambda result, error: answers.put((result, error)))
        wait_until(lambda: front.node.ran() == [800])
        front.node.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(front))
        assert code(lambda: client.infer("rough", words(0, 1))) == "UNAVAILABLE"
        result, error = answers.get(timeout=30)
        assert error is None, error
        assert result.as_numpy("y").tolist() == [SLEEP, 800]
        assert front.node.process.wait(30) == 0
        assert front.node.ran() == [800]


def test_clients_load_and_unload_where_the_operator_lets_them(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    write_model(models, "broken", "raise ImportError('no such card')", config({"x": "-1"}, {"y": "-1"}, "FP32"))
    x = np.ones(3, np.float32)
    with (
        running_front(tmp_path, models, "--model-control", "explicit") as front,
        grpc_client(front.grpc) as client,
        http_client(front.http) as http,
    ):
        assert code(lambda: client.infer("one", [given(x)])) == "UNAVAILABLE"
        client.load_model("one")
        assert client.is_model_ready("one")
        assert client.infer("one", [given(x)]).as_numpy("y").tolist() == [1, 1, 1]
        # Another configuration takes the place of the file, until the next load.
        client.load_model("one", config='{"backend": "python", "max_batch_size": 4, "input": [{"name": "x",'
                          ' "data_type": "TYPE_FP32", "dims": [3]}], "output": [{"name": "y", "data_type": "TYPE_FP32",'
                          ' "dims": [3]}]}')  # fmt: skip
        assert client.get_model_config("one").config.max_batch_size == 4
        assert client.infer("one", [given(x.reshape(1, 3))]).as_numpy("y").shape == (1, 3)
        assert (
            code(lambda: client.load_model("one", files={"file:1/model.py": b"evil"}, config="{}")) == "UNIMPLEMENTED"
        )
        assert code(lambda: client.load_model("nobody")) == "NOT_FOUND"
        assert code(lambda: client.load_model("broken")) == "UNAVAILABLE"
        index = {model.name: model for model in client.get_model_repository_index().models}
        assert (index["one"].state, index["broken"].state) == ("READY", "UNAVAILABLE")
        assert "no such card" in index["broken"].reason
        http.unload_model("one")
        assert not client.is_model_ready("one")
        assert code(lambda: client.infer("one", [given(x.reshape(1, 3))])) == "UNAVAILABLE"
        http.load_model("one")
        assert client.infer("one", [given(x)]).as_numpy("y").tolist() == [1, 1, 1]


def test_a_crowd_of_large_requests_waits_its_turn(tmp_path: Path) -> None:
    """Sixteen requests of 8 MiB want four times what their arena has room for; all are answered."""
    (tmp_path / "node.toml").write_text("arena_bytes_max = 67108864\nfrontdoor_message_bytes_max = 16777216\n")
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    x = np.arange(2 << 20, dtype=np.float32)
    with (
        running_front(tmp_path, models, "--config", str(tmp_path / "node.toml")) as front,
        grpc_client(front.grpc) as client,
    ):
        answers: queue.Queue[Any] = queue.Queue()
        for _ in range(16):
            client.async_infer("one", [given(x)], lambda result, error: answers.put((result, error)))
        for _ in range(16):
            result, error = answers.get(timeout=60)
            assert error is None, error
            np.testing.assert_array_equal(result.as_numpy("y"), x)


@pytest.mark.parametrize("how", ["trust", "off"])
def test_shared_memory_is_as_the_operator_says(tmp_path: Path, how: str) -> None:
    (tmp_path / "node.toml").write_text(f'frontdoor_shm = "{how}"\n')
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    x = np.arange(1000, dtype=np.float32)
    handle = shared_memory.create_shared_memory_region("both", "/osp_test_life", 8000)
    try:
        shared_memory.set_shared_memory_region(handle, [x])
        with (
            running_front(tmp_path, models, "--config", str(tmp_path / "node.toml")) as front,
            grpc_client(front.grpc) as client,
        ):
            register = ("both", "/osp_test_life", 8000)
            if how == "off":
                assert code(lambda: client.register_system_shared_memory(*register)) == "UNIMPLEMENTED"
                return
            client.register_system_shared_memory(*register)
            tensor, output = triton.InferInput("x", [1000], "FP32"), triton.InferRequestedOutput("y")
            tensor.set_shared_memory("both", 4000)
            output.set_shared_memory("both", 4000, 4000)
            client.infer("one", [tensor], outputs=[output])
            found = shared_memory.get_contents_as_numpy(handle, np.float32, [1000], offset=4000)
            np.testing.assert_array_equal(found, x)
            del found
        # The node is gone, and the memory is still its owner's.
        assert shared_memory.get_contents_as_numpy(handle, np.float32, [1000])[999] == 999
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def test_a_port_in_use_is_told_at_the_start(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with running_front(tmp_path, models) as front:
        again = tmp_path / "again"
        again.mkdir()
        began = time.monotonic()
        with running_node(again, models, "--frontdoor", str(front.ports[0]), ready=False) as node:
            assert node.process.wait(60) == 2
        assert time.monotonic() - began < 50
        assert "another process listens on 127.0.0.1" in (again / "node.log").read_text()


def test_certificates_of_the_node_hold_at_its_front_door(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    authority = Authority(tmp_path)
    own, ours = authority.issue("node"), authority.issue("client")
    words = ["--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--tls-ca", str(authority.file)]
    x = np.ones(3, np.float32)
    with running_front(tmp_path, models, *words) as front:
        files = {
            "root_certificates": str(authority.file),
            "private_key": str(ours.key),
            "certificate_chain": str(ours.certificate),
        }
        client = triton.InferenceServerClient(front.grpc, ssl=True, **files)
        try:
            assert client.infer("one", [given(x)]).as_numpy("y").tolist() == [1, 1, 1]
        finally:
            client.close()
        for stranger in ({}, {"ssl": True, "root_certificates": str(authority.file)}):
            client = triton.InferenceServerClient(front.grpc, **stranger)
            try:
                assert code(lambda client=client: client.infer("one", [given(x)])) == "UNAVAILABLE"
            finally:
                client.close()
        context = ssl.create_default_context(cafile=str(authority.file))
        context.load_cert_chain(str(ours.certificate), str(ours.key))
        with urllib.request.urlopen(f"https://{front.http}/v2/health/ready", context=context, timeout=20) as answer:
            assert answer.status == 200
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(f"http://{front.http}/v2/health/ready", timeout=20)


def test_the_memory_of_cards_is_told_as_triton_tells_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with running_front(tmp_path, models, "--devices", "fake:2") as front:
        page = metrics(front)
        total = re.findall(r'^nv_gpu_memory_total_bytes\{gpu_uuid="(.+)"\} (\d+)$', page, re.MULTILINE)
        used = re.findall(r'^nv_gpu_memory_used_bytes\{gpu_uuid="(.+)"\} (\d+)$', page, re.MULTILINE)
        assert len({uuid for uuid, _ in total}) == 2
        assert all(0 <= int(part) < int(whole) for (_, whole), (_, part) in zip(total, used, strict=True))
        assert {device for _, device in re.findall(r'ready\{executor="(.)",device="(.+)"\}', page)} == {
            "fake:0",
            "fake:1",
        }
        wait_until(lambda: len(re.findall(r"^overspill_executor_ready\{.+\} 1$", metrics(front), re.MULTILINE)) == 2)


def metrics(front: Front) -> str:
    with urllib.request.urlopen(f"http://{front.http}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.long
def test_a_tensor_of_256_mib_is_taken_where_the_operator_allows_it(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("frontdoor_message_bytes_max = 268435456\n")
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    x = np.arange(64 << 20, dtype=np.float32)
    with (
        running_front(tmp_path, models, "--config", str(tmp_path / "node.toml")) as front,
        grpc_client(front.grpc) as client,
    ):
        np.testing.assert_array_equal(client.infer("one", [given(x)]).as_numpy("y"), x)
        more = np.zeros(65 << 20, np.float32)
        assert code(lambda: client.infer("one", [given(more)])) == "RESOURCE_EXHAUSTED"
        assert client.is_server_live(), "over the same connection"


@pytest.mark.long
def test_a_trusted_client_that_cuts_its_memory_ends_the_front_door_alone(tmp_path: Path) -> None:
    """What the operator was told to expect: the process dies of it, the node does not, and another one comes."""
    models = tmp_path / "models"
    write_model(models, "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    handle = shared_memory.create_shared_memory_region("cut", "/osp_test_trusted", 1 << 20)
    try:
        with running_front(tmp_path, models, "--trust-client-shm") as front, grpc_client(front.grpc) as client:
            old, executors = front.pid, front.node.children("workers.executor")
            client.register_system_shared_memory("cut", "/osp_test_trusted", 1 << 20)
            os.truncate("/dev/shm/osp_test_trusted", 0)
            tensor = triton.InferInput("x", [1 << 17], "FP32")
            tensor.set_shared_memory("cut", 1 << 19)
            assert code(lambda: client.infer("one", [tensor])) == "UNAVAILABLE"
            wait_until(lambda: front.node.children("frontdoor.port") not in ([], [old]))
            wait_until(lambda: is_ready(front))
            assert front.node.children("workers.executor") == executors
    finally:
        os.truncate("/dev/shm/osp_test_trusted", 1 << 20)
        shared_memory.destroy_shared_memory_region(handle)
