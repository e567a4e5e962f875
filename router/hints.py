"""What a caller's hint of the cost is worth: learned from how well the hints of a model foretold its runs.

A hint is a number that grows with the cost, in any unit. How much of a hint to believe is the slope of a regression of
what runs took on what was hinted, both as logarithms: 1 for hints that are right, about 0.9 for an error of 30 %, 0 for
hints that tell nothing or lie. What is not believed falls back to the usual request of the model, so that wrong hints
are never worse than none. The unit of work stays the caller's own, so that many routers mean the same by it. This
module prices nothing. Read `router/learned.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import exp, isfinite, log

from fabric.errors import InvalidArgument
from router.learned import COMPUTE_PRIOR_MS, Kind

_ALPHA = 0.005
"""Weight of a new pair once there are two hundred: a slope needs many, and callers change their minds seldom."""
_RIDGE = 0.02
"""Variance of the logarithms of hints that are all alike and tell nothing (within 15 % of each other)."""
_BELIEVED_FIRST = 0.5
"""Before anything was learned half of a hint is believed."""
_PAIRS_FIRST = 20.0
"""As many pairs weigh as much as that first belief."""


class HintedKind(Kind):  # mutable: learns
    """Requests of one model that come with a hint. A unit of work is a unit of the hint, after doubt."""

    __slots__ = ("_covariance", "_mean_hint", "_mean_work", "_pairs", "_variance")

    def __init__(self, model: str) -> None:
        super().__init__(model, 0, {})
        self._mean_hint = self._mean_work = self._variance = self._covariance = 0.0
        self._pairs = 0

    @property
    def believed(self) -> float:
        """How much of a hint is believed, from 0 to 1."""
        pairs, first = self._pairs, _PAIRS_FIRST * _RIDGE
        slope = (pairs * self._covariance + first * _BELIEVED_FIRST) / (pairs * self._variance + first)
        return min(1.0, max(0.0, slope))

    def units(self, hint: float) -> float:
        """The hint, drawn towards the usual one as far as hints were wrong."""
        if not self._pairs:
            return hint
        off = log(hint) - self._mean_hint
        return exp(self._mean_hint + self.believed * off)

    def heard(self, hint: float, worked: float) -> None:
        """A request with this hint turned out to be so much work, on a worker whose slowness was taken out."""
        if worked <= 0.0:
            return
        pairs = self._pairs = self._pairs + 1
        weight = max(_ALPHA, 1.0 / pairs)
        off_hint, off_work = log(hint) - self._mean_hint, log(worked) - self._mean_work
        step = weight * off_hint
        self._mean_hint += step
        self._mean_work += weight * off_work
        keep = 1.0 - weight
        self._variance = keep * (self._variance + step * off_hint)
        self._covariance = keep * (self._covariance + step * off_work)

    def usual_ms(self) -> float | None:
        """Milliseconds of one unit over all workers; before the first run a usual request is taken to be slow."""
        if self._mean.samples:
            return self._mean.ms
        return COMPUTE_PRIOR_MS / exp(self._mean_hint) if self._pairs else None


class Hints:  # mutable: learns
    """The hinted kinds of one router, by model."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, HintedKind] = {}

    def kind(self, model: str) -> HintedKind:
        """The kind of requests of a model that come with a hint."""
        kind = self._kinds.get(model)
        if kind is None:
            kind = self._kinds[model] = HintedKind(model)
        return kind


def check_hint(hint: float | None) -> float:
    """The hint as a number, 0 for none. Raises InvalidArgument for one that is no cost."""
    if hint is None:
        return 0.0
    if isinstance(hint, bool) or not isinstance(hint, int | float) or not isfinite(hint) or hint <= 0.0:
        raise InvalidArgument(f"the cost hint is {hint!r}; give a number above zero that grows with the cost, or none")
    return float(hint)
