"""Which request ids ran here, are running, or are answered: so that no id runs twice on one life of the node.

Per client: the running ids, and the final frames of finished ones until the client acknowledges them, a minute is over,
or there are too many. An id whose frame is gone stays known by number, so that it still cannot run again. Answers that
were kept are sent again from where they lie; this module keeps frames, never tensors. Read `workers/node.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fabric.errors import DuplicateRequest, Fate, ResourceExhausted

if TYPE_CHECKING:
    from workers.job import Job

FINISHED_MAX: Final = 4096
FINISHED_BYTES_MAX: Final = 4 << 20
"""Of frames per client: a kibibyte for each of 4096, though one frame may have 64."""
FINISHED_KEPT_S: Final = 60.0
SPENT_MAX: Final = 65_536
"""Numbers without frames, per client: half a megabyte at most. Past it, older ids are refused by their order."""
CLIENTS_MAX: Final = 4096
CLIENT_KEPT_S: Final = 600.0
"""A client that was silent this long and has nothing running is forgotten: its retries are long over."""


@final
@dataclass(init=False, slots=True)
class Finished:  # mutable: made for each request, see fabric/frame_values.py
    """An answer that was given. `holder` is the executor and its generation if it kept the reply's tensors."""

    frame: bytes
    at_s: float
    holder: tuple[int, int] | None

    def __init__(
        self,
        frame: bytes,
        at_s: float,
        holder: tuple[int, int] | None,
    ) -> None:
        self.frame = frame
        self.at_s = at_s
        self.holder = holder


class Client:  # mutable: grows with each request, shrinks with each acknowledgement
    """What the node knows of one client's ids."""

    __slots__ = ("accepted", "ack_no", "finished", "finished_bytes", "floor_no", "running", "seen_s", "spent")

    def __init__(self) -> None:
        self.running: dict[int, Job] = {}
        self.finished: dict[int, Finished] = {}  # in the order of finishing, so the oldest stands first
        self.finished_bytes = 0
        self.spent: set[int] = set()
        self.ack_no = 0
        self.floor_no = 0
        self.accepted = 0
        self.seen_s = 0.0

    def acknowledge(self, ack_no: int) -> None:
        """The client has the final answers of all ids below `ack_no`."""
        if ack_no <= self.ack_no:
            return
        self.ack_no = ack_no
        finished = self.finished
        while finished:
            oldest = next(iter(finished))
            if oldest >= ack_no:
                break
            self.finished_bytes -= len(finished.pop(oldest).frame)
        if self.spent:
            self.spent = {number for number in self.spent if number >= ack_no}

    def find(self, request_no: int) -> Job | Finished | None:
        """What is known of an id; None means that it may run. Raises DuplicateRequest for one that must not run
        and has no answer here any more."""
        known = self.running.get(request_no) or self.finished.get(request_no)
        if known is not None:
            return known
        if request_no < self.ack_no:
            raise DuplicateRequest(
                f"request {request_no} was answered and acknowledged; use a new number for a new request"
            )
        if request_no in self.spent or request_no < self.floor_no:
            raise DuplicateRequest(
                f"request {request_no} was here before and its answer is no longer kept; it did not run again",
                Fate.UNKNOWN,
            )
        return None

    def began(self, request_no: int, job: Job) -> None:
        """An id was accepted."""
        self.running[request_no] = job
        self.accepted += 1

    def never_ran(self, request_no: int) -> None:
        """An accepted id was given up before it ran: it may come again."""
        self.running.pop(request_no, None)

    def ended(self, request_no: int, finished: Finished) -> None:
        """An accepted id has its answer."""
        self.running.pop(request_no, None)
        if request_no >= self.ack_no:
            self.finished[request_no] = finished
            self.finished_bytes += len(finished.frame)
            while len(self.finished) > FINISHED_MAX or self.finished_bytes > FINISHED_BYTES_MAX:
                self._spend_oldest()

    def asked_again(self, request_no: int, now: float) -> None:
        """Somebody wants an answer that was given, and may want it, or the next of its stream, once more."""
        known = self.finished.pop(request_no, None)
        if known is not None:
            known.at_s = now
            self.finished[request_no] = known

    def lapse(self, now: float) -> None:
        """Drops answers that nobody asked for in time."""
        while self.finished and next(iter(self.finished.values())).at_s <= now - FINISHED_KEPT_S:
            self._spend_oldest()

    def _spend_oldest(self) -> None:
        oldest = next(iter(self.finished))
        self.finished_bytes -= len(self.finished.pop(oldest).frame)
        if oldest < self.ack_no:
            return
        self.spent.add(oldest)
        if len(self.spent) > SPENT_MAX:
            self.floor_no = max(self.spent) + 1
            self.spent.clear()

    def __repr__(self) -> str:
        return f"<Client {len(self.running)} running, {len(self.finished)} kept, acknowledged below {self.ack_no}>"


class Dedupe:  # mutable: the table of clients
    """The clients of one life of the node."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}

    def client(self, client_id: int, now: float) -> Client:
        """A client's own table, made when it is first seen. Raises ResourceExhausted when there are too many."""
        client = self.clients.get(client_id)
        if client is None:
            if len(self.clients) >= CLIENTS_MAX:
                self.lapse(now)
            if len(self.clients) >= CLIENTS_MAX:
                raise ResourceExhausted(f"the node serves {CLIENTS_MAX} clients already; use another node")
            client = self.clients[client_id] = Client()
        client.seen_s = now
        return client

    def lapse(self, now: float) -> None:
        """Forgets old answers and silent clients; called every few seconds."""
        silent = []
        for client_id, client in self.clients.items():
            client.lapse(now)
            if not client.running and not client.finished and client.seen_s <= now - CLIENT_KEPT_S:
                silent.append(client_id)
        for client_id in silent:
            del self.clients[client_id]
