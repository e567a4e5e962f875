"""The child process that runs models for its node, one request at a time, in the order that they come.

It maps the tenants' arenas and holds duplicates of their sockets, so that a reply is written where the caller reads it
and announced without the node in between. It ends with its node, whatever way that goes, and when its device's context
is broken: then it answers nothing more. It decides nothing about queues, ids or restarts: the node does.
`workers/child.py` starts it; read `workers/station.py` next for its device.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Final

from fabric.errors import (
    DeadlineExceeded,
    DuplicateRequest,
    Fate,
    InvalidArgument,
    MissingDependency,
    ModelFailed,
    OverspillError,
    ProtocolError,
    ReplyTooLarge,
    ResourceExhausted,
    UnknownModel,
)
from fabric.frame import NO_SLOT, ErrorFrame, ReplyFrame, RequestFrame, encode_error, encode_reply, read_request
from fabric.local.sockets import receive_with_descriptors, send_now
from fabric.memory.arena import Arena
from workers.child import Settings
from workers.faults import Tracebacks
from workers.handover import (
    CONTROL_MAGIC,
    DELIVERED,
    KEPT,
    LEADS,
    MAGIC_BYTES,
    NOTHING_SPENT,
    RAN,
    RESEND,
    TASK_BYTES,
    TASK_MAGIC,
    Control,
    SharedPage,
    Spent,
    Task,
    decode_control,
    encode_control,
    pack_done,
    unpack_task,
)
from workers.held import HeldResidents
from workers.keep import KeptReply, ReplyKeep
from workers.lifeline import end_with
from workers.shelf import Shelf
from workers.station import BrokenDevice, Station

HEARTBEAT_S: Final = 0.1
SMALL_REPLY_BYTES: Final = 64 * 1024
"""Replies below this are kept in our own memory (2 us at most); a caller of larger ones keeps the slot as it is until
the request is acknowledged."""
LAPSE_NS: Final = 5_000_000_000


class Executor:  # mutable: maps arenas, holds sockets and models
    """The loop of the process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._node = socket.socket(fileno=settings.node_fd)
        self._page = SharedPage(settings.page_fd)
        self._arenas: dict[int, Arena] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._keep = ReplyKeep()
        self._held = HeldResidents()
        self._tracebacks = Tracebacks(sys.stderr)
        self._shelf = Shelf(settings.threads, self._tell_of_models, self._tracebacks)
        self._lapse_at_ns = 0
        self._station = Station(settings)

    def serve(self) -> None:
        """Runs until the node says exit or is gone."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        while True:
            message, descriptors = receive_with_descriptors(self._node)
            magic = message[:MAGIC_BYTES]
            if magic == TASK_MAGIC:
                self._task(message)
            elif magic == CONTROL_MAGIC:
                if not self._control(decode_control(message), descriptors):
                    return
            else:
                return  # the end of the stream: the node is gone, and so are we

    def _beat(self) -> None:
        while True:
            self._page.beat()
            time.sleep(HEARTBEAT_S)

    def _control(self, control: Control, descriptors: tuple[int, ...]) -> bool:
        if control.word == "arena":
            arena = Arena.attach(descriptors[0])
            arena.close_fd()
            self._arenas[control.number] = arena
            self._station.adopt(control.number, arena)
        elif control.word == "socket":
            self._sockets[control.number] = socket.socket(fileno=descriptors[0])
        elif control.word == "hang_up":
            self._sockets.pop(control.number).close()
        elif control.word == "forget":
            self._keep.leave(control.number)
            self._station.forget(control.number)
            del self._arenas[control.number]
        elif control.word in {"resident", "fill"}:
            digest, whole = bytes.fromhex(control.digest), control.word == "resident"
            self._held.give(control.number, digest, control.nbytes, descriptors[0], whole=whole)
        elif control.word == "let_go":
            self._held.forget(control.number)
        elif control.word == "check":
            self._station.end()
        elif control.word == "prepare":
            self._station.prepare(control.models)
            self._tell(Control("prepared"))
        else:
            self._shelf.take(control, descriptors)
        return control.word != "exit"

    def _tell_of_models(self, control: Control) -> None:
        if control.word == "ready":
            self._station.end()  # what was loaded may have broken the context
            self._tell(Control("libraries", models=self._station.libraries()))
        self._tell(control)

    def _tell(self, control: Control) -> None:
        self._node.send(encode_control(control))

    def _task(self, message: bytes) -> None:
        task = unpack_task(message)
        request = read_request(message[TASK_BYTES:])
        began_ns = time.monotonic_ns()
        self._page.began(task.task_no, began_ns)
        kept, flags, spent = None, 0, NOTHING_SPENT
        failure: OverspillError | None = None
        try:
            if task.flags & RESEND:
                final, flags = self._again(task, request)
            else:
                kept, in_slot, spent = self._run(task, request, began_ns)
                if in_slot:
                    final = self._reply(task, request, kept, spent.queue_us)
                else:
                    final = self._too_large(task, request, len(kept.memory))
                flags = RAN | KEPT | LEADS
        except OverspillError as error:
            kept, failure = None, error
            if isinstance(error, ResourceExhausted):
                self._station.make_room()
            final = self._error(task, request, error)
            flags = RAN if error.fate is Fate.RAN else 0
        if self._deliver(task, final):
            self._page.answered(task.task_no)
            flags |= DELIVERED
        # What the caller need not wait for comes after its answer.
        self._keep.acknowledge(request.client_id, request.ack_no)
        if kept is not None:
            self._keep.put(request.client_id, request.request_no, kept)
        self._node.send(pack_done(flags, task.task_no, spent) + final)
        self._page.ended()
        if failure is not None:
            self._tell_author(request, failure)
            failure = None  # its traceback holds this frame: without this line, a circle
        if began_ns > self._lapse_at_ns:
            self._lapse_at_ns = began_ns + LAPSE_NS
            self._keep.lapse(began_ns / 1e9)

    def _tell_author(self, request: RequestFrame, failure: OverspillError) -> None:
        """What the caller got one sentence of, the model's author finds in the node's log with its traceback."""
        cause = failure if isinstance(failure, ModelFailed) and failure.__cause__ is None else failure.__cause__
        if cause is not None:
            doing = f"in request {request.client_id:x}/{request.request_no}"
            self._tracebacks.write(request.model, doing, cause, time.monotonic())

    def _deliver(self, task: Task, final: bytes) -> bool:
        socket_ = self._sockets.get(task.socket_no)
        if socket_ is None:
            return False
        try:
            return send_now(socket_, final)
        except OSError:
            return False  # the tenant is gone; the node learns it from its own end

    def _run(self, task: Task, request: RequestFrame, began_ns: int) -> tuple[KeptReply, bool, Spent]:
        """Runs a task; gives its reply, whether that fitted the slot given for it, and what it took."""
        if began_ns >= task.deadline_ns:
            raise DeadlineExceeded("the time was over before the request could begin; give it more", Fate.NEVER_RAN)
        model = self._shelf.models.get(request.model)
        if model is None:
            raise UnknownModel(f"this executor has no model {request.model!r}; send the request to another node")
        try:
            plan = model.plan(request.descriptors, request.body_bytes)
        except ProtocolError as error:
            error.fate = Fate.NEVER_RAN
            raise
        arena = self._arenas[task.tenant_no]
        slot = _slot(arena, request)
        inputs, body_at = arena.view.toreadonly(), request.body_offset
        self._station.begin(task.tenant_no, request)
        if plan.carried:
            for number in self._held.fill_all(plan.carried, inputs, body_at):
                self._tell(Control("filled", number))
        try:
            run = model.run(plan, inputs, body_at, slot, self._held)
        finally:
            self._station.end()  # good or bad: an answer of a broken context must not leave this process
        memory: bytes | memoryview = slot[: run.layout.body_bytes]
        tenant_no = task.tenant_no
        if run.aside is not None:
            memory, tenant_no = run.aside, 0
        elif len(memory) < SMALL_REPLY_BYTES:
            # Its slot may serve the next call as soon as this one is answered, while the same id is asked again.
            memory, tenant_no = bytes(memory), 0
        kept = KeptReply(tenant_no, memory, run.layout.encoded, run.compute_us, began_ns / 1e9)
        queue_us = max(0, began_ns - task.arrived_ns) // 1000
        spent = Spent(run.compute_us, queue_us, run.input_us, run.output_us, plan.rows, plan.rows)
        return kept, run.aside is None, spent

    def _again(self, task: Task, request: RequestFrame) -> tuple[bytes, int]:
        """Sends a kept reply once more, into the slot that is asked for now."""
        kept = self._keep.find(request.client_id, request.request_no)
        if kept is None:
            raise DuplicateRequest(
                f"request {request.request_no} ran and its reply is no longer kept; it did not run again"
            )
        slot = _slot(self._arenas[task.tenant_no], request)
        if len(kept.memory) > len(slot):
            return self._too_large(task, request, len(kept.memory)), KEPT
        slot[: len(kept.memory)] = kept.memory
        return self._reply(task, request, kept, 0), KEPT

    def _reply(self, task: Task, request: RequestFrame, kept: KeptReply, queue_us: int) -> bytes:
        frame = ReplyFrame(
            request.client_id,
            request.request_no,
            self._settings.node_epoch,
            len(kept.memory),
            request.reply_offset,
            self._settings.generation,
            queue_us,
            kept.compute_us,
            task.load,
            kept.descriptors,
        )
        try:
            return encode_reply(frame)
        except InvalidArgument as error:  # it is the model that gave so many names and shapes
            raise ModelFailed(f"the reply of model {request.model!r} cannot travel: {error}") from None

    def _too_large(self, task: Task, request: RequestFrame, needed_bytes: int) -> bytes:
        error = ReplyTooLarge(
            f"the reply takes {needed_bytes} bytes and its slot has {request.reply_capacity};"
            " ask again with a larger one, it is kept for a minute",
            needed_bytes=needed_bytes,
        )
        return self._error(task, request, error)

    def _error(self, task: Task, request: RequestFrame, error: OverspillError) -> bytes:
        ids = request.client_id, request.request_no, self._settings.node_epoch
        return encode_error(ErrorFrame(*ids, error, task.load))


def _slot(arena: Arena, request: RequestFrame) -> memoryview:
    if request.reply_offset == NO_SLOT:
        return memoryview(bytearray())
    return arena.view[request.reply_offset : request.reply_offset + request.reply_capacity]


def main() -> None:
    """The process: everything it needs to know stands on its command line."""
    settings = Settings.of(sys.argv[1:])
    end_with(settings.parent_pid)
    try:
        Executor(settings).serve()
    except BrokenDevice as broken:
        broken.leave(settings.node_fd)
    except MissingDependency as missing:
        raise SystemExit(str(missing)) from None
