"""RC queue pairs over plain pyverbs, without any of our wire: what the wire's own speed is compared with, in one run.

A ping-pong of 64 bytes by events, and a stream of 1 MiB WRITE_WITH_IMM: from one body, in turn to as many places as may
be out, since what comes next must not overwrite what nobody has read; or all to one place (`overwrite`), which the
processor's caches like better. Run as a module in both guests: `python -m tests.softroce.bare serve` and
`... ADDRESS ping|stream|overwrite COUNT`; the caller prints seconds. Nothing of the product is imported here. Read
`tests/softroce/test_speed.py` next.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
from typing import Any

PORT = 18_600
DEPTH = 16
WINDOW = 8
CASE_BYTES = 32
PING_BYTES, STREAM_BYTES = 64, 1 << 20


class End:
    """One pair with its memory, connected to the other end's over an open TCP connection."""

    def __init__(self, line: socket.socket, nbytes: int, places: int = 1) -> None:
        import pyverbs.enums as e
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.cq import CQ, CompChannel
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        from pyverbs.wr import SGE, RecvWR, SendWR

        self.e, self.nbytes = e, nbytes
        self.context = Context(name="rxe0")
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context)
        self.cq = CQ(self.context, 4 * DEPTH, None, self.channel, 0)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.mr = MR(self.pd, (1 + places) * nbytes, access)
        room = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        asked = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=room, sq_sig_all=0)
        self.qp = QP(self.pd, asked)
        gid, index = _gid(self.context)
        told = json.dumps([gid, self.qp.qp_num, self.mr.buf + nbytes, self.mr.rkey]).encode()
        line.sendall(struct.pack("!I", len(told)) + told)
        (size,) = struct.unpack("!I", line.recv(4, socket.MSG_WAITALL))
        their_gid, their_pair, address, key = json.loads(line.recv(size, socket.MSG_WAITALL))
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, port_num=1)
        attr.dest_qp_num, attr.path_mtu = their_pair, e.IBV_MTU_4096
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 16, 6, 6
        attr.qp_access_flags = access
        route = GlobalRoute(dgid=GID(their_gid), sgid_index=index)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)
        mine, theirs = SGE(self.mr.buf, nbytes, self.mr.lkey), SGE(self.mr.buf + nbytes, nbytes, self.mr.lkey)
        # Made once: making one for each post would measure pyverbs' allocations, and leak them.
        self._receive = RecvWR(wr_id=1, num_sge=1, sg=[theirs])
        signaled = e.IBV_SEND_SIGNALED
        self._send = SendWR(wr_id=2, opcode=e.IBV_WR_SEND, num_sge=1, sg=[mine], send_flags=signaled)
        self._writes = [
            SendWR(wr_id=2, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[mine], send_flags=signaled, imm_data=7)
            for _ in range(places)
        ]
        for place, each in enumerate(self._writes):
            each.set_wr_rdma(key, address + place * nbytes)
        self._posted = 0
        for _ in range(DEPTH):
            self.qp.post_recv(self._receive)
        self.sent = self.got = 0
        self.cq.req_notify()
        line.sendall(b"k")
        line.recv(1, socket.MSG_WAITALL)

    def post(self, *, write: bool) -> None:
        """One message."""
        self.qp.post_send(self._writes[self._posted % len(self._writes)] if write else self._send)
        self._posted += 1

    def pump(self) -> None:
        """Waits for at least one completion by events; counts, and posts receives again."""
        found, completions = self.cq.poll(8)
        while not found:
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
            self.cq.req_notify()
            found, completions = self.cq.poll(8)
        for each in completions:
            assert each.status == 0, f"completion status {each.status}"
            if each.opcode & self.e.IBV_WC_RECV:
                self.got += 1
                self.qp.post_recv(self._receive)
            else:
                self.sent += 1


def _gid(context: Any) -> tuple[str, int]:
    """The RoCE v2 address of the lab's network, and its index now."""
    for index in range(16):
        with contextlib.suppress(Exception):  # pyverbs raises its own for an empty place
            gid = str(context.query_gid(1, index).gid)
            kind = f"/sys/class/infiniband/rxe0/ports/1/gid_attrs/types/{index}"
            with open(kind) as told:  # noqa: PTH123 - as few imports as can be
                if gid.startswith("0000:0000:0000:0000:0000:ffff") and told.read().strip() == "RoCE v2":
                    return gid, index
    raise SystemExit("no RoCE v2 address")


def ping(end: End, count: int, *, first: bool) -> list[float]:
    """Round trips."""
    took = []
    for number in range(1, count + 1):
        began = time.perf_counter()
        if first:
            end.post(write=False)
        while end.got < number:
            end.pump()
        if not first:
            end.post(write=False)
        took.append(time.perf_counter() - began)
    while end.sent < count:
        end.pump()
    return took


def stream(end: End, count: int, *, first: bool) -> float:
    """Seconds for `count` writes, some in flight all the time."""
    began, posted = time.perf_counter(), 0
    while (end.sent if first else end.got) < count:
        while first and posted < count and posted - end.sent < WINDOW:
            end.post(write=True)
            posted += 1
        end.pump()
    return time.perf_counter() - began


def main() -> None:
    """One case; the caller prints what it took, in seconds, as a list."""
    if sys.argv[1] == "serve":
        with socket.create_server(("0.0.0.0", PORT)) as server:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            line, _ = server.accept()
        case, count = line.recv(CASE_BYTES, socket.MSG_WAITALL).decode().split()
    else:
        case, count = sys.argv[2:4]
        line = socket.create_connection((sys.argv[1], PORT), 20)
        line.sendall(f"{case} {count}".encode().ljust(CASE_BYTES))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = End(line, PING_BYTES if case == "ping" else STREAM_BYTES, WINDOW if case == "stream" else 1)
    first = sys.argv[1] != "serve"
    times = ping(end, int(count), first=first) if case == "ping" else [stream(end, int(count), first=first)]
    line.sendall(b"k")
    line.recv(1, socket.MSG_WAITALL)
    sys.stdout.write(json.dumps(times) + "\n")
    sys.stdout.flush()
    os._exit(0)  # pyverbs' objects come apart in any order at the interpreter's end


if __name__ == "__main__":
    main()
