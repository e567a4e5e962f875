"""The one file that imports pyverbs: loads it, says what is missing where it is, and knows its names and numbers.

pyverbs holds the interpreter's lock in every call, keeps no reference to memory, leaks work requests that are not
closed, and dies when a child of a closed parent is touched. So nothing here waits; a poll is short; whoever registers
memory keeps it mapped until `close`; work requests are prepared once or closed after their post; and every object is
closed by its owner, child before parent, once. Released versions put the same names into different modules: both
spellings are understood. This module never decides anything. Read
`fabric/rdma/device.py`, `domain.py` and `pair.py` next: plain objects of our own over it.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from fabric.errors import MissingDependency

_ENUM_MODULES = ("pyverbs.enums", "pyverbs.libibverbs_enums")
ERRORS = {
    1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "LOC_EEC_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR", 6: "MW_BIND_ERR",
    7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR", 11: "REM_OP_ERR",
    12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 21: "GENERAL_ERR",
}  # fmt: skip
"""Names of a completion's status (ibv_wc_status)."""
FLUSHED = 5
OF_OUR_PORT = frozenset({2, FLUSHED})
"""What a pair says first whose own port is down: the one with kernel 6.1, the other with 6.12."""
EVENTS = {
    0: "CQ_ERR", 1: "QP_FATAL", 2: "QP_REQ_ERR", 3: "QP_ACCESS_ERR", 8: "DEVICE_FATAL", 9: "PORT_ACTIVE",
    10: "PORT_ERR", 11: "LID_CHANGE", 12: "PKEY_CHANGE", 17: "CLIENT_REREGISTER", 18: "GID_CHANGE",
}  # fmt: skip
"""Names of a device's events (ibv_event_type) that a connection cares for."""


class Verbs:
    """pyverbs, loaded. Made by `load`."""

    def __init__(self) -> None:
        self._enums = [module for name in _ENUM_MODULES if (module := _optional(name)) is not None]
        self.addr, self.cq, self.device, self.mr, self.pd, self.qp, self.wr = (
            importlib.import_module(f"pyverbs.{name}") for name in ("addr", "cq", "device", "mr", "pd", "qp", "wr")
        )
        self.error: type[Exception] = importlib.import_module("pyverbs.pyverbs_error").PyverbsError
        self.init, self.rtr, self.rts, self.err = (
            self.number(f"IBV_QPS_{name}") for name in ("INIT", "RTR", "RTS", "ERR")
        )
        self.signaled, self.inline = self.number("IBV_SEND_SIGNALED"), self.number("IBV_SEND_INLINE")
        self.send_op, self.write_op = self.number("IBV_WR_SEND"), self.number("IBV_WR_RDMA_WRITE")
        self.write_imm_op, self.read_op = (
            self.number("IBV_WR_RDMA_WRITE_WITH_IMM"), self.number("IBV_WR_RDMA_READ")
        )  # fmt: skip

    def number(self, name: str) -> int:
        """A constant, whichever module and class it stands in."""
        for module in self._enums:
            found = getattr(module, name, None)
            if found is not None:
                return int(found)
            for holder in vars(module).values():
                found = getattr(holder, name, None) if isinstance(holder, type) else None
                if found is not None:
                    return int(found)
        raise MissingDependency(f"this pyverbs does not know {name}; install the one of your distribution's rdma-core")


def load() -> Verbs:
    """Imports pyverbs. Raises MissingDependency, in one sentence that says what to install."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return Verbs()
    except ImportError as error:
        raise MissingDependency(_why_missing(str(error))) from None
    finally:  # importing pyverbs.base calls logging.basicConfig, and the program's log is not ours to set up
        root.handlers[:] = handlers
        root.setLevel(level)


def _why_missing(told: str) -> str:
    if "IBVERBS_PRIVATE" in told or "version `" in told:
        return (
            "pyverbs was built for another rdma-core than this machine's libibverbs; remove it from the environment and"
            " use the distribution's package: apt install python3-pyverbs"
        )
    if "libibverbs" in told or "librdmacm" in told:
        return "libibverbs is not installed, and the rdma wire needs it: apt install rdma-core python3-pyverbs"
    return (
        "pyverbs is not installed, and the rdma wire needs it: apt install python3-pyverbs, with the same Python"
        " version (a venv sees it by a .pth file that names /usr/lib/python3/dist-packages)"
    )


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise
