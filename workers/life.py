"""One process of an executor: what it was told of tenants, what it loads, what it had in hand when it was replaced.

An executor has one life at work, may have a standby beside it, and some that were replaced and are not reaped yet. This
module decides nothing: `workers/shell.py` does. Read that next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import ProtocolError
from workers.canary import ANSWER_S, Canary
from workers.child import Child
from workers.handover import MORE, RESEND, Control, Task, encode_control, pack_task
from workers.lending import Lending
from workers.page import Answer
from workers.parcel import packed
from workers.vitals import ASIDE_MAX_S, Vitals, Watch, hang_at_s, hangs_aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Load
    from fabric.local.reactor import Reactor
    from workers.child import Settings
    from workers.desks import ExecutorDesk
    from workers.job import Job
    from workers.repository import ModelSource
    from workers.settlement import Settlement

_PROBED: Final = encode_control(Control("probed"))
ENDING_S = 0.002
"""A process that closed its socket is gone by then, unless a driver has to take its context down."""
DEAF_MAX_S = 0.25
"""A process that ends closes its socket first, and an interpreter takes some time to end."""


class Life:  # mutable: alive, then reaped
    """A started executor process. `on_message` takes what it says and tells whether more is to come soon, `on_end`
    hears that it is ending, where that takes some time, and `on_exit` that it is gone. Raises OSError when the system
    cannot give another process."""

    def __init__(
        self, reactor: Reactor, settings: Settings, now: float,
        on_message: Callable[[Life, bytes], bool], on_end: Callable[[Life], None], on_exit: Callable[[Life], None],
    ) -> None:  # fmt: skip
        self.generation = settings.generation
        self.why = ""
        """Why it is to end, or has; empty while it need not."""
        self.loading = ""
        """The model that it is at."""
        self.to_load: tuple[ModelSource, ...] = ()
        self.anew = False
        """It is told to load, and has not said that it has."""
        self.lending = Lending()
        self.warm = False
        """Its models are loaded and warm."""
        self.bare = False
        """It has a context and its libraries, and waits to be told what to load."""
        self.in_hand: dict[int, Job] = {}
        """Once it is replaced: its tasks, which are settled when it is reaped."""
        self.replaced = False
        self.spawned_s = now
        self.ended = False
        """It is reaped."""
        self.first_word_s = 0.0
        """When it spoke of its first model: its device is open by then. 0 before that."""
        self._reactor = reactor
        self._watch = Watch(now)
        self._canary = Canary(now) if settings.device != "cpu" else None
        self._tenants: set[int] = set()
        self._sockets: set[int] = set()
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_end = on_end
        self.child = Child(reactor, settings, self._message, self._deaf)
        reactor.add(self.child.pidfd, self._exited)

    def load(self, sources: tuple[ModelSource, ...]) -> None:
        """Has it hold exactly these models, whatever it is at. One that cannot be told so must not live on."""
        self.to_load, self.anew = sources, True
        try:
            with packed(sources) as fd:
                self.tell(Control("load"), (fd,))
        except OSError:
            self.child.kill()

    def check_told(self, control: Control) -> None:
        """Raises ProtocolError for a word about models that it was not told to load."""
        told = {*control.models, *(each.model for each in control.loaded)}
        if control.word in {"loading", "ready"} and not told.issubset({source.name for source in self.to_load}):
            raise ProtocolError("told of models that it was not to load; look which of its models writes to its node")

    def tell(self, control: Control, descriptors: tuple[int, ...] = ()) -> None:
        """Tells it a word."""
        self.child.send(encode_control(control), descriptors)

    def hand_over(self, task_no: int, job: Job, load: Load, *, more: bool = False) -> None:
        """Gives it a task, and before that what it does not know of the tenant. With `more` the next task is of the
        same batch."""
        asked = job.asked
        tenant, socket = asked.tenant, asked.socket
        if tenant.tenant_no not in self._tenants:
            self._tenants.add(tenant.tenant_no)
            self.tell(Control("arena", tenant.tenant_no), (tenant.arena.fd,))
        if socket.socket_no not in self._sockets and not socket.closed:
            self._sockets.add(socket.socket_no)
            self.tell(Control("socket", socket.socket_no), (socket.fileno(),))
        if job.uses:
            self.lending.tell(job.uses, self.tell)
        times = int(job.arrived_s * 1e9), int(job.deadline_s * 1e9)
        flags = RESEND if job.resend else MORE if more else 0
        task = Task(flags, task_no, tenant.tenant_no, socket.socket_no, *times, load)
        self.child.send(pack_task(task) + asked.frame)

    def hang_up(self, socket_no: int) -> None:
        """A tenant's socket is closed."""
        if socket_no in self._sockets:
            self._sockets.discard(socket_no)
            self.tell(Control("hang_up", socket_no))

    def forget(self, tenant_no: int) -> None:
        """A tenant is gone."""
        if tenant_no in self._tenants:
            self._tenants.discard(tenant_no)
            self.tell(Control("forget", tenant_no))

    def look(self, now: float, in_hand: dict[int, Job], *, ready: bool, start_timeout_s: float) -> str:
        """Why it must be ended, or an empty text."""
        if not ready and now - self.spawned_s >= start_timeout_s:
            return f"was not ready after {start_timeout_s:.0f} s"
        if self.child.deaf_since_s is not None and now - self.child.deaf_since_s >= DEAF_MAX_S:
            return "closed its way to the node"
        page = self.child.page
        task_no, began_ns = page.running
        job = in_hand.get(task_no)
        if job is not None:
            speed, limit = job.model.speed, job.model.execution_timeout_s
            until_s = job.deadline_s if job.ticket is None else job.ticket.latest_deadline_s(job.deadline_s)
            if now >= hang_at_s(began_ns / 1e9, until_s, speed.slowest_us, limit):
                what = f"ran {now - began_ns / 1e9:.2f} s on one request of model {job.model.name!r}, past its limit"
                return what if limit is not None else f"{what} (its caller's time; execution_timeout_ms sets another)"
        if ready and not self.anew and hangs_aside(page.aside_ns, now):
            return f"spent {ASIDE_MAX_S:.0f} s on the end of a stream or a model, which no request waits for"
        idle = ready and not in_hand and not self.anew
        if self._canary is not None and self._canary.is_late(now, idle=idle):
            return f"did not answer a probe of its device for {ANSWER_S:.0f} s"
        if self._canary is not None and self._canary.is_due(now, idle=idle):
            self.tell(Control("probe"))
        # Before it is ready it loads models, which may hold the interpreter for long: the start's own limit counts.
        busy = task_no != 0 or not ready
        return self._watch.look(Vitals(page.heartbeat, self.child.is_stopped(), busy), now)

    def lost(self) -> list[tuple[Job, Answer]]:
        """The tasks that it had begun, each with whether the tenant has its answer; to be asked once it is reaped. A
        kept reply that was sent again needs no more."""
        page = self.child.page
        begun_no = page.begun_no
        found = [(task_no, job, page.answer_of(task_no)) for task_no, job in self.in_hand.items()]
        return [
            (job, answer)
            for task_no, job, answer in found
            if (job.resend and answer is not Answer.SENT) or (not job.resend and task_no <= begun_no)
        ]

    def give_up(self, desk: ExecutorDesk, settlement: Settlement) -> None:
        """It answers nothing any more: whoever waits for what it had begun may know now, and the slots wait for its
        end."""
        page = self.child.page
        begun_no = page.begun_no
        for task_no, job in [*self.in_hand.items(), *(() if self.replaced else desk.in_hand.items())]:
            if task_no <= begun_no and (answer := page.answer_of(task_no)) is not Answer.SENT:
                settlement.lost(job, self.why, answer, early=True)

    def shut(self) -> None:
        """Ends it, however long the kernel takes for that: from here on it begins nothing."""
        self.child.page.shut()
        self.child.kill()

    def unbegun(self, in_hand: dict[int, Job]) -> list[tuple[int, Job]]:
        """Those of its tasks that it has not begun, by number. Once it is shut, they are nobody's."""
        begun_no = self.child.page.begun_no
        return [(no, job) for no, job in in_hand.items() if no > begun_no and not job.resend]

    def _message(self, message: bytes) -> bool:
        if message == _PROBED and self._canary is not None:
            self._canary.answered(self._reactor.now())
            return False
        return self._on_message(self, message)

    def _deaf(self) -> None:
        # A process without a device is gone in no time, and its end says how.
        self._reactor.call_later(ENDING_S, self._look_whether_it_ends)

    def _look_whether_it_ends(self) -> None:
        how = "" if self.ended else self.child.ending()
        if how:
            self.why = self.why or how
            self._on_end(self)

    def _exited(self, _events: int) -> None:
        how = self.child.reap()
        self._reactor.remove(self.child.pidfd)
        self.why = self.why or how
        self.ended = True
        self._on_exit(self)

    def __repr__(self) -> str:
        return f"<Life of generation {self.generation}, {self.child!r}>"
