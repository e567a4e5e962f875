"""The two training loops: AdamW, one-cycle learning rate, the best validation epoch is kept. Needs torch.

`fit_mini` learns the real rows; `fit_base` learns SIMULATED rounds. They read no files and write none. Next:
`train.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.dispatch.etr import torch_nets
from examples.dispatch.etr.features import ID_BUCKETS, STOPS
from examples.dispatch.etr.network import BASE, MINI, MINI_SLOTS, MINI_WEEKDAYS, Array, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from examples.dispatch.etr.deliveries import Split
    from examples.dispatch.etr.rounds import Rounds

# Early answers cost 1.2 and late ones 1.8 a minute: the slopes published for the delivery-time model this one follows.
EARLY_SLOPE, LATE_SLOPE = 1.2, 1.8
# The stop features whose sum is the plan's step from one arrival to the next, and a unit of each in minutes.
PLAN_STEP = (("leg_s", 1.0 / 60.0), ("wait_before_min", 1.0), ("service_before_min", 1.0))
TABLES = ("ids.embedding", "ids.linear", "stop.grid")
SCALE_FLOOR = 1e-3  # a feature that never changes in training must not divide by nothing


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how hard to train."""

    epochs: int
    batch: int
    rate_max: float
    table_rate_max: float  # for embedding tables, whose rows see few examples each
    weight_decay: float
    table_decay: float
    dropout: float
    seed: int


MINI_RECIPE = Recipe(
    epochs=40, batch=128, rate_max=3e-3, table_rate_max=3e-3, weight_decay=0.1, table_decay=0.0, dropout=0.2, seed=7
)
BASE_RECIPE = Recipe(
    epochs=8, batch=512, rate_max=2e-3, table_rate_max=2e-3, weight_decay=0.02, table_decay=0.3, dropout=0.1, seed=11
)


def _normaliser(name: str, values: NDArray[np.float32]) -> list[tuple[str, Array]]:
    wide = values.astype(np.float64)
    scale = 1.0 / np.maximum(wide.std(axis=0), SCALE_FLOOR)
    return [(f"norm.{name}.mean", wide.mean(axis=0)), (f"norm.{name}.scale", scale)]


def _bucket_tables(buckets: tuple[int, ...]) -> list[tuple[str, Array]]:
    sizes = np.array(buckets, np.int32)
    return [("ids.buckets", sizes), ("ids.offsets", (np.cumsum(sizes) - sizes).astype(np.int32))]


