"""How much memory this host, or the container around the node, has for models: by the kernel's own word.

A container's limit counts where it is lower than the machine's memory. This module decides nothing. Read
`workers/fitting.py` next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHARE: Final = 0.8
"""Of memory that models may take unless the operator says otherwise: the rest is for arenas, replies and the system."""
_CGROUP: Final = "sys/fs/cgroup"


def host_bytes(root: str = "/") -> tuple[int, int]:
    """(all memory, what is free now) in bytes. A figure that the kernel does not tell is as large as can be."""
    facts: dict[str, int] = {}
    for line in _read(Path(root) / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            facts[name] = int(words[0]) * 1024
    total, free = facts.get("MemTotal", 1 << 62), facts.get("MemAvailable", 1 << 62)
    most, used = _number(root, "memory.max"), _number(root, "memory.current")
    if most is not None and most < total:
        # Pages of files are counted as used there, but the kernel drops them when it needs to.
        files = sum(
            int(line.split()[1])
            for line in _read(Path(root) / _CGROUP / "memory.stat").splitlines()
            if line.startswith(("inactive_file ", "active_file "))
        )
        total, free = most, min(free, max(0, most - (used or 0) + files))
    return total, free


def _number(root: str, name: str) -> int | None:
    text = _read(Path(root) / _CGROUP / name).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
