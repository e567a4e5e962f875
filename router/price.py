"""What a request would cost on a worker, in milliseconds, term by term.

    price = transport(peer, bytes, wire) + (outstanding work + own unseen dispatches + this request's work) / speed

Local and remote workers are priced alike: a local one is cheap because its transport is, and a full local queue makes a
remote one cheaper. No threshold decides. The terms of the winner travel with the reply's trace. Work is kept in
milliseconds of the worker that does it, so its measured speed is in the figure already. This module never picks:
`router/pick.py` does.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.learned import Kind, Speed, TransportLine
    from router.load import WorkAhead

Terms = tuple[float, float, float, float, float]
"""(total, transport, queue, unseen, compute), all in ms: a tuple, because each request prices several workers."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one worker was expected to cost, in milliseconds."""

    transport_ms: float
    """The way there and back for the bytes of request and reply."""
    queue_ms: float
    """Until the work of the worker's last report is done."""
    unseen_ms: float
    """Own dispatches that this report had not seen."""
    compute_ms: float
    """This request's own work at the worker's measured speed."""

    @classmethod
    def of(cls, terms: Terms) -> Price:
        """The terms with their names."""
        return cls(*terms[1:])

    @property
    def total_ms(self) -> float:
        """The sum, by which workers are compared."""
        return self.transport_ms + self.queue_ms + self.unseen_ms + self.compute_ms


def price(
    line: TransportLine, ahead: WorkAhead, speed: Speed, kind: Kind, nbytes: int, now: float, units: float = 1.0
) -> Terms:
    """Prices one worker for a request of this kind, of so many `units` of its work, whose body and reply take `nbytes`
    together."""
    transport_ms = line.predict_ms(nbytes, now)
    queue_ms, unseen_ms = ahead.wait_ms(now)
    compute_ms = speed.predict_ms(kind, now) * units
    return transport_ms + queue_ms + unseen_ms + compute_ms, transport_ms, queue_ms, unseen_ms, compute_ms