def _batches(job: _Job, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """One epoch of batches. Rows of like length share a batch, since a batch is as wide as its longest route."""
    batch = job.recipe.batch
    order = rng.permutation(len(job.length))
    pool = batch * 32  # sorted within pools only, so that batches still differ from epoch to epoch
    pooled = [order[start : start + pool] for start in range(0, len(order), pool)]
    order = np.concatenate([rows[np.argsort(job.length[rows], kind="stable")] for rows in pooled])
    starts = rng.permutation(np.arange(0, len(order), batch))
    return (order[start : start + batch] for start in starts)


@dataclass(frozen=True, slots=True)
class _Job:
    """One training: what to minimise on some rows, and how good the tensors are now (lower is better)."""

    length: NDArray[np.integer]  # of each training row, in stops
    recipe: Recipe
    loss: Callable[[Any, NDArray[np.intp], Callable[[Any], Any]], Any]
    score: Callable[[Any], float]


def _fit(named: Any, job: _Job, report: Callable[[str], None]) -> Any:
    """Train in place and return the tensors of the best validation epoch."""
    import torch

    recipe = job.recipe
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    trained = [tensor for tensor in named.values() if tensor.requires_grad]
    tables = [tensor for name, tensor in named.items() if tensor.requires_grad and name.startswith(TABLES)]
    others = [tensor for name, tensor in named.items() if tensor.requires_grad and not name.startswith(TABLES)]
    groups = [
        {"params": tables, "weight_decay": recipe.table_decay},
        {"params": others, "weight_decay": recipe.weight_decay},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate_max)
    rates = [recipe.table_rate_max, recipe.rate_max]
    steps = recipe.epochs * -(-len(job.length) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)

    def drop(x: Any) -> Any:
        return torch.nn.functional.dropout(x, recipe.dropout)

    best_score, best = float("inf"), named
    for epoch in range(1, recipe.epochs + 1):
        for pick in _batches(job, rng):
            optimizer.zero_grad(set_to_none=True)
            job.loss(named, pick, drop).backward()
            torch.nn.utils.clip_grad_norm_(trained, 5.0)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            score = job.score(named)
            if score < best_score:
                best_score, best = score, {name: tensor.detach().clone() for name, tensor in named.items()}
        report(f"epoch {epoch}/{recipe.epochs}: validation MAE {score:.3f} min")
    return best


def fit_mini(split: Split, recipe: Recipe, report: Callable[[str], None]) -> Weights:
    """Learn minutes from order to receipt from the training rows, plain L1; picked by the validation rows."""
    import torch

    train, validation = split.train, split.validation
    fixed = dict(_normaliser("dense", train.inputs.dense) + _bucket_tables((MINI_WEEKDAYS, MINI_SLOTS)))
    named = torch_nets.initial(MINI, fixed, recipe.seed)
    with torch.no_grad():
        named["dense.linear.b"].fill_(float(np.median(train.minutes)))
    true, true_validation = torch.from_numpy(train.minutes), torch.from_numpy(validation.minutes)

    def loss(now: Any, pick: NDArray[np.intp], drop: Callable[[Any], Any]) -> Any:
        return (torch_nets.mini_forward(now, train.inputs.rows(pick), drop) - true[pick]).abs().mean()

    def score(now: Any) -> float:
        return float((torch_nets.mini_forward(now, validation.inputs) - true_validation).abs().mean())

    return torch_nets.to_weights(
        MINI, _fit(named, _Job(np.ones_like(train.minutes, np.int64), recipe, loss, score), report)
    )


def fit_base(train: Rounds, validation: Rounds, recipe: Recipe, report: Callable[[str], None]) -> Weights:
    """Learn arrival minutes from SIMULATED rounds: asymmetric L1 on deliveries, some plain L1 on all stops."""
    import torch

    real = train.inputs.mask > 0.5
    fixed = dict(
        _normaliser("dense", train.inputs.dense)
        + _normaliser("stops", train.inputs.stops[real])
        + _bucket_tables(ID_BUCKETS)
    )
    named = torch_nets.initial(BASE, fixed, recipe.seed)
    with torch.no_grad():  # start from the plan's own step: leg, wait and service
        for name, unit_min in PLAN_STEP:
            column = STOPS.index(name)
            named["head.skip.w"][column] = unit_min / float(fixed["norm.stops.scale"][column])
            named["head.out.b"] += unit_min * float(fixed["norm.stops.mean"][column])
    true = torch.from_numpy(train.true_min)
    length = train.inputs.mask.sum(axis=1).astype(np.int64)
    delivery, stop = torch.from_numpy(train.is_delivery), torch.from_numpy(real)

    def loss(now: Any, pick: NDArray[np.intp], drop: Callable[[Any], Any]) -> Any:
        inputs = train.inputs.rows(pick).trimmed()
        width = inputs.mask.shape[1]
        error = torch_nets.etr_forward(now, inputs, drop) - true[pick, :width]
        cost = torch.where(error < 0, -LATE_SLOPE * error, EARLY_SLOPE * error)
        return cost[delivery[pick, :width]].mean() + 0.3 * error[stop[pick, :width]].abs().mean()

    def score(now: Any) -> float:
        parts = [slice(start, start + 2048) for start in range(0, validation.inputs.pairs, 2048)]
        answers = torch.cat([torch_nets.etr_forward(now, validation.inputs.rows(part)) for part in parts]).numpy()
        return float(np.abs(answers - validation.true_min)[validation.is_delivery].mean())

    return torch_nets.to_weights(BASE, _fit(named, _Job(length, recipe, loss, score), report))
