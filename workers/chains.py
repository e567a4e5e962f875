"""Ensembles of a node beside the models that are their steps: neither comes, changes or goes so that they do not fit.

An ensemble is put where all of its steps are, or, where no executor has all of them, on those that have some, in legs
(`workers/legs.py`). A step that an ensemble uses is not unloaded, and a new version of it is
loaded only if the ensemble can use that one as well. This module loads nothing. Read `workers/library.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fabric.errors import ModelBroken, ProtocolError, Unavailable
from workers.ensembleconfig import check_steps
from workers.handover import Spent
from workers.legs import BETWEEN_BYTES, cut
from workers.statistics import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from workers.fitting import Fit
    from workers.handover import Loaded
    from workers.modelconfig import ModelConfig
    from workers.shelved import Shelved


_TIMES: Final = 4
"""In all, before and after the model's own code, and rows."""


class Chains:
    """The ensembles among a node's models, by name."""

    def __init__(self, models: Mapping[str, Shelved]) -> None:
        self._models = models

    def place(self, config: ModelConfig, file_bytes: int, by_itself: Callable[[int], Fit]) -> Fit:
        """Where a model goes; `by_itself` says where it would go if its instances needed so many bytes. Raises as `fit`
        and as that does."""
        fit = self.fit(config, by_itself(file_bytes))
        if fit.legs:  # what travels between its cards needs memory on them
            fit = self.fit(config, by_itself(BETWEEN_BYTES))
        return fit

    def fit(self, config: ModelConfig, fit: Fit) -> Fit:
        """Where a model goes that would go there by itself. Raises ModelBroken where an ensemble does not fit its
        steps, or a step not the ensembles that use it."""
        for name, chain in self._using(config.name):
            known = self._known()
            known[config.name] = config
            try:
                check_steps(chain, known)
            except ModelBroken as error:
                raise ModelBroken(f"model {config.name!r} is a step of ensemble {name!r}, and now {error}") from None
            uses = self._models[name].fit
            if uses is not None and not _needed(chain, uses, config.name) <= fit.numbers:
                raise ModelBroken(f"model {config.name!r} is a step of ensemble {name!r} and must be where that is")
        if not config.steps:
            return fit
        check_steps(config, self._known())
        placed = [self._models[step.model].fit for step in config.steps]
        everywhere = [each.numbers & fit.numbers if each is not None else frozenset() for each in placed]
        for step, numbers in zip(config.steps, everywhere, strict=True):
            if not numbers:
                told = f"no executor has step {step.model!r} of ensemble {config.name!r}"
                raise ModelBroken(f"{told}; look at their instance_group")
        legs = cut(everywhere)
        if len(legs) == 1:
            return replace(fit, numbers=legs[0].numbers)
        return replace(fit, numbers=frozenset().union(*(leg.numbers for leg in legs)), legs=legs)

    def check_still(self, config: ModelConfig, fit: Fit) -> None:
        """A model is about to serve where it was put when its load began. Raises ModelBroken where what was loaded or
        unloaded meanwhile does not go with it any more."""
        now = self.fit(config, fit)
        if (now.numbers, now.legs) != (fit.numbers, fit.legs):
            raise ModelBroken(
                f"a step of ensemble {config.name!r} was put elsewhere meanwhile; load the ensemble again"
            )

    def check_unload(self, name: str) -> None:
        """Raises Unavailable for a model that an ensemble uses."""
        for chain, _ in self._using(name):
            raise Unavailable(f"model {name!r} is a step of ensemble {chain!r}; unload that first")

    def count(self, steps: tuple[Loaded, ...], now: float) -> None:
        """Counts the steps of an ensemble's run as runs of their own models. Raises ProtocolError for what an executor
        of ours would not say: a model of it writes to its node."""
        for step in steps:
            if not step.refused and (len(step.runs_us) != _TIMES or min(step.runs_us) < 0):
                raise ProtocolError("told of a step without its times; look which of its models writes to its node")
            model = self._models.get(step.model)
            if model is None:  # it went meanwhile
                continue
            if step.refused:
                model.queue.tally.failed(BACKEND, 0.0)
                continue
            compute_us, input_us, output_us, rows = step.runs_us
            spent = Spent(compute_us, 0, input_us, output_us, rows, rows)
            model.queue.tally.ran(spent, leads=True, took_s=compute_us / 1e6, now=now)

    def _known(self) -> dict[str, ModelConfig]:
        return {name: model.config for name, model in self._models.items() if model.is_loaded and model.config}

    def _using(self, name: str) -> Iterator[tuple[str, ModelConfig]]:
        for chain, model in self._models.items():  # one that is being unloaded still has requests to run
            if model.config and any(step.model == name for step in model.config.steps):
                yield chain, model.config


def _needed(chain: ModelConfig, fit: Fit, step: str) -> frozenset[int]:
    """The executors that an ensemble needs one of its steps on."""
    found: frozenset[int] = frozenset()
    for leg in fit.legs:
        if any(each.model == step for each in chain.steps[leg.first : leg.upto]):
            found |= leg.numbers
    return found if fit.legs else fit.numbers
