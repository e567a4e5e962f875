"""How a node's rpc port hands an offer of RDMA to its rdma port: one message each way over a Unix socket.

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


def bring_offer(node_socket: str, client_id: int, offer: bytes, timeout_s: float) -> bytes:
    """The rdma port's answer. Raises Unavailable where it is not up, DeadlineExceeded when it is too slow."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(offer_socket(node_socket))
            sock.sendall(CLIENT.pack(client_id) + offer)
            answer = sock.recv(OFFER_BYTES_MAX)
        except TimeoutError:
            raise DeadlineExceeded("the node's rdma port did not answer in time; stay on rpc", Fate.NEVER_RAN) from None
        except OSError as error:
            raise Unavailable(f"the node's rdma port is not up ({error.strerror}); stay on rpc") from None
    if not answer:
        raise Unavailable("the node's rdma port hung up; stay on rpc")
    return answer
