"""What a model's own exceptions tell: where in its files they came from, whether they refuse a request, and the log.

A caller gets one sentence; whoever wrote the model needs the traceback. It goes to the standard error of the executor,
which is the node's log, and only so often: a model that fails each request must not fill a disk. Read
`workers/execution.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import dis
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fabric.errors import Fate, InvalidArgument, ModelFailed, OverspillError, ResourceExhausted

if TYPE_CHECKING:
    from types import TracebackType

TEXT_MAX = 300
"""Characters of a model's own message that travel in an error."""
TRACEBACKS_MAX = 20
PERIOD_S = 60.0
"""Tracebacks of one model that are written in a minute: enough to see each kind of failure, too few to fill a disk."""
TRACEBACK_CHARS_MAX = 8000
"""Of one traceback; its end, which tells most, is kept. A recursion without end would make it megabytes."""

_RAISE = dis.opmap["RAISE_VARARGS"]


class Writer(Protocol):
    """Where tracebacks go: a text stream."""

    def write(self, text: str, /) -> object:
        """Takes a text."""

    def flush(self) -> object:
        """Lets it out."""


def told(error: BaseException, *, kind: bool = True) -> str:
    """A model's exception in one line, its type before it unless `kind` is False and there is a text."""
    text = " ".join(str(error).split())[:TEXT_MAX]
    if kind or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def place(error: BaseException, folder: str) -> str:
    """` in model.py line 12`: where in the model's `folder` it happened, the innermost; empty if it was elsewhere."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        own = _own_file(trace, folder)
        if own:
            found = f" in {own} line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def is_refusal(error: BaseException, folder: str) -> bool:
    """Whether the model itself said `raise`: the innermost frame is of its own files and stands at that statement.

    The same exception out of a library, or out of numpy's own code below a line of the model's, is an accident.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not _own_file(trace, folder):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _own_file(trace: TracebackType, folder: str) -> str:
    path = Path(trace.tb_frame.f_code.co_filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""


def failure(error: Exception, model: str, folder: str) -> OverspillError:
    """What a caller is told of an exception of a model's own code, in `folder`."""
    if isinstance(error, OverspillError):
        error.fate = Fate.RAN
        return error
    if isinstance(error, MemoryError):
        return ResourceExhausted(f"model {model!r} ran out of memory; send less at once, or use another node", Fate.RAN)
    if isinstance(error, ValueError) and is_refusal(error, folder):
        return InvalidArgument(f"model {model!r} refuses its inputs: {told(error, kind=False)}", Fate.RAN)
    return ModelFailed(f"model {model!r} failed: {told(error)}{place(error, folder)}")


class Tracebacks:  # mutable: counts what it wrote of each model
    """Writes the tracebacks of failing models, at most `TRACEBACKS_MAX` of each in a period."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._counts: dict[str, tuple[float, int]] = {}

    def write(self, model: str, doing: str, error: BaseException, now: float) -> None:
        """One traceback, from the model's first frame on. `doing` tells in what it failed, such as `in request 7/1`."""
        since, count = self._counts.get(model, (now, 0))
        if now - since >= PERIOD_S:
            since, count = now, 0
        self._counts[model] = (since, count + 1)
        if count > TRACEBACKS_MAX:
            return
        if count == TRACEBACKS_MAX:
            text = f"model {model!r} goes on failing; its next traceback is written in {since + PERIOD_S - now:.0f} s\n"
        else:
            lines = traceback.format_exception(type(error), error, _beyond_ours(error.__traceback__))
            text = f"model {model!r} failed {doing}\n{''.join(lines)[-TRACEBACK_CHARS_MAX:]}"
        try:
            self._writer.write(text)  # at once, so that several executors do not mix their lines
            self._writer.flush()
        except (OSError, ValueError):  # whoever read the log is gone, or the model closed it
            return


def _beyond_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that led to the model, which are ours and the import system's."""
    ours = (str(Path(__file__).resolve().parent), "<frozen importlib")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    return trace
