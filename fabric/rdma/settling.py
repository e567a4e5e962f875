"""What the completions of a connection mean: which messages came, which bodies are gone, and whether it is broken.

A pair that meets an error gives everything back that is posted to it, each with a completion; those are only counted.
All of it is called under the connection's lock, in the loop's thread. This module tells nobody: the connection does.
Read `fabric/rdma/connection.py` next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import NodeLost, OverspillError
from fabric.rdma.pairs import BULK_RECEIVED, CTL_RECEIVED, CTL_SENT, MARKER, PIECE_SENT, kind_of
from fabric.rdma.verbs import ERRORS, OF_OUR_PORT

if TYPE_CHECKING:
    from fabric.rdma.asides import Asides
    from fabric.rdma.device import Done
    from fabric.rdma.intake import Arrival, Intake
    from fabric.rdma.outbox import Write
    from fabric.rdma.pairs import Pairs
    from fabric.rdma.posts import Posts

_RECEIVES = frozenset({CTL_RECEIVED, BULK_RECEIVED})


class Settled:  # mutable: filled by one batch
    """What one batch of completions brought: messages in their order, whole bodies, and the first error; `cut` says
    that it may be our own port that is down."""

    __slots__ = ("arrived", "broken", "cut", "whole")

    def __init__(self) -> None:
        self.arrived: list[Arrival] = []
        self.whole: list[Write] = []
        self.broken: OverspillError | None = None
        self.cut = False


class Settling:
    """Settles completions of one connection."""

    __slots__ = ("_asides", "_intake", "_pairs", "_posts")

    def __init__(self, pairs: Pairs, posts: Posts, intake: Intake, asides: Asides) -> None:
        self._pairs, self._posts, self._intake, self._asides = pairs, posts, intake, asides

    def settle(self, done: list[Done], *, draining: bool) -> Settled:
        """A batch; `draining` says that the connection is over, and that only its end is awaited."""
        settled = Settled()
        for each in done:
            try:
                self._settle(each, settled, draining=draining)
            except OverspillError as error:  # what came before it is good, and what comes behind it is flushed
                settled.broken = settled.broken or error
        if settled.arrived:
            self._asides.pulse.heard()
        return settled

    def _settle(self, done: Done, settled: Settled, *, draining: bool) -> None:
        kind, number = kind_of(done.wr_id)
        # Behind an error nothing is taken: what would be posted to a broken pair does not come back on soft-RoCE.
        over = draining or settled.broken is not None
        if kind in _RECEIVES and (done.status or over):
            self._pairs.receive_came_back()
        if kind == MARKER:
            self._pairs.came_back(number)
        elif done.status:
            if not draining:
                settled.cut = settled.cut or done.status in OF_OUR_PORT
                name = ERRORS.get(done.status, str(done.status))
                raise NodeLost(f"the rdma connection broke ({name}); its requests go another way")
        elif kind == PIECE_SENT:
            settled.whole += self._posts.settled(number)
        elif kind == CTL_SENT:
            self._pairs.sent(number)
        elif kind not in _RECEIVES:
            self._asides.settle(kind, number, time.monotonic())
        elif not over:
            message = self._intake.frame(number, done) if kind == CTL_RECEIVED else self._intake.written(done)
            if message is not None:
                settled.arrived.append(message)
