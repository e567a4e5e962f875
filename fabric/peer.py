"""What a peer says of itself, apart from `fabric/transport.py`, because a node's own process knows it without numpy.

Read `fabric/hello.py` for how it is said.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What the peer said of itself when the channel opened."""

    node_id: str
    node_epoch: int
    version: int
