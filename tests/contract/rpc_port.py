"""The rpc port of the contract suite's node, as a node starts it: its own process, a local channel per caller.

`python -m tests.contract.rpc_port SOCKET NODE_ID NODE_EPOCH PORT` serves until its input ends; it prints its port.
"""

from __future__ import annotations

import sys
import time

from fabric.deadline import Deadline
from fabric.local.channel import LocalChannel
from fabric.rpc_fallback.config import RpcServerConfig
from fabric.rpc_fallback.server import RpcServer
from fabric.transport import PeerFacts

OPEN_S = 5.0


def main() -> None:
    """Serves."""
    path, node_id, epoch, port, *host = sys.argv[1:]
    facts = PeerFacts(node_id, int(epoch), 1)

    def open_channel(client_id: int, arena_bytes: int) -> LocalChannel:
        soon = Deadline.after(OPEN_S, time.monotonic())
        return LocalChannel.open(path, client_id, soon, arena_bytes, (node_id, int(epoch)))

    server = RpcServer(
        RpcServerConfig(host=host[0] if host else "127.0.0.1", port=int(port), threads_max=64), open_channel, facts
    )
    sys.stdout.write(f"{server.start()}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(1.0)


if __name__ == "__main__":
    main()
