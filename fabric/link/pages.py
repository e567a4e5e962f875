"""A node's load page over the wire that a link uses now: a read costs the node nothing over local and rdma.

This module never waits for a wire: a page that must be waited for is old. Read `fabric/load_page.py` for the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fabric.errors import Fate, NodeLost, Unavailable

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.load_page import Reading
    from fabric.transport import Channel


@runtime_checkable
class ReadsPages(Protocol):
    """A channel that can read its node's load page."""

    def read_page(self, deadline: Deadline) -> Reading:
        """One reading, our own line first. Blocks. Raises Unavailable, DeadlineExceeded, NodeLost."""


def read_page(channel: Channel | None, deadline: Deadline) -> Reading:
    """The page over this channel. Raises NodeLost without one, Unavailable where its wire reads none, and what the read
    raises; all with fate never_ran."""
    if channel is None:
        raise NodeLost("no wire to the node is live now; ask again later", Fate.NEVER_RAN)
    if not isinstance(channel, ReadsPages):
        raise Unavailable(f"the {channel.wire.value} wire reads no load pages; answers tell the node's load")
    return channel.read_page(deadline)
