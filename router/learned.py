"""What a router learns from each answer: how long a wire takes for so many bytes, and a worker for so much work.

Unknown is not zero: what was never measured is taken to be slow, and that belief fades with time, so that a new worker
is neither flooded nor forgotten. Both figures are exponentially weighted, so that what was is forgotten: about the last
ten answers count. This module never compares workers. Read `router/price.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import exp

from fabric.transport import WireName

_ALPHA = 0.1
"""Weight of a new sample once there are ten: the mean of about the last ten to twenty."""
_MIB = float(1 << 20)

_PRIOR: dict[WireName, tuple[float, float]] = {
    WireName.LOCAL: (0.05, 0.0),
    WireName.RDMA: (0.1, 0.2),
    WireName.RPC: (1.0, 1.5),
    WireName.SIM: (0.1, 0.1),
}
"""(ms, ms per MiB) before the first answer. Local: a doorbell takes 15 µs and moves no data. rpc: a grpcio echo takes
0.52 ms at 64 B and 31 ms at 16 MiB there and back (docs/benchmarks.md says how it is measured); RDMA lies between."""
_RIDGE = (64 * 1024 / _MIB) ** 2
"""Variance of the sizes below which they tell nothing of the slope: about 64 KiB apart."""

COMPUTE_PRIOR_MS = 30.0
"""What a request of a model that was never seen is taken to compute (Linkerd's prior for an unknown host)."""
_PRIOR_FADES_S = 2.0
"""A belief nobody could check is worth e times less after this long: then the unknown worker is tried."""
_STALE_S = 30.0
"""A figure that nobody renewed moves towards what the other workers show, e-fold in this time."""
_SLOW_START = 1.5
"""A worker that never ran the model is taken to be this much slower than those that did."""


class TransportLine:  # mutable: learns
    """Milliseconds of one wire to one peer, there and back, as intercept and slope over bytes."""

    __slots__ = ("_covariance", "_mean_mib", "_mean_ms", "_prior", "_variance", "samples")

    def __init__(self, wire: WireName) -> None:
        self._prior = _PRIOR[wire]
        self._mean_mib = self._mean_ms = self._variance = self._covariance = 0.0
        self.samples = 0

    def learn(self, nbytes: int, took_ms: float) -> None:
        """Takes in one round trip of `nbytes` both ways together."""
        self.samples += 1
        mib = nbytes / _MIB
        weight = max(_ALPHA, 1.0 / self.samples)
        off_mib, off_ms = mib - self._mean_mib, took_ms - self._mean_ms
        self._mean_mib += weight * off_mib
        self._mean_ms += weight * off_ms
        keep = 1.0 - weight
        self._variance = keep * (self._variance + weight * off_mib * off_mib)
        self._covariance = keep * (self._covariance + weight * off_mib * off_ms)

    def predict_ms(self, nbytes: int) -> float:
        """What a round trip of `nbytes` should take."""
        fixed_ms, per_mib = self._prior
        if not self.samples:
            return fixed_ms + per_mib * nbytes / _MIB
        slope = (self._covariance + _RIDGE * per_mib) / (self._variance + _RIDGE)
        slope = max(slope, 0.0)
        predicted = self._mean_ms + slope * (nbytes / _MIB - self._mean_mib)
        # A line through large sizes may fall below zero at small ones, where the wire's own cost remains.
        return predicted if predicted > 0.0 else min(fixed_ms, self._mean_ms)


class _Mean:  # mutable: learns
    __slots__ = ("at_s", "ms", "samples")

    def __init__(self) -> None:
        self.ms = self.at_s = 0.0
        self.samples = 0

    def learn(self, ms: float, now: float) -> None:
        self.samples += 1
        self.ms += max(_ALPHA, 1.0 / self.samples) * (ms - self.ms)
        self.at_s = now


def bucket_of(nbytes: int) -> int:
    """The size bucket of a body: its power of two."""
    return nbytes.bit_length()


class Work:  # mutable: learns
    """Compute milliseconds per (model, size bucket) over all workers: what a worker is compared with."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[str, dict[int, _Mean]] = {}

    def learn(self, model: str, bucket: int, ms: float, now: float) -> None:
        """Takes in one run."""
        means = self._buckets.setdefault(model, {})
        mean = means.get(bucket)
        if mean is None:
            mean = means[bucket] = _Mean()
        mean.learn(ms, now)

    def predict_ms(self, model: str, bucket: int) -> float | None:
        """The mean of all workers; from the nearest size, scaled up with it, where this one is unknown."""
        means = self._buckets.get(model)
        if not means:
            return None
        mean = means.get(bucket)
        if mean is not None:
            return mean.ms
        nearest = min(means, key=lambda known: (abs(known - bucket), known))
        return means[nearest].ms * 2.0 ** max(0, bucket - nearest)


class Speed:  # mutable: learns
    """Compute milliseconds of one worker per (model, size bucket). `born_s`: since when it is known."""

    __slots__ = ("_born_s", "_means", "_slowness", "_work")

    def __init__(self, work: Work, born_s: float) -> None:
        self._work = work
        self._born_s = born_s
        self._means: dict[tuple[str, int], _Mean] = {}
        self._slowness: dict[str, _Mean] = {}

    def learn(self, model: str, bucket: int, ms: float, now: float) -> None:
        """Takes in one run on this worker."""
        usual = self._work.predict_ms(model, bucket)
        self._work.learn(model, bucket, ms, now)
        mean = self._means.get((model, bucket))
        if mean is None:
            mean = self._means[model, bucket] = _Mean()
        mean.learn(ms, now)
        if usual:
            slowness = self._slowness.get(model)
            if slowness is None:
                slowness = self._slowness[model] = _Mean()
            slowness.learn(ms / usual, now)

    def known(self, model: str, bucket: int) -> bool:
        """Whether this worker ran such a request."""
        return (model, bucket) in self._means

    def predict_ms(self, model: str, bucket: int, now: float) -> float:
        """What such a request should compute here."""
        mean = self._means.get((model, bucket))
        if mean is not None and now - mean.at_s < 1.0:
            return mean.ms
        usual = self._work.predict_ms(model, bucket)
        if mean is not None:
            if usual is None or usual >= mean.ms:
                return mean.ms
            # Only a bad figure is doubted with time: a worker that had one slow answer is tried again.
            return usual + (mean.ms - usual) * exp(-(now - mean.at_s) / _STALE_S)
        doubt = exp(-(now - self._born_s) / _PRIOR_FADES_S)
        if usual is None:
            return COMPUTE_PRIOR_MS * doubt
        slowness = self._slowness.get(model)
        return usual * (slowness.ms if slowness is not None else 1.0 + (_SLOW_START - 1.0) * doubt)
