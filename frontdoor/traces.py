"""Which requests are traced, by Triton's settings and by what callers ask for, within a bound; and one traced request.

A request whose caller records its own part (W3C, `sampled`) is recorded here too, whatever rate and count say, as with
Triton; one whose caller does not record is not. Of those that tell nothing every `trace_rate`th is. Nobody, neither
rate nor callers, gets more than some in a second: a crowd that all wants to be traced costs what a few do. This module
writes nothing. Read `frontdoor/spans.py` for what a trace becomes, `frontdoor/trace_writer.py` for where it goes.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fabric.errors import InvalidArgument, OverspillError
from frontdoor.failures import Refusal, Status, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fabric.message import RequestId
    from frontdoor.trace_context import Context

TRACES_PER_S_MAX: Final = 100
"""A trace costs some 50 us when it is written: half a percent of a core."""
OFF, TIMESTAMPS = "OFF", "TIMESTAMPS"
NAME_CHARS_MAX: Final = 255
"""Of a model's name, which its caller makes up, in a span."""
_NUMBER_CHARS_MAX: Final = 18
_NO_PLACE: Final = "traces have no place here; have the operator set frontdoor_traces (of a gateway: --traces)"

Told = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Triton's settings. `rate` 1000 traces every thousandth request, 0 none but those whose callers want it; `count`
    is how many more are traced so, -1 any number."""

    on: bool = True
    rate: int = 1000
    count: int = -1


class Trace:  # mutable: told what became of its request
    """One request that is traced: a span of ours within the caller's trace, or a trace of its own. Times are of the
    monotonic clock, in nanoseconds; `epoch_ns` makes them ones of the Unix epoch. `parent_id` is empty for a trace of
    its own, `request` the id that the node knew the request by, and `error` empty for one that was answered."""

    __slots__ = (
        "began_ns", "ended_ns", "epoch_ns", "error", "facts", "model", "parent_id", "request", "span_id", "state",
        "trace_id",
    )  # fmt: skip

    def __init__(
        self, model: str, trace_id: str, parent_id: str, span_id: str, state: str, began_ns: int, epoch_ns: int
    ) -> None:
        self.model = model
        self.trace_id, self.parent_id, self.span_id, self.state = trace_id, parent_id, span_id, state
        self.began_ns, self.epoch_ns = began_ns, epoch_ns
        self.ended_ns = began_ns
        self.error = ""
        self.request: RequestId | None = None
        self.facts: tuple[tuple[str, str | int | float], ...] = ()

    def tell(self, *facts: tuple[str, str | int | float]) -> None:
        """Adds what is known of the request, as attributes of its span."""
        self.facts += facts


class Traces:  # mutable: settings, and a budget
    """The traces of one front door. `where` is a file or a URL, empty where none are taken; `put` takes those that have
    ended, `clock_ns` is monotonic and `wall_ns` of the Unix epoch, `bits(n)` gives n random bits."""

    def __init__(
        self, where: str = "", put: Callable[[Trace], None] = lambda _trace: None,
        clock_ns: Callable[[], int] = lambda: 0, wall_ns: Callable[[], int] = lambda: 0,
        bits: Callable[[int], int] = lambda _n: 1, counts: Counter[str] | None = None,
    ) -> None:  # fmt: skip
        self.where = where
        self.counts: Counter[str] = counts if counts is not None else Counter()
        """`taken`, or `over_limit` where the second's budget was spent; the writer's own beside them."""
        self._put = put
        self._clock_ns, self._wall_ns, self._bits = clock_ns, wall_ns, bits
        self._settings = TraceSettings(on=bool(where))
        self._of_models: dict[str, TraceSettings] = {}
        self._asked: Counter[str] = Counter()
        self._left = float(TRACES_PER_S_MAX)
        self._filled_ns = clock_ns()

    @property
    def taken(self) -> bool:
        """Whether traces are taken here at all."""
        return bool(self.where)

    def begin(self, model: str, context: Context | None) -> Trace | None:
        """The trace of a request that comes now; None where it is not traced."""
        settings = self._of_models.get(model, self._settings)
        if not settings.on or not self._wanted(model, settings, context):
            return None
        now_ns = self._clock_ns()
        self._left = min(TRACES_PER_S_MAX, self._left + (now_ns - self._filled_ns) * TRACES_PER_S_MAX / 1e9)
        self._filled_ns = now_ns
        if self._left < 1.0:
            self.counts["over_limit"] += 1
            return None
        self._left -= 1.0
        self.counts["taken"] += 1
        trace_id = context.trace_id if context is not None else f"{self._bits(128) or 1:032x}"
        parent_id, state = (context.parent_id, context.state) if context is not None else ("", "")
        span_id = f"{self._bits(64) or 1:016x}"
        return Trace(model[:NAME_CHARS_MAX], trace_id, parent_id, span_id, state, now_ns, self._wall_ns() - now_ns)

    @contextmanager
    def ending(self, trace: Trace | None) -> Iterator[None]:
        """The block is the traced request, if it is one: at its end the trace has ended, with the error it raises."""
        if trace is None:
            yield
            return
        try:
            yield
        except OverspillError as error:
            trace.error = sentence(error)
            raise
        except BaseException as error:  # whatever it was: the trace ends with it
            trace.error = "a bug; see the log" if isinstance(error, Exception) else "it was given up"
            raise
        finally:
            trace.ended_ns = self._clock_ns()
            self._put(trace)

    def _wanted(self, model: str, settings: TraceSettings, context: Context | None) -> bool:
        if context is not None:
            return context.sampled
        if not settings.rate or not settings.count:
            return False
        known = model if model in self._of_models else ""
        self._asked[known] += 1
        if self._asked[known] % settings.rate:
            return False
        if settings.count > 0:
            self._keep(known, replace(settings, count=settings.count - 1))
        return True

    # Settings.

    def told(self, model: str = "") -> Told:
        """The settings, those of one model if it has its own, in Triton's words."""
        settings = self._of_models.get(model, self._settings)
        return (
            ("log_frequency", ("0",)), ("trace_count", (str(settings.count),)), ("trace_file", (self.where,)),
            ("trace_level", (TIMESTAMPS if settings.on else OFF,)),
            ("trace_mode", ("opentelemetry" if self.where else "triton",)), ("trace_rate", (str(settings.rate),)),
        )  # fmt: skip

    def change(self, model: str, changes: Mapping[str, tuple[str, ...]]) -> None:
        """Changes the settings of all models, or of one; no value at all asks for the default. Raises InvalidArgument,
        and UNIMPLEMENTED for what is the operator's alone."""
        standing = dict(self.told(model))
        default = self._settings if model else TraceSettings(on=self.taken)
        settings = self._of_models.get(model, self._settings)
        for key, values in changes.items():
            if key not in standing:
                raise InvalidArgument(f"trace setting {key[:80]!r} is unknown; known are {', '.join(standing)}")
            if not self.taken and values and values != standing[key]:
                raise Refusal(Status.UNIMPLEMENTED, _NO_PLACE)
            if key == "trace_level":
                settings = replace(settings, on=_level(values) if values else default.on)
            elif key == "trace_rate":
                settings = replace(settings, rate=_number(key, values, 0) if values else default.rate)
            elif key == "trace_count":
                settings = replace(settings, count=_number(key, values, -1) if values else default.count)
            elif values and values != standing[key]:
                raise Refusal(Status.UNIMPLEMENTED, f"{key} is the operator's to choose; leave it out")
        if changes:
            self._keep(model, settings)

    def _keep(self, model: str, settings: TraceSettings) -> None:
        if not model:
            self._settings = settings
        elif settings == self._settings:
            self._of_models.pop(model, None)
        else:
            self._of_models[model] = settings


def _level(values: tuple[str, ...]) -> bool:
    if not set(values) <= {OFF, TIMESTAMPS}:
        raise Refusal(Status.UNIMPLEMENTED, f"trace_level is {', '.join(values)[:80]!r}; give OFF or TIMESTAMPS")
    return TIMESTAMPS in values


def _number(key: str, values: tuple[str, ...], least: int) -> int:
    (text,) = values if len(values) == 1 else ("",)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(text) > _NUMBER_CHARS_MAX or int(text) < least:
        raise InvalidArgument(f"{key} is {', '.join(values)[:80]!r}; give a whole number of at least {least}")
    return int(text)
