"""What a number means: a CUDA error that ends the context or only the request, an Xid that restarts, drains or warns.

The classes stand in one data file with a version, `workers/cuda/faults.json`, after NVIDIA's documents; an operator may
give another. They are told apart by number, never by the text of a message. Unknown numbers count as the worse for CUDA
(a context that answers so is not to be trusted) and as a warning for Xid (there are more harmless ones than others).
This module restarts nothing: `workers/shell.py` does. Read `workers/sentinel.py` next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from fabric.errors import ConfigError

SHIPPED: Final = Path(__file__).with_name("faults.json")


class CudaClass(Enum):
    """What a CUDA error ends."""

    FATAL = "fatal"
    REQUEST = "request"


class XidClass(Enum):
    """What an Xid asks for: look at the executor's context and restart it if that is broken; take the card out of use;
    tell it only."""

    RESTART = "restart"
    DRAIN = "drain"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class FaultBook:
    """The classes of one file. `cuda` and `xids` hold (number, name, class)."""

    version: int
    source: str
    cuda: tuple[tuple[int, str, CudaClass], ...]
    xids: tuple[tuple[int, str, XidClass], ...]

    def of_cuda(self, code: int) -> CudaClass:
        """What a CUDA error ends."""
        return next((kind for number, _, kind in self.cuda if number == code), CudaClass.FATAL)

    def name(self, code: int) -> str:
        """A CUDA error in words."""
        return next((name for number, name, _ in self.cuda if number == code), "an error of no known class")

    def of_xid(self, xid: int) -> XidClass:
        """What an Xid asks for."""
        return next((kind for number, _, kind in self.xids if number == xid), XidClass.WARN)

    def xid_name(self, xid: int) -> str:
        """An Xid in words."""
        return next((name for number, name, _ in self.xids if number == xid), "an Xid of no known class")


def read_faults(path: str = "") -> FaultBook:
    """The classes of a file, or the shipped ones. Raises ConfigError for a file that is none."""
    source = Path(path) if path else SHIPPED
    try:
        facts: Any = json.loads(source.read_text(encoding="utf-8"))
        return FaultBook(
            int(facts["version"]),
            str(source),
            tuple((int(code), str(name), CudaClass(kind)) for code, (name, kind) in facts["cuda"].items()),
            tuple((int(xid), str(name), XidClass(kind)) for xid, (name, kind) in facts["xid"].items()),
        )
    except OSError as error:
        raise ConfigError(f"fault classes {source} cannot be read ({error.strerror}); give a file of them") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"fault classes {source} are not as expected ({error}); copy {SHIPPED} and change its classes"
        ) from None
