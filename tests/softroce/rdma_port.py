"""The rdma port of the contract suite's node: the real listener in its own process, a local channel per caller.

`python -m tests.softroce.rdma_port SOCKET NODE_ID NODE_EPOCH SPIN_US ACK_TIMEOUT` prints its TCP port and serves until
its input ends. Offers come over that port, each as a length, a client id and the bytes: what carries them in a node,
and how they are authenticated there, is not this suite's affair.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time

from fabric.deadline import Deadline
from fabric.hot_loop import HotLoop
from fabric.local.channel import LocalChannel
from fabric.rdma.config import RdmaConfig
from fabric.rdma.engine import Engine
from fabric.rdma.line import hold_line
from fabric.rdma.listener import RdmaListener
from fabric.transport import PeerFacts

OFFER = struct.Struct("<IQ")
OPEN_S = 30.0
OFFER_BYTES_MAX = 1 << 16
SILENT_S = 600.0
"""Nobody pings here, as a link does, and a body of 64 MiB takes a busy emulated machine longer than a node's 15 s."""


async def serve(path: str, node_id: str, epoch: int, spin_us: int, ack_timeout: int) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    engine = Engine(loop, RdmaConfig(spin_us=spin_us, ack_timeout=ack_timeout, silent_s=SILENT_S))

    def open_channel(client_id: int, arena_bytes: int) -> LocalChannel:
        soon = Deadline.after(OPEN_S, time.monotonic())
        return LocalChannel.open(path, client_id, soon, arena_bytes, (node_id, epoch))

    listener = RdmaListener(engine, open_channel, PeerFacts(node_id, epoch, 1))

    async def offered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, client_id = OFFER.unpack(await reader.readexactly(OFFER.size))
        payload = await reader.readexactly(min(size, OFFER_BYTES_MAX))
        answer, peer = await listener.bootstrap(client_id, payload)
        writer.write(OFFER.pack(len(answer), client_id) + answer)
        await writer.drain()
        if peer is not None:
            await hold_line(peer, reader.read(1))
        writer.close()

    server = await asyncio.start_server(offered, "0.0.0.0", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    await listener.close(1.0)
    engine.close()


def main() -> None:
    """Serves."""
    path, node_id, epoch, spin_us, ack_timeout = sys.argv[1:]
    with asyncio.Runner(loop_factory=HotLoop) as runner:
        runner.run(serve(path, node_id, int(epoch), int(spin_us), int(ack_timeout)))


if __name__ == "__main__":
    main()
