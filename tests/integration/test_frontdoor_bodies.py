"""Bodies over HTTP that are too large, too slow, or not what they say: each has its number, and holds no memory."""

from __future__ import annotations

import json
import resource
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.integration.frontdoors import ECHO, Front, config, running_front
from tests.integration.nodes import write_model

GOOD = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
POST = b"POST /v2/models/echo_FP32/infer HTTP/1.1\r\nHost: a\r\n"


def connect(front: Front) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.ports[1]), 20)


def exchange(front: Front, head: bytes, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """The answer to one request, sent as it is on a connection of its own."""
    with connect(front) as sock:
        sock.sendall(POST + head + b"\r\n" + body)
        got = b""
        while b"\r\n\r\n" not in got or not got.rstrip().endswith(b"}"):
            piece = sock.recv(65536)
            if not piece:
                break
            got += piece
    number = int(got.split(b" ", 2)[1])
    return number, json.loads(got.partition(b"\r\n\r\n")[2])


def length(nbytes: int) -> bytes:
    return b"Content-Length: %d\r\n" % nbytes


def bomb(nbytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(nbytes >> 20)) + packer.flush()


def test_a_body_that_is_announced_too_large_is_refused_unread(front: Front) -> None:
    number, answer = exchange(front, length(1 << 30))
    assert (number, "split it" in answer["error"]) == (413, True)


def test_a_bomb_is_refused_when_it_has_grown_over_the_limit(front: Front) -> None:
    raw = bomb(256 << 20)
    number, answer = exchange(front, length(len(raw)) + b"Content-Encoding: gzip\r\n", raw)
    assert (number, "split it" in answer["error"]) == (413, True)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"garbage"),
        ("deflate", b"garbage"),
        ("br", b"garbage"),
        ("gzip", zlib.compress(GOOD)),
        ("gzip, br", GOOD),
    ],
)
def test_a_body_that_is_not_packed_as_told_is_the_clients_mistake(front: Front, encoding: str, body: bytes) -> None:
    number, answer = exchange(front, length(len(body)) + b"Content-Encoding: %s\r\n" % encoding.encode(), body)
    assert number == 400, answer


@pytest.mark.parametrize("packed", [zlib.compress(GOOD), zlib.compress(GOOD, wbits=-15)])
def test_both_kinds_of_deflate_are_read(front: Front, packed: bytes) -> None:
    assert exchange(front, length(len(packed)) + b"Content-Encoding: deflate\r\n", packed)[0] == 200
    two = zlib.compress(GOOD[:9], wbits=31) + zlib.compress(GOOD[9:], wbits=31)
    assert exchange(front, length(len(two)) + b"Content-Encoding: gzip\r\n", two)[0] == 200, "gzip of two members"


@pytest.mark.long
def test_a_body_that_crawls_is_given_up(front: Front) -> None:
    with connect(front) as sock:
        sock.sendall(POST + length(1000) + b"\r\n")
        began = time.monotonic()
        sock.settimeout(1.0)
        got = b""
        while not got:
            sock.sendall(b"{")
            try:
                got = sock.recv(65536)
            except TimeoutError:
                assert time.monotonic() - began < 40.0
        assert got.startswith(b"HTTP/1.1 504"), got


@pytest.mark.long
def test_half_sent_bodies_hold_a_bounded_memory(tmp_path: Path) -> None:
    """Sixty clients announce 60 MiB each, send most of it and wait: most are not read, and small requests go on."""
    models = tmp_path / "models"
    write_model(models, "echo_FP32", ECHO, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    with running_front(tmp_path, models) as front:
        held = []
        try:
            for _ in range(60):
                sock = connect(front)
                held.append(sock)
                sock.sendall(POST + length(60 << 20) + b"\r\n")
                sock.settimeout(0.5)
                try:
                    for _ in range(50):
                        sock.sendall(bytes(1 << 20))
                except TimeoutError:
                    pass
            resident = int(Path(f"/proc/{front.pid}/statm").read_text().split()[1]) * resource.getpagesize()
            assert resident < 2 << 30  # 1 GiB of bodies; without the bound 3 GiB
            assert exchange(front, length(len(GOOD)), GOOD)[0] == 200
        finally:
            for sock in held:
                sock.close()
