"""Bytes in words, for logs and tables."""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations


def in_gib(nbytes: int) -> str:
    """`140.4 GiB`."""
    return f"{nbytes / (1 << 30):.1f} GiB"
