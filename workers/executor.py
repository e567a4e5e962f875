"""The child process that runs models for its node, one request at a time, in the order that they come.

It maps the tenants' arenas and holds duplicates of their sockets, so that a reply is written where the caller reads it
and announced without the node in between. It ends with its node, whatever way that goes, and, answering nothing more,
when its device's context is broken. Queues, ids and restarts are the node's. Read `workers/station.py` next.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from fabric.errors import (
    DeadlineExceeded,
    Fate,
    MissingDependency,
    ModelFailed,
    OverspillError,
    ProtocolError,
    ResourceExhausted,
    UnknownModel,
)
from fabric.frame import RequestFrame, is_reply, read_request, wants_stream
from fabric.local.sockets import receive_with_descriptors, send_now
from fabric.memory.arena import Arena
from workers.batch_run import Member, run_batch
from workers.card_regions import CardRegions
from workers.child import Settings
from workers.faults import Tracebacks
from workers.finals import Finals, kept_reply, slot_of
from workers.handover import (
    CONTROL_MAGIC,
    DELIVERED,
    KEPT,
    LEADS,
    MAGIC_BYTES,
    MORE,
    NOTHING_SPENT,
    RAN,
    RESEND,
    TASK_BYTES,
    TASK_MAGIC,
    Control,
    Spent,
    Task,
    decode_control,
    encode_control,
    pack_done,
    unpack_task,
)
from workers.heap import one_arena
from workers.held import HeldResidents
from workers.keep import KeptReply, ReplyKeep
from workers.legrun import DESCRIPTORS_MAX, LEG_WORDS, Legs
from workers.lifeline import end_with
from workers.page import SharedPage
from workers.shelf import Shelf
from workers.station import BrokenDevice, Station
from workers.streams import Streams, check_asked

if TYPE_CHECKING:
    from workers.execution import LoadedModel
    from workers.legrun import Leg

HEARTBEAT_S: Final = 0.1
_ENDS: Final = frozenset({"forget", "hang_up", "let_go", "commit", "drop", "remove"})  # models' code may run then


class Executor:  # mutable: maps arenas, holds sockets and models
    """The loop of the process."""

    def __init__(self, settings: Settings) -> None:
        self._finals = Finals(settings.node_epoch, settings.generation)
        self._node = socket.socket(fileno=settings.node_fd)
        self._page = SharedPage(settings.page_fd)
        self._arenas: dict[int, Arena] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._keep = ReplyKeep()
        self._tracebacks = Tracebacks(sys.stderr)
        on_gpu = settings.device.startswith("cuda:")
        self._station = Station(settings)
        rooms = self._station.rooms
        self._shelf = Shelf(settings.threads, self._tell_of_models, self._tracebacks, on_gpu=on_gpu, rooms=rooms)
        self._legs = Legs(rooms, self._tell, settings.parcels_fd, self._page)
        self._leg: Leg | None = None
        self._held = HeldResidents(CardRegions(self._station, self._tell))
        self._batch: list[Member] = []
        self._chain: LoadedModel | None = None
        self._streams = Streams(self._finals, self._keep, self._station, self._page)
        self._by_node = False

    def serve(self) -> None:
        """Runs until the node says exit or is gone."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        while True:
            message, descriptors = receive_with_descriptors(self._node, DESCRIPTORS_MAX)
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
            self._page.pinned(*self._station.pinned)
            time.sleep(HEARTBEAT_S)

    def _control(self, control: Control, descriptors: tuple[int, ...]) -> bool:
        self._page.aside(time.monotonic_ns() if control.word in _ENDS else 0)
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
            self._streams.leave(control.number)
            self._station.forget(control.number)
            del self._arenas[control.number]
        elif control.word in LEG_WORDS:
            self._legs.take(control, descriptors)
        elif not self._held.take(control, descriptors) and not self._station.take(control, self._tell):
            self._shelf.take(control, descriptors)
        self._page.aside(0)
        return control.word != "exit"

    def _tell_of_models(self, control: Control) -> None:
        if control.word == "ready":
            self._station.look()  # what was loaded may have broken the context
            self._tell(Control("libraries", models=self._station.libraries()))
        self._tell(control)

    def _tell(self, control: Control) -> None:
        self._node.send(encode_control(control))

    def _task(self, message: bytes) -> None:
        task = unpack_task(message)
        request = read_request(message[TASK_BYTES:])
        self._by_node = wants_stream(message, TASK_BYTES)  # such a task comes alone: decoupled models have no batches
        if task.flags & MORE or self._batch:
            self._batch.append(Member(task, request))
            if not task.flags & MORE:
                self._run_batch()
        else:
            self._run_one(task, request, None)

    def _run_batch(self) -> None:
        """Runs the tasks that came for one batch, and those of them by themselves that could not run with the rest."""
        members, self._batch = self._batch, []
        began_ns = time.monotonic_ns()
        self._page.began(members[-1].task.task_no, began_ns)
        model = self._shelf.models.get(members[0].request.model)
        if model is not None:
            for member in members:
                member.find(self._arenas[member.task.tenant_no])
            run_batch(model, members, self._shelf.scratch(model.config.name), self._station, began_ns)
        for member in members:
            self._run_one(member.task, member.request, member)

    def _run_one(self, task: Task, request: RequestFrame, member: Member | None) -> None:
        """Runs a task, or takes what became of it in a batch, and brings the answer home."""
        began_ns = time.monotonic_ns()
        if member is None or not member.has_run:
            self._page.began(task.task_no, began_ns)
        kept, flags, spent, self._leg = None, 0, NOTHING_SPENT, self._legs.begin()
        failure: OverspillError | None = None
        try:
            if task.flags & RESEND:
                final, flags = self._again(task, request)
            else:
                if member is None or not member.has_run:
                    kept, in_slot, spent = self._run(task, request, began_ns)
                    if self._legs.pass_on(self._leg, task.task_no, spent, self._node):
                        self._ended()
                        return
                else:
                    run, spent = member.run(), member.spent
                    kept, in_slot = kept_reply(task.tenant_no, run, member.slot, began_ns), run.aside is None
                if in_slot:
                    final = self._finals.reply(task, request, kept, spent.queue_us)
                else:
                    final = self._finals.too_large(task, request, len(kept.memory))
                flags = RAN | KEPT | LEADS if member is None or member.leads else RAN | KEPT
        except OverspillError as error:
            kept, failure = None, error
            self._legs.failed(self._leg, self._shelf.models.get(request.model), error)
            if isinstance(error, ResourceExhausted):
                self._station.make_room()
            final = self._finals.error(task, request, error)
            flags = RAN if error.fate is Fate.RAN else 0
        flags |= self._deliver(task, final)
        # What the caller need not wait for comes after its answer.
        self._keep.acknowledge(request.client_id, request.ack_no)
        if kept is not None:
            self._keep.put(request.client_id, request.request_no, kept)
        self._node.send(pack_done(flags, task.task_no, spent) + final)
        self._ended()
        if failure is not None:
            self._tell_author(request, failure)
            failure = None  # its traceback holds this frame: without this line, a circle
        if self._streams.due(began_ns):
            self._streams.tidy(request, began_ns)

    def _ended(self) -> None:
        if self._chain is not None:
            self._tell(Control("stepped", loaded=self._chain.take_steps()))
            self._chain = None
        self._page.ended()

    def _tell_author(self, request: RequestFrame, failure: OverspillError) -> None:
        """What the caller got one sentence of, the model's author finds in the node's log with its traceback."""
        cause = failure if isinstance(failure, ModelFailed) and failure.__cause__ is None else failure.__cause__
        if cause is not None:
            doing = f"in request {request.client_id:x}/{request.request_no}"
            self._tracebacks.write(request.model, doing, cause, time.monotonic())

    def _deliver(self, task: Task, final: bytes) -> int:
        socket_ = self._sockets.get(task.socket_no)
        if socket_ is None or self._by_node or not is_reply(final):
            self._by_node = True  # and what follows in its batch, lest it overtakes
            return 0  # the node answers whoever may ask the same id again: docs/protocol.md says why
        self._page.answering(task.task_no)
        try:
            if not send_now(socket_, final):
                return 0
        except OSError:
            return 0  # the tenant is gone; the node learns it from its own end
        self._page.answered(task.task_no)
        return DELIVERED

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
        slot = slot_of(arena, request)
        inputs, body_at = arena.view.toreadonly(), request.body_offset
        self._station.begin(task.tenant_no, request)
        if model.config.steps:
            self._chain = model
        if plan.carried:
            for number in self._held.fill_all(plan.carried, inputs, body_at):
                self._tell(Control("filled", number))
        try:
            if model.config.decoupled:
                check_asked(model, streaming=self._by_node)
                given = model.inputs_of(plan, inputs, body_at, self._held)
                run = self._streams.first(model, given, request, task.tenant_no, slot, began_ns)
            elif (leg := self._leg) is not None:
                run = self._legs.run(leg, model, model.inputs_of(plan, inputs, body_at, self._held), slot, began_ns)
            else:
                run = model.run(plan, inputs, body_at, slot, self._held)
        finally:
            self._station.end()  # good or bad: an answer of a broken context must not leave this process
        kept, before_us = kept_reply(task.tenant_no, run, slot, began_ns), self._leg.before_us if self._leg else 0
        kept.compute_us += before_us
        queue_us = max(0, (began_ns - task.arrived_ns) // 1000 - before_us)
        spent = Spent(run.compute_us, queue_us, run.input_us, run.output_us, plan.rows, plan.rows)
        return kept, run.aside is None, spent

    def _again(self, task: Task, request: RequestFrame) -> tuple[bytes, int]:
        """Sends a kept reply once more, into the slot that is asked for now."""
        slot = slot_of(self._arenas[task.tenant_no], request)
        if self._streams.any and (answer := self._streams.again(task, request, slot)) is not None:
            return answer
        return self._finals.again(task, request, self._keep.find(request.client_id, request.request_no), slot), KEPT


def main() -> None:
    """The process: everything it needs to know stands on its command line."""
    settings = Settings.of(sys.argv[1:])
    end_with(settings.parent_pid)
    one_arena()
    try:
        Executor(settings).serve()
    except BrokenDevice as broken:
        broken.leave(settings.node_fd)
    except MissingDependency as missing:
        raise SystemExit(str(missing)) from None
    except (BrokenPipeError, ConnectionResetError):
        return  # the node is gone, with words of ours that it did not read, and so are we
