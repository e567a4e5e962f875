"""CUDA shared memory of stock clients, on fake cards: a client's memory is opened by the executors of its card alone.

The fakes share memory as cards do (`workers/cuda/fake_memory.py`), so all but the driver is real: the stock client, the
front door, the node, two executors on two cards. On a card: `tests/hw/test_gpu_shared.py`.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.hw.front_http import FrontHttp
from tests.integration.frontdoors import ECHO, code, config, given, goes, grpc_client, lies, running_front
from tests.integration.nodes import open_files, wait_until, write_model
from workers.cuda.fake_memory import FakeExport

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.frontdoors import Front

REGION = 1 << 16
DOUBLE = """
import os
class Model:
    def __init__(self, config):
        self.card = os.environ["CUDA_VISIBLE_DEVICES"]
    def execute(self, inputs, outputs):
        outputs["y"] = 2 * inputs["x"]
        outputs["card"] = [self.card.encode()]
"""
ON_CARD = """
import ctypes
import numpy as np
def there(array):
    return np.frombuffer((ctypes.c_char * array.nbytes).from_address(array.address), array.dtype).reshape(array.shape)
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        x, n = inputs.on_card("x"), inputs["n"]
        assert inputs.on_card("n") is None, "what steers memory is a private copy"
        y = outputs.on_card("y", "FP32", n.shape)
        seen = there(x) if x is not None else inputs["x"]
        (there(y) if y is not None else outputs.allocate("y", "FP32", n.shape))[:] = 3 * seen + n
        outputs["ways"] = np.array([x is not None, y is not None])
"""
OWNER = """
import sys
from workers.cuda.fake_memory import FakeExport
export = FakeExport.of(0, 4096)
sys.stdout.buffer.write(export.handle)
sys.stdout.flush()
sys.stdin.read()
"""
X = np.arange(1000, dtype=np.float32)


def models(folder: Path) -> Path:
    made = folder / "models"
    text = 'output { name: "card" data_type: TYPE_STRING dims: [ 1 ] }'
    write_model(made, "double", DOUBLE, config({"x": "-1"}, {"y": "-1"}, "FP32", text))
    more = """
