"""How our errors read to a stock client: Triton's status for each, as gRPC's code and as HTTP's number.

Clients switch on these codes, so they are a promise; the sentence is our own. Statuses that only the front door needs
(a region that exists already) are errors of its own here, since they never cross a wire of the fabric. This module
never decides what is wrong. Read `frontdoor/door.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum

from fabric import errors
from fabric.errors import Fate, OverspillError

SENTENCE_BYTES_MAX = 2000


class Status(Enum):
    """A status of Triton's, and the few that it has no word for. The value is (gRPC's number, HTTP's number)."""

    CANCELLED = (1, 499)
    UNKNOWN = (2, 500)
    INVALID_ARGUMENT = (3, 400)
    DEADLINE_EXCEEDED = (4, 504)
    NOT_FOUND = (5, 404)
    ALREADY_EXISTS = (6, 409)
    PERMISSION_DENIED = (7, 403)
    RESOURCE_EXHAUSTED = (8, 429)
    UNIMPLEMENTED = (12, 501)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)

    @property
    def grpc(self) -> int:
        """gRPC's number of it (statuscodes.md of grpc/grpc)."""
        return self.value[0]

    @property
    def http(self) -> int:
        """HTTP's number of it."""
        return self.value[1]


class Refusal(OverspillError):
    """Something that the front door itself refuses, with the status that says so."""

    default_fate = Fate.NEVER_RAN
    __slots__ = ("status",)

    def __init__(self, status: Status, message: str, fate: Fate | None = None) -> None:
        super().__init__(message, fate)
        self.status = status


_STATUS: tuple[tuple[type[OverspillError], Status], ...] = (
    # The first that fits, so the special ones come first.
    (errors.AnswersInStream, Status.UNIMPLEMENTED),
    (errors.InvalidArgument, Status.INVALID_ARGUMENT),
    (errors.UnknownModel, Status.NOT_FOUND),
    (errors.PoisonRequest, Status.INVALID_ARGUMENT),
    (errors.Cancelled, Status.CANCELLED),
    (errors.DeadlineExceeded, Status.DEADLINE_EXCEEDED),
    (errors.QueueFull, Status.UNAVAILABLE),
    (errors.ArenaFull, Status.UNAVAILABLE),
    (errors.ResourceExhausted, Status.RESOURCE_EXHAUSTED),
    (errors.Unavailable, Status.UNAVAILABLE),
    (errors.ModelBroken, Status.UNAVAILABLE),
    (errors.RouterClosed, Status.UNAVAILABLE),
    (errors.AccessDenied, Status.PERMISSION_DENIED),
)


def status_of(error: OverspillError) -> Status:
    """The status of an error. Whatever is not the client's doing and not a matter of waiting is INTERNAL."""
    if isinstance(error, Refusal):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), Status.INTERNAL)


def late(error: errors.DeadlineExceeded, *, limited: bool) -> OverspillError:
    """What a client is told of a time that is over: the protocol's own limit (`limited`) has Triton's word, its
    deadline is its own."""
    return Refusal(Status.UNAVAILABLE, f"timeout of the request: {error}", error.fate) if limited else error


def sentence(error: OverspillError) -> str:
    """What a client reads of an error: bounded, since it may hold what the client sent, and gRPC drops the whole answer
    if its trailing metadata (in which each byte may take three) are over 8 KiB."""
    raw = str(error).encode(errors="backslashreplace")
    return raw.decode() if len(raw) <= SENTENCE_BYTES_MAX else raw[:SENTENCE_BYTES_MAX].decode(errors="ignore") + " …"


def reason_of(error: OverspillError) -> str:
    """The label that Triton's metric of failed requests has for it: REJECTED, CANCELED, BACKEND or OTHER."""
    if isinstance(error, errors.Cancelled):
        return "CANCELED"
    if isinstance(error, errors.ModelFailed | errors.ExecutorLost | errors.PoisonRequest):
        return "BACKEND"
    if isinstance(error, errors.QueueFull | errors.DeadlineExceeded | errors.Draining):
        return "REJECTED"
    return "OTHER"
