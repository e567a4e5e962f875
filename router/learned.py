"""What a router learns from each answer: how long a wire takes for so many bytes, and a worker for so much work.

Unknown is not zero: what was never measured is taken to be slow. But a belief that nobody checks fades with time, so
that a new worker, and one that once was slow, is tried again: neither flooded nor forgotten. All figures are
exponentially weighted, so that what was is forgotten: about the last ten answers count. This module never compares
workers. Read `router/price.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.
# ruff: noqa: FURB136 - each request passes here several times, and a comparison costs a fifth of `max`.

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
_FRESH_S = 1.0
"""A figure that was renewed this lately is not doubted."""
_STALE_S = 30.0
"""A wire's figure that nobody renewed is worth e times less after this long."""
_DOUBT_FIRST_S, _DOUBT_MAX_S = 5.0, 60.0
"""A worker's figure that nobody renewed is worth e times less after this long: one that was ten times slower than the
others for a while, and gets nothing for it, is tried again twelve seconds after its last run. Each try that finds it as
slow as before doubles that, so that one that is slow for good costs few requests: at last one in two minutes."""
_SCALED_BUCKETS_MAX = 4
"""A size that was never seen is taken to need more, with its bytes, but 16 times at most: small runs are mostly
overhead."""
_RATIO_ALWAYS, _RATIO_EVERY = 16, 8
"""A worker's slowness is compared in its first runs of a kind, then in every eighth: it is asked for new sizes only."""
_SLOW_START = 1.5
"""A worker that never ran the model is taken to be this much slower than those that did."""
_REPLY_UNKNOWN_MIN_BYTES = 64 * 1024
"""Small replies are copied below this size anyway."""
_REPLY_UNKNOWN_MAX_BYTES = 4 << 20
"""A reply as large as its request is common (one row out for one row in);
beyond this a guess would starve the arena."""


class TransportLine:  # mutable: learns
    """Milliseconds of one wire to one peer, there and back, as intercept and slope over bytes.

    `rtt_ms` is a guess of the network's own round trip, such as a registry may have; the first answers replace it.
    """

    __slots__ = ("_at_s", "_covariance", "_mean_mib", "_mean_ms", "_prior", "_variance", "samples")

    def __init__(self, wire: WireName, rtt_ms: float = 0.0) -> None:
        fixed_ms, per_mib = _PRIOR[wire]
        self._prior = fixed_ms + (0.0 if wire is WireName.LOCAL else rtt_ms), per_mib
        self._mean_mib = self._mean_ms = self._variance = self._covariance = self._at_s = 0.0
        self.samples = 0

    def learn(self, nbytes: int, took_ms: float, now: float) -> None:
        """Takes in one round trip of `nbytes` both ways together."""
        samples = self.samples = self.samples + 1
        weight = _ALPHA if samples > 10 else 1.0 / samples
        unchecked_s = now - self._at_s - _FRESH_S
        if unchecked_s > 0.0 and took_ms < self._mean_ms:
            # A bad figure is outweighed by as much as it was doubted. If each good answer took a tenth off it, with a
            # minute between them, one answer of 54 ms would cost a local node its requests for twenty minutes.
            doubt = 1.0 - exp(-unchecked_s / _STALE_S)
            weight = doubt if doubt > weight else weight
        self._at_s = now
        off_mib, off_ms = nbytes / _MIB - self._mean_mib, took_ms - self._mean_ms
        step = weight * off_mib
        self._mean_mib += step
        self._mean_ms += weight * off_ms
        keep = 1.0 - weight
        self._variance = keep * (self._variance + step * off_mib)
        self._covariance = keep * (self._covariance + step * off_ms)

    def predict_ms(self, nbytes: int, now: float) -> float:
        """What a round trip of `nbytes` should take. A bad figure that nobody checked fades towards the usual one: the
        first call of a connection is often slow."""
        fixed_ms, per_mib = self._prior
        mib = nbytes / _MIB
        usual_ms = fixed_ms + per_mib * mib
        if not self.samples:
            return usual_ms
        measured_ms = self._mean_ms
        slope = (self._covariance + _RIDGE * per_mib) / (self._variance + _RIDGE)
        if slope > 0.0:
            measured_ms += slope * (mib - self._mean_mib)
        if measured_ms <= 0.0:
            # A line through large sizes may fall below zero at small ones, where the wire's own cost remains.
            measured_ms = min(fixed_ms, self._mean_ms)
        unchecked_s = now - self._at_s - _FRESH_S
        if unchecked_s < 0.0 or measured_ms <= usual_ms:
            return measured_ms
        return usual_ms + (measured_ms - usual_ms) * exp(-unchecked_s / _STALE_S)


class _Mean:  # mutable: learns
    __slots__ = ("at_s", "doubt_s", "ms", "samples")

    def __init__(self) -> None:
        self.ms = self.at_s = 0.0
        self.doubt_s = _DOUBT_FIRST_S
        self.samples = 0

    def learn(self, ms: float, now: float) -> None:
        samples = self.samples = self.samples + 1
        weight = _ALPHA if samples > 10 else 1.0 / samples
        unchecked_s = now - self.at_s - _FRESH_S
        if unchecked_s > 0.0 and samples > 1:
            # What was learned long ago counts as little as it was believed: one new run outweighs ten old ones.
            weight = max(weight, 1.0 - exp(-unchecked_s / self.doubt_s))
            longer_s = self.doubt_s * 2.0 if self.doubt_s * 2.0 < _DOUBT_MAX_S else _DOUBT_MAX_S
            self.doubt_s = _DOUBT_FIRST_S if ms < self.ms / 2.0 else longer_s
        self.ms += weight * (ms - self.ms)
        self.at_s = now


