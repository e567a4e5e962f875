"""How a node's rpc port hands an offer of RDMA to its rdma port: one message each way over a Unix socket, which then
stays open as the line of the connection.

They are two processes, because pyverbs and gRPC both hold the interpreter's lock where the other one should not wait.
Both speak for the same node and lie in its private folder. This module never reads an offer. Read
`workers/rdma_port.py` next.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from fabric.errors import DeadlineExceeded, Fate, Unavailable

CLIENT = struct.Struct("<Q")
OFFER_BYTES_MAX = 8192
SOCKET = "rdma.sock"


def offer_socket(node_socket: str) -> str:
    """Where the rdma port of a node listens, beside the node's own socket."""
    return str(Path(node_socket).with_name(SOCKET))


def bring_offer(node_socket: str, client_id: int, offer: bytes, timeout_s: float) -> tuple[bytes, socket.socket]:
    """The rdma port's answer, and the connection, which it holds open as long as the queue pairs that came of it; our
    end of it tells that the caller is gone. Raises Unavailable where it is not up, DeadlineExceeded when it is slow."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        answer = _answer(sock, offer_socket(node_socket), CLIENT.pack(client_id) + offer, timeout_s)
    except BaseException:  # whatever it was, nothing may stay open behind it
        sock.close()
        raise
    return answer, sock


def _answer(sock: socket.socket, path: str, message: bytes, timeout_s: float) -> bytes:
    sock.settimeout(timeout_s)
    try:
        sock.connect(path)
        sock.sendall(message)
        answer = sock.recv(OFFER_BYTES_MAX)
    except TimeoutError:
        raise DeadlineExceeded("the node's rdma port did not answer in time; stay on rpc", Fate.NEVER_RAN) from None
    except OSError as error:
        raise Unavailable(f"the node's rdma port is not up ({error.strerror}); stay on rpc") from None
    if not answer:
        raise Unavailable("the node's rdma port hung up; stay on rpc")
    return answer
