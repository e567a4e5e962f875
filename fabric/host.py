"""Which host this is, so that two processes can tell whether they could share memory.

The kernel's boot id is the same for all processes (containers too) of one running kernel, and new at each boot. It is a
hint only: a peer is local once its socket has answered with the right node id and epoch. This module never connects.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fabric.errors import ConfigError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def host_id() -> str:
    """The boot id of the running kernel. Raises ConfigError where /proc is not mounted."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"{_BOOT_ID} cannot be read ({error.strerror}); mount /proc") from None
