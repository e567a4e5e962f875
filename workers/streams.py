"""Answers of decoupled models, which give none, one or many to a request: one for each time that the caller asks.

A decoupled model is a generator. The request makes it and runs it to its first answer; the same id asked again runs it
on to the next, on the executor that holds it, so whoever does not read holds up nobody else. The end is an answer
without tensors. What nobody asks for any more goes with its tenant, its acknowledgement or its time. This module sends
nothing. Read `workers/executor.py` next.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from fabric.errors import AnswersInStream, Fate, InvalidArgument, ModelFailed, OverspillError, ResourceExhausted
from fabric.layout import layout_of
from workers.backends.base import Inputs, Outputs
from workers.backends.python import PythonModel
from workers.execution import Run
from workers.faults import failure
from workers.finals import kept_reply
from workers.handover import KEPT, RAN

if TYPE_CHECKING:
    import numpy as np

    from fabric.dtypes import DType
    from fabric.frame import RequestFrame
    from workers.execution import LoadedModel
    from workers.finals import Finals
    from workers.handover import Task
    from workers.keep import ReplyKeep
    from workers.page import SharedPage
    from workers.station import Station

STREAMS_MAX: Final = 256
"""Generators that an executor holds, each with its inputs."""
LAPSE_NS: Final = 5_000_000_000
IDLE_NS: Final = 60_000_000_000
"""Of a stream whose next answer nobody asks for: as long as a reply is kept."""


class StreamOutputs:  # mutable: what a generator sets until its next yield
    """The outputs of one answer after the other, as a decoupled model sees them: set all of them, then yield."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: Outputs | None = None

    def __setitem__(self, name: str, value: object) -> None:
        assert self.now is not None, "a generator runs only while it is asked"
        self.now[name] = value

    def allocate(
        self, name: str, dtype: str | type | np.dtype[Any] | DType, shape: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """See `Outputs.allocate`: write every element before the next yield, and none afterwards."""
        assert self.now is not None, "a generator runs only while it is asked"
        return self.now.allocate(name, dtype, shape)


class Stream:  # mutable: a generator that runs on
    """One request at a decoupled model."""

    __slots__ = ("_answers", "_model", "_outputs", "asked_ns", "tenant_no", "too_large")

    def __init__(self, model: LoadedModel, inputs: Inputs, tenant_no: int) -> None:
        self._model = model
        self._outputs = StreamOutputs()
        self.tenant_no = tenant_no
        self.asked_ns = 0
        self.too_large = False
        """Its last answer did not fit the slot given for it, and is kept."""
        assert isinstance(model.backend, PythonModel), "no other model is decoupled"
        self._answers = model.backend.stream(inputs, self._outputs)

    def next(self, reply: memoryview, began_ns: int) -> tuple[Run, bool]:
        """Runs it on to its next answer; that, or an empty one, and whether it is over. Raises as a run does."""
        self.asked_ns, self.too_large = began_ns, False
        self._outputs.now = outputs = Outputs(self._model.declared, reply)
        try:
            next(self._answers)
            computed_ns = monotonic_ns()
            layout, aside = outputs.finish()
            self.too_large = aside is not None
        except StopIteration:
            if outputs.any:
                name = self._model.config.name
                raise ModelFailed(f"model {name!r} sets outputs and ends; yield after each answer") from None
            return Run(layout_of(()), None, (monotonic_ns() - began_ns) // 1000, 0, 0), True
        except Exception as error:  # a model's own code may raise anything; the executor lives on
            fault = failure(error, self._model.config.name, self._model.config.path)
            if fault is error or isinstance(fault, InvalidArgument):
                raise fault from None
            raise fault from error
        finally:
            self._outputs.now = None
        ended_ns = monotonic_ns()
        return Run(layout, aside, (ended_ns - began_ns) // 1000, 0, (ended_ns - computed_ns) // 1000), False


class Streams:  # mutable: streams come and go
    """The streams that one executor holds, by client and request number."""

    def __init__(self, finals: Finals, keep: ReplyKeep, station: Station, page: SharedPage) -> None:
        self._finals = finals
        self._keep = keep
        self._station = station
        self._page = page
        self._lapse_at_ns = 0
        self._open: dict[tuple[int, int], Stream] = {}

    @property
    def any(self) -> bool:
        """Whether there are streams: most executors never have one."""
        return bool(self._open)

    def first(
        self, model: LoadedModel, inputs: Inputs, request: RequestFrame, tenant_no: int, slot: memoryview, began_ns: int
    ) -> Run:
        """Makes a stream and runs it to its first answer."""
        if len(self._open) >= STREAMS_MAX:
            raise ResourceExhausted(f"{STREAMS_MAX} streams are open on this executor; read one to its end first")
        own = {name: value if value.flags.owndata else _own(value) for name, value in inputs.items()}
        stream = Stream(model, Inputs(own), tenant_no)
        run, over = stream.next(slot, began_ns)
        if not over:
            self._open[request.client_id, request.request_no] = stream
        return run

    def again(self, task: Task, request: RequestFrame, slot: memoryview) -> tuple[bytes, int] | None:
        """The next answer of a stream, as its final frame and flags; None where the request has no stream."""
        key = (request.client_id, request.request_no)
        stream = self._open.get(key)
        if stream is None:
            return None
        kept = self._keep.find(*key) if stream.too_large else None
        if stream.too_large and kept is None:
            del self._open[key]  # rather its end than a gap that nobody sees
            raise ResourceExhausted(
                "an answer of the stream did not fit its slot, and larger ones took its place until it was asked for"
                " again; stream smaller answers, or fewer at once",
                Fate.RAN,
            )
        if kept is None:
            began_ns = monotonic_ns()
            self._station.begin(task.tenant_no, request)
            try:
                run, over = stream.next(slot, began_ns)
            except OverspillError as error:
                del self._open[key]
                error.fate = Fate.RAN
                raise
            finally:
                self._station.end()
            if over:
                del self._open[key]
            kept = kept_reply(task.tenant_no, run, slot, began_ns)
            if run.aside is not None:
                self._keep.put(*key, kept)
                return self._finals.too_large(task, request, len(kept.memory)), RAN | KEPT
            return self._finals.reply(task, request, kept, 0), RAN | KEPT
        if len(kept.memory) > len(slot):
            return self._finals.too_large(task, request, len(kept.memory)), RAN | KEPT
        slot[: len(kept.memory)] = kept.memory
        stream.too_large = False
        return self._finals.reply(task, request, kept, 0), RAN | KEPT

    def due(self, now_ns: int) -> bool:
        """Whether there is something to tidy after a request."""
        return bool(self._open) or now_ns > self._lapse_at_ns

    def tidy(self, request: RequestFrame, now_ns: int) -> None:
        """Ends streams that nobody reads any more, and forgets replies that nobody asked for again in time. No request
        waits for it, so its node is told that this is what the executor is at: a stream's `finally` may hang."""
        self._page.aside(monotonic_ns())
        self.acknowledge(request.client_id, request.ack_no)
        if now_ns > self._lapse_at_ns:
            self._lapse_at_ns = now_ns + LAPSE_NS
            self._keep.lapse(now_ns / 1e9)
            self.lapse(now_ns)
        self._page.aside(0)

    def acknowledge(self, client_id: int, ack_no: int) -> None:
        """Nobody asks for requests of this client below `ack_no` any more."""
        if not self._open:
            return
        for key in [key for key in self._open if key[0] == client_id and key[1] < ack_no]:
            del self._open[key]

    def leave(self, tenant_no: int) -> None:
        """A tenant is gone."""
        for key in [key for key, stream in self._open.items() if stream.tenant_no == tenant_no]:
            del self._open[key]

    def lapse(self, now_ns: int) -> None:
        """Drops what nobody asked for in time."""
        for key in [key for key, stream in self._open.items() if stream.asked_ns <= now_ns - IDLE_NS]:
            del self._open[key]


def check_asked(model: LoadedModel, *, streaming: bool) -> None:
    """Raises AnswersInStream where a decoupled model is asked for one answer."""
    if not streaming:
        raise AnswersInStream(
            f"model {model.config.name!r} is decoupled and answers in a stream, which routers and gateways do not"
            " carry; ask it over ModelStreamInfer at the front door of a node that has it"
        )


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
