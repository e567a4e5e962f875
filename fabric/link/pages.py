"""A node's load page over the wire that a link uses now: a read costs the node nothing over local and rdma.

This module never waits for a wire: a page that must be waited for is old. Read `fabric/load_page.py` for the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import Fate, NodeLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.load_page import Reading
    from fabric.transport import Channel


def read_page(channel: Channel | None, deadline: Deadline) -> Reading:
    """The page over this channel, with the caller's own line read first. Blocks. Raises NodeLost without a channel,
    Unavailable where its wire reads no pages, and what the read raises; all with fate never_ran."""
    if channel is None:
        raise NodeLost("no wire to the node is live now; ask again later", Fate.NEVER_RAN)
    # Looked up, since asking whether it fits a protocol costs more than the read.
    read: Callable[[Deadline], Reading] | None = getattr(channel, "read_page", None)
    if read is None:
        raise Unavailable(f"the {channel.wire.value} wire reads no load pages; answers tell the node's load")
    return read(deadline)
