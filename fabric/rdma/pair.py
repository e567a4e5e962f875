"""A reliable queue pair, and the work requests that are posted to it.

Requests of fixed memory are prepared once, which is several times cheaper than making one for each post, and leaks
nothing; those of a body are made, posted and freed, since pyverbs frees nothing by itself. This module never waits and
never decides. Read `fabric/rdma/engine.py` next.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fabric.errors import ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from fabric.rdma.device import Completions
    from fabric.rdma.domain import Domain
    from fabric.rdma.verbs import Verbs


NO_IMM: Final = -1


@dataclass(frozen=True, slots=True)
class Route:
    """How a queue pair reaches its peer. `mtu` is the verbs code (1 is 256 bytes, 5 is 4096)."""

    qp_num: int
    psn: int
    gid: str
    lid: int
    mtu: int
    read_depth: int


@dataclass(frozen=True, slots=True)
class Manners:
    """How a queue pair of ours behaves on the wire, apart from whom it talks to."""

    port: int
    gid_index: int
    psn: int
    ack_timeout: int
    retry_count: int
    traffic_class: int
    service_level: int


@final
@dataclass(init=False, slots=True)
class OneSided:  # mutable: made for each write or read, see fabric/frame_values.py
    """A write of ours to `remote`, telling the peer `imm` if that is not negative, or a read of it."""

    wr_id: int
    address: int
    nbytes: int
    lkey: int
    remote: int
    rkey: int
    imm: int
    signaled: bool

    def __init__(
        self, wr_id: int, address: int, nbytes: int, lkey: int, remote: int, rkey: int, imm: int = NO_IMM,
        signaled: bool = True,
    ) -> None:  # fmt: skip
        self.wr_id = wr_id
        self.address = address
        self.nbytes = nbytes
        self.lkey = lkey
        self.remote = remote
        self.rkey = rkey
        self.imm = imm
        self.signaled = signaled


class Prepared:
    """A work request that is made once and posted many times: its memory stays the same."""

    __slots__ = ("_entry", "flags", "request")

    def __init__(self, verbs: Verbs, address: int, nbytes: int, lkey: int, *, receive: bool, wr_id: int = 0) -> None:
        self._entry: Any = verbs.wr.SGE(address, nbytes, lkey)
        self.request: Any
        self.flags = -1
        """Those that it was posted with last."""
        if receive:
            self.request = verbs.wr.RecvWR(wr_id=wr_id, num_sge=1, sg=[self._entry])
        else:
            self.request = verbs.wr.SendWR(wr_id=wr_id, opcode=verbs.send_op, num_sge=1, sg=[self._entry])

    def close(self) -> None:
        """Frees it, which no release of pyverbs does by itself."""
        self.request.close()
        self._entry.close()


class Pair:  # mutable: its state is the device's
    """A reliable queue pair. `qp_num` stays readable after `close`."""

    def __init__(
        self, domain: Domain, completions: Completions, sends: int, receives: int, inline: int, sges: int = 1
    ) -> None:
        verbs = self._verbs = domain.verbs
        self._device = domain.device
        self._signaled: int = verbs.signaled
        self._inlined: int = verbs.inline
        self.inline = 0
        self._qp: Any = None
        for wanted in (inline, 0):
            cap = verbs.qp.QPCap(
                max_send_wr=sends, max_recv_wr=receives, max_send_sge=sges, max_recv_sge=1, max_inline_data=wanted
            )
            init = verbs.qp.QPInitAttr(
                qp_type=verbs.number("IBV_QPT_RC"), scq=completions.cq, rcq=completions.cq, cap=cap, sq_sig_all=0
            )
            try:
                self._qp = verbs.qp.QP(domain.pd, init)
            except verbs.error as error:
                if wanted:
                    continue
                raise ResourceExhausted(
                    f"{self._device.name} gave no queue pair ({error}); serve fewer peers"
                ) from None
            self.inline = wanted
            break
        self.qp_num = int(self._qp.qp_num)
        self.closed = False

    def to_init(self, manners: Manners) -> None:
        """Ready for receives to be posted. Raises Unavailable."""
        attributes = self._attributes(manners)
        attributes.qp_state = self._verbs.init
        try:
            self._qp.to_init(attributes)
        except self._verbs.error as error:
            raise self._refusal("to initialise a queue pair", error) from None

    def to_rts(self, manners: Manners, route: Route) -> None:
        """Connected. The peer's address must be resolved before, else this waits for that with the interpreter's lock.
        Raises Unavailable."""
        verbs, addr = self._verbs, self._verbs.addr
        attributes = self._attributes(manners)
        attributes.path_mtu, attributes.dest_qp_num = route.mtu, route.qp_num
        attributes.rq_psn, attributes.sq_psn = route.psn, manners.psn
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = route.read_depth
        # 0.64 ms: our credits leave no room for "receiver not ready", so one that comes must surface, and soon.
        attributes.min_rnr_timer, attributes.rnr_retry = 12, 3
        attributes.timeout, attributes.retry_cnt = manners.ack_timeout, manners.retry_count
        path = addr.GlobalRoute(dgid=addr.GID(route.gid), sgid_index=manners.gid_index, hop_limit=64)
        path.traffic_class = manners.traffic_class
        handle = addr.AHAttr(gr=path, is_global=1, port_num=manners.port, dlid=route.lid, sl=manners.service_level)
        attributes.ah_attr = handle
        try:
            attributes.qp_state = verbs.rtr
            self._qp.to_rtr(attributes)
            attributes.qp_state = verbs.rts
            self._qp.to_rts(attributes)
        except verbs.error as error:
            raise self._refusal("to connect a queue pair", error) from None

    def to_error(self) -> None:
        """Nothing is sent or taken any more: all that is posted comes back flushed. Harmless twice."""
        if self.closed:
            return
        with suppress(self._verbs.error):
            self._qp.modify(self._verbs.qp.QPAttr(qp_state=self._verbs.err), self._verbs.number("IBV_QP_STATE"))

    def state(self) -> int:
        """The state that the device says (ibv_qp_state); pyverbs' own copy is stale."""
        return int(self._qp.query(self._verbs.number("IBV_QP_STATE"))[0].qp_state)

    def retries(self) -> tuple[int, int]:
        """retry_cnt and rnr_retry as the device has them."""
        asked = self._verbs.number("IBV_QP_RETRY_CNT") | self._verbs.number("IBV_QP_RNR_RETRY")
        attributes = self._qp.query(asked)[0]
        return int(attributes.retry_cnt), int(attributes.rnr_retry)

    def post_receive(self, prepared: Prepared) -> None:
        """Posts a prepared receive. Raises Unavailable."""
        try:
            self._qp.post_recv(prepared.request)
        except self._verbs.error as error:
            raise self._refusal("to post a receive", error) from None

    def post_send(self, prepared: Prepared, wr_id: int, nbytes: int, *, signaled: bool) -> None:
        """Posts a prepared send of `nbytes`. Raises Unavailable."""
        request = prepared.request
        request.wr_id = wr_id
        flags = self._flags(nbytes <= self.inline, signaled)
        if flags != prepared.flags:
            request.send_flags = prepared.flags = flags
        try:
            self._qp.post_send(request)
        except self._verbs.error as error:
            raise self._refusal("to post a send", error) from None

    def post_writes(self, writes: list[OneSided]) -> None:
        """Writes to the peer's memory, in this order and by one call of the device. Raises Unavailable."""
        verbs = self._verbs
        self._post_one_sided(writes, verbs.write_op, verbs.write_imm_op)

    def post_read(self, read: OneSided) -> None:
        """Reads the peer's memory into ours. Raises Unavailable."""
        self._post_one_sided([read], self._verbs.read_op, self._verbs.read_op)

    def _post_one_sided(self, wanted: list[OneSided], plain_op: int, telling_op: int) -> None:
        """pyverbs keeps no reference to the next request of a chain, so all are held here until they are posted."""
        verbs = self._verbs
        held: list[Any] = []
        request: Any = None
        inline = self.inline if plain_op == verbs.write_op else -1
        make_entry, make_request = verbs.wr.SGE, verbs.wr.SendWR
        try:
            for each in reversed(wanted):
                entry = make_entry(each.address, each.nbytes, each.lkey)
                held.append(entry)
                request = make_request(
                    wr_id=each.wr_id, opcode=plain_op if each.imm < 0 else telling_op, num_sge=1, sg=[entry],
                    send_flags=self._flags(each.nbytes <= inline, each.signaled),
                    imm_data=socket.htonl(max(each.imm, 0)), next_wr=request,
                )  # fmt: skip
                held.append(request)
                request.set_wr_rdma(each.rkey, each.remote)
            self._qp.post_send(request)
        except verbs.error as error:
            raise self._refusal("to post a write or read", error) from None
        finally:  # the device copied them, and nobody else frees them
            for one in held:
                one.close()

    def _flags(self, inline: bool, signaled: bool) -> int:
        return (self._signaled if signaled else 0) | (self._inlined if inline else 0)

    def close(self) -> None:
        """Destroys the pair: what the peer still sends finds nobody."""
        if not self.closed:
            self.closed = True
            with suppress(self._verbs.error):
                self._qp.close()

    def _attributes(self, manners: Manners) -> Any:
        verbs = self._verbs
        attributes = verbs.qp.QPAttr(port_num=manners.port)
        attributes.pkey_index = 0
        attributes.qp_access_flags = (
            verbs.number("IBV_ACCESS_LOCAL_WRITE")
            | verbs.number("IBV_ACCESS_REMOTE_WRITE")
            | verbs.number("IBV_ACCESS_REMOTE_READ")
        )
        return attributes

    def _refusal(self, what: str, error: Exception) -> Unavailable:
        return Unavailable(f"{self._device.name} refused {what} ({error}); the connection is opened again")
