"""Triton in the same run, where it is installed: run by an interpreter that has nvidia-pytriton and tritonclient.

    PYTHON tests/benchmarks/triton_peer.py SECONDS SIZE [SIZE ...]

It starts the tritonserver of PyTriton's wheel on loopback with its bare Python backend, calls an echo over stock
tritonclient (gRPC) with system shared memory and with raw messages, and prints one JSON object
{"shm": {size: p50_us}, "raw": {size: p50_us}}. Nothing of Overspill is imported.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

CONFIG = """
name: "echo"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return answers
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def write_echo(folder: Path) -> None:
    model = folder / "models" / "echo" / "1"
    model.mkdir(parents=True)
    (model.parent / "config.pbtxt").write_text(CONFIG)
    (model / "model.py").write_text(MODEL)


def start(folder: Path, port: int, *words: str) -> subprocess.Popen:
    import pytriton

    home = Path(pytriton.__file__).parent / "tritonserver"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    backends = folder / "backends"
    backends.mkdir()
    python = backends / "python"
    python.mkdir()
    for path in [*(home / "backends" / "python").iterdir(), *(home / "python_backend_stubs" / version).iterdir()]:
        if not (python / path.name).exists():
            (python / path.name).symlink_to(path)
    libraries = f"{sysconfig.get_config_var('LIBDIR')}:{home / 'external_libs'}"
    command = [str(home / "bin" / "tritonserver"), f"--model-repository={folder / 'models'}"]
    command += [f"--backend-directory={backends}", f"--grpc-port={port}", "--grpc-address=127.0.0.1"]
    command += ["--allow-http=false", "--allow-metrics=false", "--log-verbose=0", *words]
    env = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def p50_us(call, seconds: float) -> float:
    for _ in range(5):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    import numpy as np
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import shared_memory as shm

    seconds, sizes = float(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    result: dict[str, dict[int, float]] = {"shm": {}, "raw": {}}
    with tempfile.TemporaryDirectory() as name:
        port = free_port()
        write_echo(Path(name))
        server = start(Path(name), port)
        try:
            client = grpcclient.InferenceServerClient(f"127.0.0.1:{port}")
            give_up_at = time.monotonic() + 60
            while True:
                if server.poll() is not None:
                    sys.exit(f"tritonserver ended: {server.stderr.read().decode(errors='replace')[-800:]}")
                try:
                    if client.is_model_ready("echo"):
                        break
                except Exception:  # any error of the stock client means that the server is not up yet
                    if time.monotonic() > give_up_at:
                        raise
                time.sleep(0.1)
            for size in sizes:
                array = np.ones(size // 4, np.float32)
                output = grpcclient.InferRequestedOutput("y")
                raw_input = grpcclient.InferInput("x", array.shape, "FP32")
                raw_input.set_data_from_numpy(array)
                result["raw"][size] = p50_us(
                    lambda raw=raw_input, out=output: client.infer("echo", [raw], outputs=[out]).as_numpy("y"), seconds
                )
                handles = [
                    shm.create_shared_memory_region(n, f"/ovs_{os.getpid()}_{n}_{size}", size) for n in ("in", "out")
                ]
                shm.set_shared_memory_region(handles[0], [array])
                for region in ("in", "out"):
                    client.register_system_shared_memory(region, f"/ovs_{os.getpid()}_{region}_{size}", size)
                shm_input = grpcclient.InferInput("x", array.shape, "FP32")
                shm_input.set_shared_memory("in", size)
                shm_output = grpcclient.InferRequestedOutput("y")
                shm_output.set_shared_memory("out", size)
                result["shm"][size] = p50_us(
                    lambda given=shm_input, out=shm_output: client.infer("echo", [given], outputs=[out]), seconds
                )
                client.unregister_system_shared_memory()
                for handle in handles:
                    shm.destroy_shared_memory_region(handle)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