input { name: "n" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "ways" data_type: TYPE_BOOL dims: [ 2 ] }
parameters { key: "card_memory" value { string_value: "true" } }
"""
    write_model(made, "on_card", ON_CARD, config({"x": "-1"}, {"y": "-1"}, "FP32", more))
    write_model(made, "echo", ECHO, config({"x": "-1"}, {"y": "-1"}, "INT64"))
    batching = "max_batch_size: 8\ndynamic_batching { }"
    write_model(made, "rows", ECHO, config({"x": "4"}, {"y": "4"}, "FP32", batching))
    return made


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("cards")
    settings = folder / "node.toml"
    settings.write_text("frontdoor_shm_lease_s = 0.5\n")
    with running_front(folder, models(folder), "--config", str(settings), "--devices", "fake:2") as front:
        yield front


@pytest.fixture
def client(cards: Front) -> Iterator[Any]:
    with grpc_client(cards.grpc) as client:
        yield client
        client.unregister_cuda_shared_memory()


@contextmanager
def memory(client: Any, name: str, card: int = 0, nbytes: int = REGION) -> Iterator[mmap.mmap]:
    """Memory on a fake card, made and registered as stock clients do; its bytes."""
    export = FakeExport.of(card, nbytes)
    try:
        client.register_cuda_shared_memory(name, base64.b64encode(export.handle), card, nbytes)
        yield export.memory
        client.unregister_cuda_shared_memory(name)
    finally:
        export.close()


def put(seen: mmap.mmap, array: np.ndarray[Any, Any], offset: int = 0) -> None:
    seen[offset : offset + array.nbytes] = array.tobytes()


def got(seen: mmap.mmap, like: np.ndarray[Any, Any], offset: int = 0) -> np.ndarray[Any, Any]:
    return np.frombuffer(seen[offset : offset + like.nbytes], like.dtype)


def maps(front: Front) -> list[int]:
    """How many memories of fake cards each executor has mapped."""
    held = [open_files(pid) for pid in front.node.children()]
    return [sum("overspill-fake-card" in name for name in names) for names in held]


def test_the_stock_flow_with_shared_input_and_output(cards: Front, client: Any) -> None:
    with memory(client, "ins") as ins, memory(client, "outs") as outs:
        put(ins, X, 256)
        wanted = [goes("y", "outs", X.nbytes, 512)]
        result = client.infer("double", [lies("x", [1000], "FP32", "ins", X.nbytes, 256)], outputs=wanted)
        assert result.get_response().raw_output_contents[0] == b""
        assert np.array_equal(got(outs, X, 512), 2 * X)
        assert not any(outs[:512])
        assert not any(outs[512 + X.nbytes :])
        status = client.get_cuda_shared_memory_status().regions
        assert {(each.name, each.device_id, each.byte_size) for each in status.values()} == {
            ("ins", 0, REGION), ("outs", 0, REGION),
        }  # fmt: skip
    assert not client.get_cuda_shared_memory_status().regions
    wait_until(lambda: not any(maps(cards)))  # the executors let go of it, too


def test_the_same_over_http(cards: Front) -> None:
    """By the caller that `tests/hw` uses on machines without the stock client."""
    export, http = FakeExport.of(0, 4096), FrontHttp(cards.ports[1])
    try:
        assert http.register("r", export.handle, 4096) == (200, {})
        assert http.regions() == [{"name": "r", "device_id": 0, "byte_size": 4096}]
        put(export.memory, X[:4])
        status, told = http.infer("double", 4, ("r", 0, 16), ("r", 64, 16))
        assert (status, np.array_equal(got(export.memory, X[:4], 64), 2 * X[:4])) == (200, True), told
        status, told = http.infer("double", 2, [1.0, 2.0], None)
        assert (status, told["outputs"][0]["data"]) == (200, [2.0, 4.0])
        status, told = http.register("bad", bytes(64), 64)
        assert (status, "CUDA error 1" in told["error"]) == (400, True)
        http.unregister("r")
        assert http.regions() == []
    finally:
        http.close()
        export.close()


@pytest.mark.parametrize("card", [0, 1])
def test_a_request_runs_on_the_card_of_its_memory(client: Any, card: int) -> None:
    with memory(client, "ins", card) as ins:
        put(ins, X)
        tensor = lies("x", [1000], "FP32", "ins", X.nbytes)
        told = {client.infer("double", [tensor]).as_numpy("card")[0] for _ in range(6)}
        assert told == {f"FAKE-{card}".encode()}


def test_mixes_and_other_types_and_batches(client: Any) -> None:
    ints = np.arange(-5, 60, dtype=np.int64)
    with memory(client, "cuda") as seen:
        put(seen, ints)
        result = client.infer("echo", [lies("x", [65], "INT64", "cuda", ints.nbytes)])
        assert np.array_equal(result.as_numpy("y"), ints)
        client.infer("echo", [given("x", ints, "INT64")], outputs=[goes("y", "cuda", ints.nbytes, 4096)])
        assert np.array_equal(got(seen, ints, 4096), ints)
        rows = np.arange(12, dtype=np.float32)
        put(seen, rows)
        result = client.infer("rows", [lies("x", [3, 4], "FP32", "cuda", rows.nbytes)])
        assert np.array_equal(result.as_numpy("y"), rows.reshape(3, 4))


def test_a_model_that_reads_cards_gets_addresses(client: Any) -> None:
    n = np.arange(1000, dtype=np.int32)
    with memory(client, "cuda") as seen:
        put(seen, X)
        put(seen, n, 8192)
        there = [lies("x", [1000], "FP32", "cuda", X.nbytes), lies("n", [1000], "INT32", "cuda", n.nbytes, 8192)]
        client.infer("on_card", there, outputs=[goes("y", "cuda", X.nbytes, 16384)])
        assert np.array_equal(got(seen, X, 16384), 3 * X + n)
        result = client.infer("on_card", there)
        assert np.array_equal(result.as_numpy("y"), 3 * X + n)
        assert result.as_numpy("ways").tolist() == [True, False]
        raw = [given("x", X), given("n", n, "INT32")]
        assert client.infer("on_card", raw).as_numpy("ways").tolist() == [False, False]


def test_what_cannot_be_opened_is_refused_with_its_reason(cards: Front, client: Any) -> None:
    register = client.register_cuda_shared_memory
    export = FakeExport.of(0, 4096)
    good = base64.b64encode(export.handle)
    unsound = base64.b64encode(export.handle[:32] + bytes(32))
    try:
        bad = {
            "INVALID_ARGUMENT": [
                ("r", unsound, 0, 4096), ("r", good, 1, 4096), ("r", good, 2, 4096), ("r", good, 0, 4097),
                ("r", base64.b64encode(export.handle[:63]), 0, 4096), ("r", good, 0, 0),
            ],
        }  # fmt: skip
        for expected, calls in bad.items():
            for call in calls:
                assert code(lambda call=call: register(*call)) == expected, call
        register("r", good, 0, 4096)
        assert code(lambda: register("r", good, 0, 4096)) == "ALREADY_EXISTS"
        for tensor in (lies("x", [8], "FP32", "r", 32, 4080), lies("x", [8], "FP32", "r", 32, 2**62)):
            assert code(lambda tensor=tensor: client.infer("double", [tensor])) == "INVALID_ARGUMENT"
        small = [goes("y", "r", 8)]
        assert code(lambda: client.infer("double", [given("x", X)], outputs=small)) == "INTERNAL"
        assert (
            code(lambda: client.infer("double", [given("x", X)], outputs=[goes("card", "r", 8)])) == "INVALID_ARGUMENT"
        )
        assert code(lambda: client.get_system_shared_memory_status("r")) == "NOT_FOUND"
        client.unregister_system_shared_memory("r")  # of another kind: it stays
        assert client.get_cuda_shared_memory_status("r").regions
    finally:
        client.unregister_cuda_shared_memory("r")
        export.close()
    wait_until(lambda: not any(maps(cards)))
    with pytest.raises(InferenceServerException, match="cannot be used"):
        register("r", good, 0, 4096)  # its owner has freed it


def test_the_next_generation_opens_it_again(cards: Front, client: Any) -> None:
    with memory(client, "cuda") as seen:
        put(seen, X)
        tensor = lies("x", [1000], "FP32", "cuda", X.nbytes)
        client.infer("double", [tensor])
        before = set(cards.node.children())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(set(cards.node.children()) - before) == 2 and client.is_model_ready("double"))
        wait_until(lambda: _answers(client, tensor))


def _answers(client: Any, tensor: Any) -> bool:
    try:
        return bool(np.array_equal(client.infer("double", [tensor]).as_numpy("y"), 2 * X))
    except InferenceServerException:
        return False


def test_memory_of_a_client_that_is_gone_is_let_go(cards: Front) -> None:
    """The registering process is killed: the lease ends, and the executors close it; its owner may live on."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        handle = base64.b64encode(owner.stdout.read(64)).decode()
        client = f"""
import signal, sys, tritonclient.grpc as triton
client = triton.InferenceServerClient({cards.grpc!r})
client.register_cuda_shared_memory("orphan", {handle!r}, 0, 4096)
sys.stdout.write("registered"); sys.stdout.flush()
signal.pause()
"""
        with subprocess.Popen([sys.executable, "-c", client], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.read(10) == b"registered"
            assert sum(maps(cards)) == 1
            other.kill()
        wait_until(lambda: not any(maps(cards)))
        owner.kill()
    with grpc_client(cards.grpc) as client_:
        assert not client_.get_cuda_shared_memory_status().regions
