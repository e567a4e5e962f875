"""What comes on the two pairs of a connection: copied out, checked, and its receive posted again.

A greeting is answered here; credit is booked here; everything else goes to the owner. What lies in memory that the peer
writes to is copied before anything of it is looked at. All methods are called under the connection's lock. This module
never waits. Read `fabric/rdma/connection.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ProtocolError
from fabric.rdma.heads import CREDIT, ECHO, HELLO, HELLO_PLACE, read_place

if TYPE_CHECKING:
    from fabric.rdma.device import Done
    from fabric.rdma.heads import Head
    from fabric.rdma.pairs import Pairs
    from fabric.rdma.posts import Posts
    from fabric.rdma.talk import Owner, Talk

    Arrival = tuple[Head, bytes, int | None]
    """A message, what follows its head, and where it lay; None for one that came by itself."""


class Intake:  # mutable: its owner is replaced at the end
    """The receiving half of one connection. `owner` knows the region that the peer writes to; `answers` says that this
    end echoes greetings: the node does."""

    __slots__ = ("_answers", "_pairs", "_posts", "_talk", "owner")

    def __init__(self, pairs: Pairs, talk: Talk, posts: Posts, owner: Owner, *, answers: bool) -> None:
        self._pairs, self._talk, self._posts = pairs, talk, posts
        self.owner, self._answers = owner, answers

    def frame(self, number: int, done: Done) -> Arrival | None:
        """A message of the frame pair. Raises ProtocolError."""
        if done.written:
            raise ProtocolError("the peer wrote on the pair of frames; the connection is closed")
        raw = self._pairs.take(number, done.nbytes)
        self._talk.ctl.arrived()
        head, payload = self._talk.heard(raw, bulk=False)
        kind = head.kind
        if kind is HELLO or kind is ECHO:
            self._talk.greeted(head)
            if self._answers:
                self._posts.greet(ECHO)
            return None
        return None if kind is CREDIT else (head, payload, None)

    def written(self, done: Done) -> Arrival | None:
        """A message that was written behind a body. Raises ProtocolError."""
        if not done.written:
            raise ProtocolError("the peer sent on the pair of bodies; the connection is closed")
        self._pairs.take_bulk()
        self._talk.bulk.arrived()
        if done.imm == HELLO_PLACE:
            self._talk.greeted_on_bulk()
            if self._answers:
                self._posts.greet_on_bulk()
            return None
        region, offset = read_place(done.imm)
        view = self.owner.view_of(region)
        if view is None or not 0 < done.nbytes <= len(view) - offset:
            raise ProtocolError("the peer told of a frame that lies outside of its region; the connection is closed")
        head, payload = self._talk.heard(bytes(view[offset : offset + done.nbytes]), bulk=True)
        return head, payload, offset
