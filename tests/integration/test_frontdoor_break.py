"""Clients that mean harm, and a node that hangs: each has its code, nobody else waits, and health tells the truth."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from aiohttp import web
from tritonclient.utils import InferenceServerException

from frontdoor.http_server import HttpServer
from tests.integration.frontdoors import (
    ECHO,
    REGION,
    Front,
    code,
    config,
    given,
    grpc_client,
    region,
    running_front,
)
from tests.integration.nodes import wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_long_name_does_not_hide_the_code(front: Front) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="echo_FP32")
    request.inputs.add(name="x" * 100_000, datatype="FP32", shape=[1])
    request.parameters["priority"].string_param = "你" * 100_000
    with grpc.insecure_channel(front.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=20)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, raised.value.details()


def test_a_question_as_long_as_a_tensor_is_refused(front: Front) -> None:
    """To look for names like one of megabytes took everybody's time and gigabytes."""
    name = "x" * (2 << 20)
    with grpc_client(front.grpc) as client:
        for ask in (client.is_model_ready, client.get_model_config, client.get_system_shared_memory_status):
            assert code(lambda ask=ask: ask(name)) == "RESOURCE_EXHAUSTED"
    url = f"http://127.0.0.1:{front.ports[1]}/v2/trace/setting"
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(url, json.dumps({name: "1"}).encode(), timeout=20)
    raised.value.close()
    assert raised.value.code == 429


def test_an_answer_that_cannot_be_handed_over_says_that_the_model_ran(front: Front) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="echo_FP32", raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[4])
    output = request.outputs.add(name="y")
    output.parameters["shared_memory_region"].string_param = "small"
    output.parameters["shared_memory_byte_size"].int64_param = 8
    with (
        grpc_client(front.grpc) as client,
        region(client, "small", 8),
        grpc.insecure_channel(front.grpc) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=20)
    assert dict(raised.value.trailing_metadata())["overspill-fate"] == "ran", raised.value.details()


def test_a_client_with_more_requests_than_a_connection_has_streams_loses_none(front: Front) -> None:
    """gRPC's own protection against crowds resets some of them, although the client keeps to the limit."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="echo_FP32", raw_input_contents=[bytes(8)])
    request.inputs.add(name="x", datatype="FP32", shape=[2])
    raw = request.SerializeToString()
    with grpc.insecure_channel(front.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [infer.future(raw, timeout=60) for _ in range(1200)]
        assert [call.code() for call in calls] == [grpc.StatusCode.OK] * 1200


def test_a_crowd_that_comes_at_once_is_answered_or_told_to_come_again(front: Front) -> None:
    """Of over 1000 calls that wait to be taken, gRPC itself cancels some: a code that tells a client nothing."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="echo_FP32", raw_input_contents=[bytes(4000)])
    request.inputs.add(name="x", datatype="FP32", shape=[1000])
    raw = request.SerializeToString()
    with ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(front.grpc, own)) for _ in range(8)]
        calls = [
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(raw, timeout=60)
            for _ in range(400)
            for channel in channels
        ]
        codes = Counter(call.code().name for call in calls)
    assert set(codes) <= {"OK", "UNAVAILABLE"}, codes
    assert codes["OK"] >= 1000


USER = """
import encodings.idna, json, os, socket, struct, sys, time
what, port, own, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.setgid(uid); os.setuid(uid)
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("127.0.0.1", own))
sock.connect(("127.0.0.1", port))
sock.settimeout(20)
body = json.dumps({"key": "/osp_test_secret", "byte_size": 64}).encode()
path = "region/secret/register" if what == "register" else "status"
method = "POST" if what == "register" else "GET"
head = f"{method} /v2/systemsharedmemory/{path} HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
sock.sendall(head.encode() + body)
answer = sock.recv(65536).decode()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT: the port is free at once
own = sock.getsockname()[1]
sock.close()
print(own, answer[9:12], "secret" in answer, flush=True)
if what == "register":
    sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be two other users")
def test_whoever_gets_a_clients_port_is_not_taken_for_it(front: Front) -> None:
    secret = Path("/dev/shm/osp_test_secret")
    command = [sys.executable, "-c", USER]
    try:
        secret.write_bytes(bytes(64))
        secret.chmod(0o600)
        os.chown(secret, 1001, 1001)
        words = ["register", str(front.ports[1]), "0", "1001"]
        with subprocess.Popen([*command, *words], stdin=-1, stdout=-1, text=True, cwd="/") as owner:
            assert owner.stdout is not None
            own, number, _ = owner.stdout.readline().split()
            assert number == "200"
            words = ["status", str(front.ports[1]), own, "1002"]
            thief = subprocess.run([*command, *words], capture_output=True, text=True, cwd="/", timeout=60, check=False)
            assert thief.stdout.split() == [own, "200", "False"], thief.stderr
            owner.communicate("")
    finally:
        secret.unlink(missing_ok=True)


def crowded(most: int) -> list[bytes]:
    """What clients read who come when `most` connections stand already."""

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def main() -> list[bytes]:
        app = web.Application()
        app.router.add_get("/", hello)
        server = HttpServer(app, most)
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        await server.start(sock, None)
        found = []
        opened = []
        for _ in range(most + 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(writer)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            found.append(await asyncio.wait_for(reader.read(12), 20))
        for writer in opened:
            writer.close()
        await server.stop()
        return found

    return asyncio.run(main())


def test_connections_are_bounded_and_whoever_is_too_many_is_told() -> None:
    assert crowded(3) == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 503"] * 2


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A node of its own, to be stopped and starved."""
    folder = tmp_path_factory.mktemp("fragile")
    write_model(folder / "models", "one", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with running_front(folder, folder / "models") as front:
        yield front


def test_a_node_that_hangs_is_not_ready_and_is_ready_when_it_goes_on(fragile: Front) -> None:
    with grpc_client(fragile.grpc) as client:
        wait_until(client.is_server_ready)
        os.kill(fragile.node.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            wait_until(lambda: not client.is_server_ready() and not client.is_model_ready("one"))
            took_s = time.monotonic() - began
            with pytest.raises(InferenceServerException) as raised:
                client.infer("one", [given("x", np.ones(2, np.float32))], client_timeout=0.2)
            assert "DEADLINE_EXCEEDED" in str(raised.value.status())
        finally:
            os.kill(fragile.node.process.pid, signal.SIGCONT)
        wait_until(lambda: client.is_server_ready() and client.is_model_ready("one"))
        assert took_s < 5.0  # about 0.9 s where nothing else runs


@pytest.mark.long
def test_without_descriptors_living_clients_keep_their_regions(fragile: Front) -> None:
    with grpc_client(fragile.grpc) as client, region(client, "starved", REGION):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(
            fragile.pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{fragile.pid}/fd").iterdir())), hard)
        )
        try:
            time.sleep(6.0)  # twice the lease
        finally:
            resource.prlimit(fragile.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert list(client.get_system_shared_memory_status().regions) == ["starved"]
        wait_until(client.is_server_ready)


@pytest.mark.long
def test_a_stream_that_is_not_read_holds_a_bounded_memory(fragile: Front) -> None:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="one", raw_input_contents=[bytes(16 << 20)])
    request.inputs.add(name="x", datatype="FP32", shape=[4 << 20])
    raw, read = request.SerializeToString(), []

    def sent() -> Iterator[bytes]:
        for number in range(16):
            read.append(number)
            yield raw

    options = [("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(fragile.grpc, options) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(sent(), timeout=60)
        time.sleep(4.0)
        assert len(read) < 10  # two or three that run ahead, and what lies in buffers on the way; without a bound all
        assert sum(1 for _ in call) == 16
