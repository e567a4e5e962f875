"""Frames that break the protocol: each is answered with a typed error, and harms nobody beside its sender.

The table is in `tests/integration/bad_frames.py`.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.errors import AccessDenied, OverspillError, ProtocolError, VersionMismatch
from fabric.frame import Kind, bare_frame, check_header, decode_error, encode_request
from fabric.local.sockets import seqpacket
from fabric.rpc_fallback.wire import Method
from fabric.transport import WireName
from tests.integration.bad_frames import FRAME_ROWS, PEERS, VALUES, FrameRow
from tests.integration.bad_node import NodeProcess, copy_models
from tests.integration.bad_ways import ChannelWay, check_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.leaks("bystanders are shared by all rows and open sockets as they need them")
X = np.frombuffer(VALUES, np.float32)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("frames")
    models = copy_models(folder / "models", "double", "text")
    with NodeProcess(folder, f"dir:{folder / 'registry'}", models) as started:
        started.wait_ready()
        yield started


@pytest.fixture(scope="module")
def bystanders(node: NodeProcess) -> Iterator[tuple[ChannelWay, ...]]:
    ways = tuple(ChannelWay(node.registry, wire) for wire in (WireName.LOCAL, WireName.RPC))
    yield ways
    for way in ways:
        way.close()


@pytest.fixture(autouse=True)
def nobody_else_is_harmed(node: NodeProcess, bystanders: tuple[ChannelWay, ...]) -> Iterator[None]:
    executors = node.executors()
    yield
    for way in bystanders:
        assert np.array_equal(way.infer("double", {"x": X})["y"], 2 * X)
    assert node.executors() == executors


_PAIRS = [(wire, row) for row in FRAME_ROWS for wire in row.wires]


@pytest.mark.parametrize(("wire", "row"), _PAIRS, ids=[f"{row.name}-{wire}".replace(" ", "_") for wire, row in _PAIRS])
def test_each_bad_frame_is_told_to_its_sender(node: NodeProcess, wire: str, row: FrameRow) -> None:
    peer = PEERS[wire](node.registry)
    error = peer.ask(row.make(peer), row.body)
    peer.close()
    assert type(error) is row.error, repr(error)
    check_sentence(error, *row.words)
    after = PEERS[wire](node.registry)
    assert after.ask(encode_request(after.request())) is None
    after.close()


@pytest.mark.parametrize("wire", PEERS)
def test_a_good_frame_is_answered(node: NodeProcess, wire: str) -> None:
    peer = PEERS[wire](node.registry)
    for _ in range(3):
        assert peer.ask(encode_request(peer.request())) is None
    peer.close()


_HELLO = {"client_id": "0000000000000abc", "versions": [1, 1], "arena_bytes": 0, "session": ""}
HELLOS: dict[str, tuple[bytes, type[OverspillError], tuple[str, ...]]] = {
    "no JSON": (b"{", ProtocolError, ("HELLO holds no JSON", "check what connects")),
    "no object": (b"[1]", ProtocolError, ("no JSON object",)),
    "deep": (b"[" * 20_000, ProtocolError, ("HELLO holds no JSON",)),
    "client": (json.dumps({**_HELLO, "client_id": "me"}).encode(), ProtocolError, ("64 bits in hexadecimal",)),
    "versions": (json.dumps({**_HELLO, "versions": 1}).encode(), ProtocolError, ("two whole numbers",)),
    "new version": (json.dumps({**_HELLO, "versions": [9, 12]}).encode(), VersionMismatch, ("9 to 12", "update")),
    "arena": (json.dumps({**_HELLO, "arena_bytes": -1}).encode(), ProtocolError, ("arena_bytes", "whole number")),
    "session": (json.dumps({**_HELLO, "session": "stolen"}).encode(), AccessDenied, ("open a new one",)),
}


def _greet_local(node: NodeProcess, frame: bytes) -> OverspillError:
    (instance,) = open_registry(node.registry).read()
    with seqpacket() as sock:
        sock.settimeout(5.0)
        sock.connect(instance.local)
        sock.send(frame)
        answer = sock.recv(1 << 17)
        assert sock.recv(1 << 17) == b"", "a stranger that cannot greet is shown the door"
    return decode_error(answer, check_header(answer)).error


@pytest.mark.parametrize("name", HELLOS)
def test_a_bad_hello_over_the_local_wire(node: NodeProcess, name: str) -> None:
    payload, error_class, words = HELLOS[name]
    error = _greet_local(node, bare_frame(Kind.HELLO, payload=payload))
    assert type(error) is error_class, repr(error)
    check_sentence(error, *words)


@pytest.mark.parametrize("name", [name for name in HELLOS if name != "session"])
def test_a_bad_hello_over_the_rpc_wire(node: NodeProcess, name: str) -> None:
    payload, error_class, words = HELLOS[name]
    (instance,) = open_registry(node.registry).read()
    with grpc.insecure_channel(instance.rpc) as channel:
        answer = channel.unary_unary(Method.HELLO)(bare_frame(Kind.HELLO, payload=payload), timeout=5.0)
    error = decode_error(answer, check_header(answer)).error
    assert type(error) is error_class, repr(error)
    check_sentence(error, *words)


def test_a_request_before_the_hello(node: NodeProcess) -> None:
    error = _greet_local(node, bare_frame(Kind.REQUEST))
    assert type(error) is ProtocolError
    check_sentence(error, "REQUEST where HELLO was due")


def test_noise_on_the_tcp_ports(node: NodeProcess) -> None:
    (instance,) = open_registry(node.registry).read()
    host, _, port = instance.rpc.rpartition(":")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64):
        with socket.create_connection((host, int(port)), timeout=5.0) as sock:
            sock.sendall(noise)


def test_a_session_that_nobody_opened_over_rpc(node: NodeProcess) -> None:
    (instance,) = open_registry(node.registry).read()
    with grpc.insecure_channel(instance.rpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(Method.CALL)(b"\0" * 16 + bare_frame(Kind.PING), timeout=5.0)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_node_logged_no_traceback(node: NodeProcess) -> None:
    assert "Traceback" not in node.log, node.log[-3000:]
