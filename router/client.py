"""The blocking router: it is driven in the caller's own thread, from the pick to the reply, with no hand-over.

Any number of threads may share one. It holds one background thread, which opens links and carries what cannot run in a
caller's thread; the thread ends with `close`, or when the router is forgotten. This module decides nothing: it carries
out what `router/core.py` yields. Read that next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fabric.errors import InvalidArgument, OverspillError
from router.dispatch import Attempt
from router.hints import check_hint
from router.inputs import check, declared_specs
from router.mapping import map_batch
from router.opening import Opened, open_router
from router.prepared import Prepared, prepared_inputs
from router.resident import Resident
from router.staging import release

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from fabric.transport import Answer
    from router.config import RouterConfig
    from router.core import Core, Life
    from router.mapping import Mapped
    from router.prepared import _Inputs
    from router.record import Decision
    from router.reply import Reply
    from router.staging import Staged
    from router.statistics import RouterStatistics
    from router.steps import Read, Wait

CONNECT_TIMEOUT_S = 5.0
"""Long enough to open links on a busy machine; `connect` returns earlier when each known node has answered."""


class Router:
    """Sends requests to the worker that will answer them first. Made by `Router.connect`; `with` closes it."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._core = opened.core
        opened.close_with(self)

    @classmethod
    def connect(
        cls, registry_url: str, *, config: RouterConfig | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Self:
        """Reads the registry (`dir:PATH`, `static:HOST:PORT,...`) and opens links to its nodes for `timeout_s` at most.

        Nodes that come later are found too. Raises ConfigError for a URL that names no registry, RegistryUnavailable
        when it cannot be read, AccessDenied where there are nodes and each refuses this router (a wrong token); later
        failures of the registry are none of the router's, which lives on what it knew.
        """
        return cls(open_router(registry_url, config, timeout_s))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        timeout_s: float,
        priority: int = 0,
        cost: float | None = None,
    ) -> Reply:
        """Sends `inputs` (numpy arrays, DLPack objects on the CPU, scalars, sequences, str or bytes; by name) and
        returns the reply. `priority` 1 goes first on the node, 255 last; 0 takes the middle. `cost` is a guess of what
        the request costs beside others of the model, in any unit: how much to believe is learned.

        Raises OverspillError, whose `fate` says whether the model may have run: InvalidArgument and UnknownModel before
        anything is sent; DeadlineExceeded after `timeout_s`; Unavailable when no node could take it.
        """
        core = self._core
        hint = check_hint(cost)
        offer, deadline = core.admit(model, timeout_s, priority)
        body = core.staging.stage(offer.facts, inputs)
        try:
            return _drive(core, core.life(model, body, deadline, priority, offer.idempotent, hint))
        except OverspillError:
            release(body)  # whoever keeps the error must not keep the slot
            raise

    def prepare(self, model: str, rows: int | None = None, **dims: tuple[int, ...] | Resident) -> Prepared:
        """Leases the inputs that the model declares, to be written in place and sent uncopied.

        `rows` fills a first dimension of -1 in every input; a keyword gives the whole shape of the input of that name,
        or a resident in its place.
        Raises InvalidArgument where a size stays open or an input is BYTES, UnknownModel, ResourceExhausted.
        """
        return Prepared(lease_inputs(self._core, model, rows, dims), self._send)

    def _send(self, model: str, body: Staged, timeout_s: float, priority: int) -> Reply:
        core = self._core
        offer, deadline = core.admit(model, timeout_s, priority)
        return _drive(core, core.life(model, body, deadline, priority, offer.idempotent))

    def map(
        self,
        model: str,
        batch: Mapping[str, object],
        *,
        timeout_s: float,
        priority: int = 0,
        shared: Mapping[str, object] | None = None,
    ) -> Mapped:
        """Splits one large batch over all workers and returns its outputs in order.

        All arrays of `batch` have the same first dimension, its rows; `shared` goes with every part whole. A part is
        tried again by the rules of `infer`, alone. Raises what `infer` raises: the first error that a part ends with.
        """

        def send(inputs: Mapping[str, object], left_s: float) -> Reply:
            return self.infer(model, inputs, timeout_s=left_s, priority=priority)

        return map_batch(self._core, send, model, batch, shared or {}, timeout_s)

    def resident(self, value: object) -> Resident:
        """A handle of a large input that many requests use (an array, or what `infer` takes for one, but no BYTES). In
        place of the array, in `infer`, `map` (in `shared`) and `prepare`, it is sent to a node once and kept there.

        The content is copied and hashed, which takes about a millisecond for each MB. Raises InvalidArgument.
        """
        self._core.check_usable()
        return Resident(value)

    def models(self) -> tuple[str, ...]:
        """The names of the models that nodes take requests for, sorted."""
        self._core.check_usable()
        with self._core.lock:
            return self._core.table.models()

    def explain(self, request_id: str) -> tuple[Decision, ...]:
        """Why a request (`reply.trace.request_id`) went where it went, a decision for each attempt. Raises ConfigError
        unless `RouterConfig.explain_kept` is set."""
        return self._core.explain(request_id)

    def statistics(self) -> RouterStatistics:
        """What is going on now."""
        return self._opened.statistics()

    def close(self) -> None:
        """Takes no new request, lets running ones end for `close_timeout_s`, then ends them. Safe to call twice."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Router {'closed' if self._core.closed else 'open'}, {self._core.table!r}>"


def _drive(core: Core, life: Life) -> Reply:
    """Carries out what the life of a request yields, in this thread."""
    outcome: Answer | OverspillError | None = None
    step: Attempt | Wait | Read | None = None
    try:
        while True:
            step = life.send(outcome)
            if isinstance(step, Attempt):
                if step.beside is not None and core.beside is not None:
                    core.beside(step.beside)
                try:
                    outcome = step.link.call(step.call, step.deadline) if core.racing is None else core.racing(step)
                except OverspillError as error:
                    outcome = error
            else:
                core.wait(step)
                outcome = None
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    finally:
        life.close()  # Ctrl-C in the middle of a call settles the books too
        step = outcome = None  # an error's traceback holds this frame: it must not hold the error too


def lease_inputs(core: Core, model: str, rows: int | None, dims: Mapping[str, tuple[int, ...] | Resident]) -> _Inputs:
    """The leased inputs of one request of `model`; those given as residents are referred to."""
    core.check_usable()
    facts = core.offer(model).facts
    if facts is None:
        raise InvalidArgument(f"what model {model!r} declares is not known here, so nothing can be prepared; use infer")
    residents = {name: given for name, given in dims.items() if isinstance(given, Resident)}
    shapes = {name: given.dims if isinstance(given, Resident) else given for name, given in dims.items()}
    specs = declared_specs(facts, rows, shapes)
    if residents:
        specs = tuple(residents[spec.name].spec(spec.name) if spec.name in residents else spec for spec in specs)
        check(facts, specs)
    return prepared_inputs(model, facts, core.staging, specs, tuple(residents.values()))
