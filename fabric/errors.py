"""One tree of errors, each of which says what became of the request and what to do about it.

A caller asks one question after a failure: may I send it again? `fate` answers it: `NEVER_RAN` may be sent anywhere,
`RAN` and `UNKNOWN` only where the model is idempotent. Errors cross the wires as (code, fate, message) and come back as
the same class, so a caller never sees a third-party exception as the answer. This module never decides about retries:
`router/attempt.py` does. Read `fabric/deadline.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Fate(IntEnum):
    """What became of a request whose answer did not arrive as a reply."""

    NEVER_RAN = 0
    """No executor began it and none will: it may run anywhere."""
    RAN = 1
    """An executor began it and came to an end with it."""
    UNKNOWN = 2
    """It may have run, may be running, or may never run."""

    def __str__(self) -> str:
        return self.name.lower()


class OverspillError(Exception):
    """Any failure that Overspill reports. `code` is its number on the wire, `fate` what became of the request."""

    code: ClassVar[int] = 1
    default_fate: ClassVar[Fate] = Fate.UNKNOWN
    __slots__ = ("fate",)

    def __init__(self, message: str, fate: Fate | None = None) -> None:
        super().__init__(message)
        self.fate = type(self).default_fate if fate is None else fate

    def __reduce__(self) -> tuple[type[OverspillError], tuple[str, Fate]]:
        return type(self), (str(self), self.fate)


# What the caller asked for cannot be done as asked.
class InvalidArgument(OverspillError):
    """The request is wrong: a name, dtype, shape, size or value. Change it before sending it again."""

    code, default_fate = 10, Fate.NEVER_RAN


class UnknownModel(OverspillError):
    """No node offers the model."""

    code, default_fate = 11, Fate.NEVER_RAN


class PoisonRequest(OverspillError):
    """This request ended two executors and is refused from now on."""

    code, default_fate = 12, Fate.RAN


class ModelFailed(OverspillError):
    """The model's own code raised; the executor lives on."""

    code, default_fate = 13, Fate.RAN


class DuplicateRequest(OverspillError):
    """This request id was answered and acknowledged long ago; it did not run again."""

    code, default_fate = 14, Fate.RAN


class ResidentMissing(OverspillError):
    """The node keeps no tensor of a name that the request refers to; send its content with the request once."""

    code, default_fate = 15, Fate.NEVER_RAN


class AnswersInStream(InvalidArgument):
    """The model is decoupled: it has no one answer, and none over a router. Ask for its stream at its node."""

    code = 16


# Time and room.
class DeadlineExceeded(OverspillError):
    """The time given with the request is over."""

    code = 20


class Cancelled(OverspillError):
    """The caller gave the request up."""

    code = 21


class ResourceExhausted(OverspillError):
    """A bounded resource is full: a queue, an arena, a table of connections."""

    code, default_fate = 22, Fate.NEVER_RAN


class QueueFull(ResourceExhausted):
    """The node's queue for the model is full."""

    code = 23


class ReplyTooLarge(ResourceExhausted):
    """The reply did not fit the slot given for it; the node keeps it a while. `needed_bytes` says what would fit."""

    code, default_fate = 24, Fate.RAN
    __slots__ = ("needed_bytes",)

    def __init__(self, message: str, fate: Fate | None = None, needed_bytes: int = 0) -> None:
        super().__init__(message, fate)
        self.needed_bytes = needed_bytes


class ArenaFull(ResourceExhausted):
    """The caller's own arena has no room: nothing gets better by sending the request elsewhere, or again.
    `needed_bytes` is the room that was asked for; it is 0 where the error came over a wire."""

    code = 25
    __slots__ = ("needed_bytes",)

    def __init__(self, message: str, fate: Fate | None = None, needed_bytes: int = 0) -> None:
        super().__init__(message, fate)
        self.needed_bytes = needed_bytes


class WireTooSmall(ResourceExhausted):
    """This wire cannot carry the request, or not now; another wire to the same node may."""

    code = 26


# Somebody is gone, or not there yet.
class Unavailable(OverspillError):
    """Nobody could take the request now."""

    code, default_fate = 30, Fate.NEVER_RAN


class Draining(Unavailable):
    """The node finishes its old work and takes no new."""

    code = 31


class NodeLost(Unavailable):
    """The node, or every wire to it, was lost while the request was out."""

    code, default_fate = 32, Fate.UNKNOWN


class ExecutorLost(Unavailable):
    """The executor ended, hung or was fenced while it had the request; the node has started another one."""

    code, default_fate = 33, Fate.UNKNOWN


class StaleEpoch(Unavailable):
    """The request was meant for an earlier life of the node."""

    code = 34


class RegistryUnavailable(Unavailable):
    """The registry cannot be read or written."""

    code = 35


# The two ends do not understand each other.
class ProtocolError(OverspillError):
    """The peer sent bytes that are not a frame of this protocol. Its channel is closed."""

    code = 40


class VersionMismatch(ProtocolError):
    """The peer speaks no version of the protocol that we speak."""

    code, default_fate = 41, Fate.NEVER_RAN


class AccessDenied(OverspillError):
    """The peer may not use this node: a token, a user id or a certificate is wrong."""

    code, default_fate = 42, Fate.NEVER_RAN


# The way it is set up.
class ConfigError(OverspillError):
    """A setting, address or file of the operator's is wrong."""

    code, default_fate = 50, Fate.NEVER_RAN


class ModelBroken(ConfigError):
    """A model of the repository cannot be loaded."""

    code = 51


class MissingDependency(ConfigError):
    """A library that this feature needs is not installed."""

    code = 52


class AddressInUse(ConfigError):
    """Another process has the address that this one should listen on."""

    code = 53


class RouterClosed(ConfigError):
    """The router was closed before the call."""

    code = 54


class RouterUsedAfterFork(ConfigError):
    """The router belongs to the parent process; a child needs one of its own."""

    code = 55


class IllegalTransition(OverspillError):
    """A state machine met an event it has no edge for: a bug of ours. The message tells the last transitions."""

    code = 60


def because(error: OverspillError, cause: BaseException) -> OverspillError:
    """The error with its cause, for `raise because(error, cause) from cause`: a compiled `raise` ignores `from`."""
    error.__cause__ = cause
    return error


def _walk(cls: type[OverspillError]) -> list[type[OverspillError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _walk(sub))]


_BY_CODE = {cls.code: cls for cls in _walk(OverspillError)}


def from_wire(code: int, fate: int, message: str, needed_bytes: int = 0) -> OverspillError:
    """Builds the error that a peer sent as (code, fate, message); an unknown code becomes a plain `OverspillError`."""
    known_fate = Fate(fate) if fate in Fate.__members__.values() else Fate.UNKNOWN
    cls = _BY_CODE.get(code, OverspillError)
    if cls is ReplyTooLarge:
        return ReplyTooLarge(message, known_fate, needed_bytes)
    return cls(message, known_fate)
