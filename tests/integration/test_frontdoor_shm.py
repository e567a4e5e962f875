"""System shared memory of stock clients: all mixes, truncation at any moment, leaks, killed clients, strangers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import serialize_byte_tensor, shared_memory

from tests.integration.frontdoors import DTYPES, Front, code, given, goes, grpc_client, lies, region

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(front: Front) -> Iterator[Any]:
    with grpc_client(front.grpc) as client:
        yield client
        client.unregister_system_shared_memory()


def test_all_64_mixes_of_raw_and_shared(client: Any) -> None:
    arrays = [np.arange(n + 2, dtype=np.float32) + 10 * n for n in range(3)]
    with region(client, "ins") as ins, region(client, "outs") as outs:
        for number, array in enumerate(arrays):
            shared_memory.set_shared_memory_region(ins, [array], offset=1000 * number)
        for mix in itertools.product((False, True), repeat=6):
            shared_memory.set_shared_memory_region(outs, [np.zeros(1000, np.float32)])
            inputs = [
                lies(f"x{n}", [n + 2], "FP32", "ins", arrays[n].nbytes, 1000 * n)
                if mix[n]
                else given(f"x{n}", arrays[n])
                for n in range(3)
            ]
            outputs = [
                goes(f"y{n}", "outs", arrays[n].nbytes, 1000 * n)
                if mix[3 + n]
                else triton.InferRequestedOutput(f"y{n}")
                for n in range(3)
            ]
            result = client.infer("trio", inputs, outputs=outputs)
            raw = result.get_response().raw_output_contents
            assert len(raw) == 3
            for n in range(3):
                if mix[3 + n]:
                    assert raw[n] == b""
                    found = shared_memory.get_contents_as_numpy(outs, np.float32, [n + 2], offset=1000 * n)
                else:
                    found = result.as_numpy(f"y{n}")
                np.testing.assert_array_equal(found, arrays[n], f"{mix} {n}")


def test_every_datatype_travels_through_shared_memory(client: Any) -> None:
    with region(client, "ins") as ins, region(client, "outs") as outs:
        for dtype in DTYPES:
            if dtype == "BYTES":
                array: np.ndarray[Any, Any] = np.array([b"", b"abc"], object)
                raw = serialize_byte_tensor(array).item()
            else:
                kind = {"BOOL": "?", "BF16": ml_dtypes.bfloat16, "FP16": "f2", "FP32": "f4", "FP64": "f8"}
                array = np.array([0, 1, 100], kind.get(dtype, dtype.lower()))
                raw = array.tobytes()
            shared_memory.set_shared_memory_region(ins, [np.frombuffer(raw, np.uint8)])
            client.infer(
                f"echo_{dtype}",
                [lies("x", list(array.shape), dtype, "ins", len(raw))],
                outputs=[goes("y", "outs", len(raw))],
            )
            found = shared_memory.get_contents_as_numpy(outs, np.uint8, [len(raw)]).tobytes()
            assert found == raw, dtype


def test_registrations_have_tritons_codes(front: Front, client: Any) -> None:
    register = client.register_system_shared_memory
    with region(client, "one", 4096):
        bad = {
            "ALREADY_EXISTS": [("one", "/osp_test_one", 4096)],
            "INTERNAL": [("two", "/osp_test_no_such_memory", 4096)],
            "INVALID_ARGUMENT": [
                ("", "/osp_test_one", 4096),
                ("two", "", 4096),
                ("two", "/", 4096),
                ("two", "/../etc/passwd", 4096),
                ("two", "/osp_test_one/", 4096),
                ("two", "/triton_python_backend_shm_region_1", 4096),
                ("two", "/osp_test_one", 4097),
                ("two", "/osp_test_one", 0),
                ("two", "/osp_test_one", 2**63, 2**63),
                ("two", "/osp_test_one", 1, 4096),
            ],
        }
        for expected, calls in bad.items():
            for call in calls:
                assert code(lambda call=call: register(*call)) == expected, call
        assert code(lambda: client.get_system_shared_memory_status("two")) == "NOT_FOUND"
        x = np.ones(4, np.float32)
        too_far = [("one", 16, 4081), ("one", 16, 2**62)]
        for where, nbytes, offset in too_far:
            tensor = lies("x", [4], "FP32", where, nbytes, offset)
            assert code(lambda tensor=tensor: client.infer("echo_FP32", [tensor])) == "INVALID_ARGUMENT"
        small = [goes("y", "one", 8)]
        assert code(lambda: client.infer("echo_FP32", [given("x", x)], outputs=small)) == "INTERNAL"
        client.unregister_system_shared_memory("two")  # that it is not there is no error


def test_cuda_memory_needs_a_device(client: Any) -> None:
    assert code(lambda: client.register_cuda_shared_memory("c", "A" * 84 + "AA==", 0, 64)) == "UNIMPLEMENTED"
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory()
