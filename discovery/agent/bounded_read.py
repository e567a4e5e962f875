"""What an agent sends, read under one deadline: the head of an answer as well as its body.

A socket's own timeout begins anew with each byte, so a proxy that sends a head slowly, or one interim answer after the
other, would hold a caller for hours. This module opens nothing. Read `discovery/agent/meta.py` next.
"""

from __future__ import annotations

import io
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class BoundedRead(io.RawIOBase):
    """`source`, which is asked for bytes only after `left_s` was: that sets the socket's timeout, or raises."""

    def __init__(self, source: io.RawIOBase, left_s: Callable[[], float]) -> None:
        self._source, self._left_s = source, left_s

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: Any) -> int | None:  # a writable buffer
        """The next bytes. Raises what `left_s` raises."""
        self._left_s()
        return self._source.readinto(into)

    def close(self) -> None:
        """Closes the source too."""
        super().close()
        self._source.close()


def bounded_response(left_s: Callable[[], float]) -> type[HTTPResponse]:
    """The response class of connections whose every read asks `left_s` first."""

    class Bounded(HTTPResponse):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.fp = io.BufferedReader(BoundedRead(self.fp.detach(), left_s))

    return Bounded
