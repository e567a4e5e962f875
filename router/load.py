"""What a router knows of the work that lies before one worker: its last report, and what we sent that it has not seen.

Each reply carries a report: `outstanding_us` of work when it was made, and `accepted`, how many requests of this client
it had counted by then. Our dispatches to the worker are numbered in the order we sent them, so those above `accepted`
are not in the report and are added to it. **A report never erases a dispatch it has not seen.** It is the fault that
every router with cached load had: a report from before a burst arrives after it, the burst is forgotten, and the next
burst follows it to the same worker.

Reports that arrive out of order are dropped by `sequence`. A dispatch that the worker never counted (refused, or its
link broke) leaves our numbers above the worker's: that counts our own work twice and loses nothing. The next answer to
our *oldest* dispatch sets it right: that dispatch was counted, so its number cannot be above the count it came with.
This module never decides. Read `router/price.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.
# ruff: noqa: FURB136, PLR1730 - each request passes here several times, and a comparison costs a fifth of `max`.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fabric.frame import Load


class Page(NamedTuple):  # made for each read
    """What a read of a worker's load page gave: its report, when that was made (our clock), and, where the page tells
    it, what one unit of the model's work takes there now in milliseconds (0 where it does not) and how many of our
    requests it counts as not over (-1 where it does not)."""

    load: Load
    made_at_s: float
    unit_ms: float = 0.0
    in_hand: int = -1


class Dispatch:  # mutable: ends once
    """One request of ours that a worker has. `work_ms` is what it is predicted to compute there; nothing once a report
    came that leaves it out."""

    __slots__ = ("number", "work_ms")

    def __init__(self, number: int, work_ms: float) -> None:
        self.number = number
        self.work_ms = work_ms


class WorkAhead:  # mutable: report and log of one life of one worker
    """The work before one worker. Its owner's lock guards it."""

    __slots__ = (
        "_accepted",
        "_executors",
        "_last_ms",
        "_out",
        "_reported_at_s",
        "_reported_ms",
        "_sent",
        "_sequence",
        "_unseen_ms",
    )

    def __init__(self) -> None:
        self._sequence = -1
        self._accepted = 0
        self._reported_ms = 0.0
        self._reported_at_s = 0.0
        self._executors = 1
        self._sent = 0
        self._last_ms = 0.0  # the work of the dispatch that ended last
        self._out: dict[Dispatch, None] = {}  # in the order they were sent
        self._unseen_ms = 0.0

    def sent(self, work_ms: float) -> Dispatch:
        """Enters a dispatch; `ended` must follow."""
        self._sent += 1
        dispatch = Dispatch(self._sent, work_ms)
        self._out[dispatch] = None
        self._unseen_ms += work_ms
        return dispatch

    def ended(self, dispatch: Dispatch) -> None:
        """A dispatch came to its end, with or without an answer."""
        del self._out[dispatch]
        if dispatch.work_ms:
            self._last_ms = dispatch.work_ms
        if dispatch.number > self._accepted:
            self._unseen_ms -= dispatch.work_ms
        else:
            # The report still holds this work, though it is done.
            left_ms = self._reported_ms - dispatch.work_ms
            self._reported_ms = left_ms if left_ms > 0.0 else 0.0
        if not self._out:
            self._unseen_ms = 0.0  # sums of floats drift; nothing out is exactly nothing

    def reported(self, load: Load, made_at_s: float, of: Dispatch | None = None, in_hand: int = -1) -> bool:
        """Takes in a report made at `made_at_s`, which came with the answer `of` a dispatch; False if it is old.
        `in_hand`: how many of ours it counts as not over, where it tells. An executor answers us before its node hears
        of it, so what has ended here may be among them: that is taken off."""
        if of is not None and of.number > load.accepted and of is next(iter(self._out)):
            self._renumber(of.number - load.accepted)
        if load.sequence <= self._sequence:
            return False
        self._sequence = load.sequence
        self._reported_ms = load.outstanding_us / 1000.0
        self._reported_at_s = made_at_s
        self._executors = load.executors or 1
        # The count only grows; a report that lost its place keeps what an earlier one had seen.
        accepted = load.accepted
        if accepted > self._accepted:
            self._accepted = accepted
            if accepted > self._sent:
                self._sent = accepted
        else:
            accepted = self._accepted
        if of is not None:
            self._last_ms = of.work_ms
            of.work_ms = 0.0  # a node leaves the request that it answers out of the report: nothing is to be taken off
        unseen_ms, unseen = 0.0, 0
        for dispatch in reversed(self._out):
            if dispatch.number <= accepted:
                break
            unseen_ms += dispatch.work_ms
            unseen += 1
        self._unseen_ms = unseen_ms
        over = in_hand - (len(self._out) - unseen)
        if over > 0:
            left_ms = self._reported_ms - over * self._last_ms
            self._reported_ms = left_ms if left_ms > 0.0 else 0.0
        return True

    def _renumber(self, over: int) -> None:
        """So many dispatches were never counted by the worker: takes them out of the numbers."""
        self._sent -= over
        for dispatch in self._out:
            dispatch.number -= over

    def wait_ms(self, now: float) -> tuple[float, float]:
        """Milliseconds until the work of the report is done (its executors have worked on since it was made), and those
        that our own dispatches add which it has not seen."""
        executors = self._executors
        left_ms = self._reported_ms / executors - (now - self._reported_at_s) * 1000.0
        return (left_ms if left_ms > 0.0 else 0.0), self._unseen_ms / executors

    @property
    def executors(self) -> int:
        """How many executors share its work, by its last report; 1 before the first."""
        return self._executors

    @property
    def reported_at_s(self) -> float:
        """When the last report was made; 0 before the first."""
        return self._reported_at_s

    def standing_ms(self) -> float:
        """The same in one figure with nothing taken off for time: where many routers send, what others have added since
        is about as much as was worked off."""
        return (self._reported_ms + self._unseen_ms) / self._executors

    @property
    def unseen(self) -> int:
        """How many dispatches of ours the report has not seen."""
        return sum(dispatch.number > self._accepted for dispatch in self._out)

    @property
    def out(self) -> int:
        """How many dispatches of ours have not ended."""
        return len(self._out)

    def __repr__(self) -> str:
        return f"<WorkAhead {self._reported_ms:.1f} ms reported, {self.out} ours out, {self.unseen} unseen>"
