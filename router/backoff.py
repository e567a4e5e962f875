"""How long to wait before trying again: doubling with full jitter, drawn from a seeded source.

tenacity gives the strategy and its composition; its own jitter draws from a global source that no seed of ours
reaches, so the draw is made here. The same strategy paces the attempts of a request and the opening of a link. This
module never sleeps and never decides whether to try again: `router/attempt.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, wait_exponential
from tenacity.wait import wait_base

if TYPE_CHECKING:
    from random import Random

_IDLE = Retrying()
"""tenacity asks for the object that retries; ours only counts, so one that is never run will do."""


class FullJitter(wait_base):
    """A tenacity wait strategy: uniform between zero and an exponential that starts at `first_s` and ends at `max_s`.

    Full jitter spreads callers that failed at one instant over the whole interval: they do not come back at one.
    """

    def __init__(self, first_s: float, max_s: float, rng: Random) -> None:
        self._ceiling = wait_exponential(multiplier=first_s, max=max_s)
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        """Draws one wait, as tenacity asks for it."""
        return self._rng.uniform(0.0, self._ceiling(retry_state))

    def after(self, attempts: int) -> float:
        """Seconds to wait after the attempt with this number, counted from 1."""
        state = RetryCallState(_IDLE, None, (), {})
        state.attempt_number = attempts
        return self(state)