class Kind:  # mutable: learns
    """Requests of one model and one size (a power of two of the body's bytes): what they cost over all workers.

    `reply_bytes` is the largest reply seen lately: the slot that is leased for the next one must hold it. Too large
    costs address space only, too small one more round trip, never a second run.
    """

    __slots__ = ("_family", "_mean", "bucket", "model", "reply_bytes")

    def __init__(self, model: str, bucket: int, family: dict[int, Kind]) -> None:
        self.model = model
        self.bucket = bucket
        self._family = family
        self._mean = _Mean()
        self.reply_bytes = min(max(_REPLY_UNKNOWN_MIN_BYTES, 1 << bucket), _REPLY_UNKNOWN_MAX_BYTES)

    def learn(self, ms: float, reply_bytes: int, now: float) -> None:
        """Takes in one run; the largest reply fades by a sixty-fourth with each smaller one."""
        fading = self.reply_bytes - (self.reply_bytes >> 6) if self._mean.samples else 0
        self.reply_bytes = fading if fading > reply_bytes else reply_bytes
        self._mean.learn(ms, now)

    def units(self, hint: float) -> float:  # noqa: ARG002 - kinds with hints use it
        """How many units of work a request is: here a unit is one request."""
        return 1.0

    def usual_ms(self) -> float | None:
        """The mean of all workers; from the nearest size of the model, scaled up with it, where this one is unknown."""
        if self._mean.samples:
            return self._mean.ms
        known = [kind for kind in self._family.values() if kind._mean.samples]
        if not known:
            return None
        nearest = min(known, key=lambda kind: (abs(kind.bucket - self.bucket), kind.bucket))
        steps = min(max(0, self.bucket - nearest.bucket), _SCALED_BUCKETS_MAX)
        return nearest._mean.ms * 2.0**steps


class Work:  # mutable: learns
    """The kinds of requests of one router."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str, dict[int, Kind]] = {}

    def kind(self, model: str, body_bytes: int) -> Kind:
        """The kind of a request."""
        family = self._models.get(model)
        if family is None:
            family = self._models[model] = {}
        bucket = body_bytes.bit_length()
        kind = family.get(bucket)
        if kind is None:
            kind = family[bucket] = Kind(model, bucket, family)
        return kind


class Speed:  # mutable: learns
    """Compute milliseconds of one worker for each kind of request."""

    __slots__ = ("_asked_s", "_means", "_slowness")

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}  # since when each model that never ran here is asked for
        self._means: dict[Kind, _Mean] = {}
        self._slowness: dict[str, _Mean] = {}

    def learn(self, kind: Kind, ms: float, now: float) -> None:
        """Takes in one run on this worker, before its kind does: it is compared with all that went before."""
        mean = self._means.get(kind)
        if mean is None:
            mean = self._means[kind] = _Mean()
        mean.learn(ms, now)
        if mean.samples > _RATIO_ALWAYS and mean.samples % _RATIO_EVERY:
            return
        slowness = self._slowness.get(kind.model)
        if slowness is None:
            slowness = self._slowness[kind.model] = _Mean()
        usual = kind.usual_ms()
        slowness.learn(ms / usual if usual else 1.0, now)

    def told(self, kind: Kind, ms: float, now: float) -> None:
        """The worker's own page says what such a request takes there: it saw every run, and we saw ours only."""
        mean = self._means.get(kind)
        if mean is None:
            mean = self._means[kind] = _Mean()
        mean.samples += 1
        mean.ms, mean.at_s = ms, now

    def known(self, kind: Kind) -> bool:
        """Whether this worker ran such a request."""
        return kind in self._means

    def predict_ms(self, kind: Kind, now: float) -> float:
        """What such a request should compute here, less what time takes off a figure that nobody checked."""
        mean = self._means.get(kind)
        if mean is not None:
            unchecked_s = now - mean.at_s - _FRESH_S
            return mean.ms if unchecked_s < 0.0 else mean.ms * exp(-unchecked_s / mean.doubt_s)
        if kind.model in self._slowness:
            return self.full_ms(kind)
        since_s = self._asked_s.setdefault(kind.model, now)
        return self.full_ms(kind) * exp((since_s - now) / _PRIOR_FADES_S)

    def full_ms(self, kind: Kind) -> float:
        """The same with nothing taken off: what a dispatch adds to the work before this worker, so that one that looks
        cheap because nobody tried it gets one request, not all."""
        mean = self._means.get(kind)
        if mean is not None:
            return mean.ms
        usual = kind.usual_ms()
        if usual is None:
            return COMPUTE_PRIOR_MS
        slowness = self._slowness.get(kind.model)
        return usual * (_SLOW_START if slowness is None else slowness.ms)
