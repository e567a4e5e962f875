"""Records what Triton says in the conversation of `tests/integration/triton_script.py`, into `triton_transcript.json`.

    PYTHON -m tests.integration.record_triton

PYTHON is an interpreter that has nvidia-pytriton and tritonclient, as for `tests/benchmarks/triton_peer.py`. Nothing of
Overspill is imported. The file is recorded once for each release of Triton that is followed, and read by a test.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tritonclient.grpc import service_pb2 as pb

from tests.benchmarks.triton_peer import start
from tests.integration.triton_requests import LOADED, write_models
from tests.integration.triton_script import Talk, hold
from tests.ports import free_port

TRANSCRIPT = Path(__file__).with_name("triton_transcript.json")
READY_S = 60.0
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "a" in given:
            a, b = given["a"], given["b"]
            if a[0] < 0:
                return pb_utils.InferenceResponse([], pb_utils.TritonError("negative"))
            told = {"sum": a + b, "difference": a - b}
        else:
            x = given["x"]
            told = {"y": x * 2 if x.dtype == np.float32 else x}
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, v) for n, v in told.items() if n in wanted])
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        write_models(folder / "models", MODEL)
        words = ("--model-control-mode=explicit", *(f"--load-model={model}" for model in LOADED))
        server = start(folder, port, *words)
        try:
            address, give_up_s = f"127.0.0.1:{port}", time.monotonic() + READY_S
            talk = Talk(address)
            while talk.call("ServerReady", pb.ServerReadyRequest())[0] != "OK":
                if server.poll() is not None or time.monotonic() > give_up_s:
                    sys.exit("tritonserver did not get ready")
                time.sleep(0.1)
            _, facts = talk.call("ServerMetadata", pb.ServerMetadataRequest())
            talk.close()
            said = {"server": f"{facts.name} {facts.version}", "said": hold(address)}
        finally:
            server.terminate()
            server.wait(30)
    TRANSCRIPT.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
