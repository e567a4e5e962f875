"""What one route_plan request holds and what comes back: named tensors, and nothing else.

Tensors of a request (all integers, C order; R riders, M orders, P pairs):
  riders       int32 [R, 10]   columns of layout.Rider
  orders       int32 [M, 13]   columns of layout.Order
  hand_start   int32 [R + 1]   rider r holds the orders hand[hand_start[r] : hand_start[r + 1]]
  hand         int32 [H]       rows of the order table
  route_start  int32 [R + 1]   the route in hand likewise; empty where the planner shall make one
  route        uint8 [T]       stop codes: local order i (its place in the rider's hand) has pickup 2i+1, delivery 2i+2
  pairs        int32 [P, 4]    columns of layout.Pair: rider, up to two new orders (-1 for none), task number
  matrix_start int64 [P + 1]   matrix mode: pair p's matrices are seconds/metres[matrix_start[p] : matrix_start[p + 1]],
                               [N, N] with N = 2n + 1 (+ 1 with an end stop): rider, the stops in hand, new ones, end.
                               int64 [0] means coord mode: legs from the tables' coordinates
  seconds      int32 [X]       int32 [0] in coord mode
  metres       int32 [X]
  options      int64 [11]      places of layout.Option
Tensors of a reply:
  status int32 [P] · proved int32 [P] · late_max int32 [P] (s) · marginal int64 [P] (J with minus J without the new
  orders) cost int64 [P] (J with) · delta_metres int64 [P] · late_sum int64 [P] (s)
  stops uint8 [P, 32] (255 after the last; a new order's local number follows those in hand) · arrivals int32 [P, 16]
  (s)
It never computes a route. Next: solve.py, then batch.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.layout import (
    COST_WEIGHT_MAX,
    DETOUR_PERMILLE_MAX,
    ORDERS_MAX,
    STARTS_MAX,
    STOPS_MAX,
    SUBSET_ORDERS_LIMIT,
    Option,
    Order,
    Pair,
    Rider,
    Solver,
)

Tensor = NDArray[Any]

# name, dtype, shape (-1: any)
INPUTS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("riders", "int32", (-1, len(Rider))),
    ("orders", "int32", (-1, len(Order))),
    ("hand_start", "int32", (-1,)),
    ("hand", "int32", (-1,)),
    ("route_start", "int32", (-1,)),
    ("route", "uint8", (-1,)),
    ("pairs", "int32", (-1, len(Pair))),
    ("matrix_start", "int64", (-1,)),
    ("seconds", "int32", (-1,)),
    ("metres", "int32", (-1,)),
    ("options", "int64", (len(Option),)),
)
OUTPUTS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("status", "int32", (-1,)),
    ("proved", "int32", (-1,)),
    ("late_max", "int32", (-1,)),
    ("marginal", "int64", (-1,)),
    ("cost", "int64", (-1,)),
    ("delta_metres", "int64", (-1,)),
    ("late_sum", "int64", (-1,)),
    ("stops", "uint8", (-1, STOPS_MAX)),
    ("arrivals", "int32", (-1, ORDERS_MAX)),
)

# place, name, least, most
_RANGES = (
    (Option.SOLVER, "solver", 0, len(Solver) - 1),
    (Option.STARTS, "starts", 1, STARTS_MAX),
    (Option.SEED, "seed", 0, 2**63 - 1),
    (Option.DETOUR_PERMILLE, "detour_permille", 1, DETOUR_PERMILLE_MAX),
    (Option.METRE_COST, "metre_cost", 0, COST_WEIGHT_MAX),
    (Option.LATE_COST, "late_cost", 0, COST_WEIGHT_MAX),
    (Option.WAIT_COST, "wait_cost", 0, COST_WEIGHT_MAX),
    (Option.FINISH_COST, "finish_cost", 0, COST_WEIGHT_MAX),
    (Option.HARD_TW, "hard_tw", 0, 1),
    (Option.NODES_MAX, "nodes_max", 1, 10**7),
    (Option.SUBSET_ORDERS_MAX, "subset_orders_max", 0, SUBSET_ORDERS_LIMIT),
)


@dataclass(frozen=True, slots=True)
class Options:
    """How to plan. Costs are integer weights: J = metres·a + lateness·b·weight + waiting·c + finish time·h."""

    solver: Solver = Solver.AUTO
    starts: int = 32
    seed: int = 0
    detour_permille: int = 1300  # street over straight distance; 1.3 is the usual figure for cities
    metre_cost: int = 1
    late_cost: int = 20
    wait_cost: int = 2
    finish_cost: int = 0
    hard_tw: bool = False
    nodes_max: int = 2_000_000  # of one exact search, about 0.2 s
    subset_orders_max: int = 12  # the 3^n table of 12 orders takes 25 MB

    def tensor(self) -> NDArray[np.int64]:
        """Return the option vector of a request."""
        return np.array([int(getattr(self, name)) for _, name, _, _ in _RANGES], np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one request; dtypes and shapes are checked here, what stands in them pair by pair."""

    riders: Tensor
    orders: Tensor
    hand_start: Tensor
    hand: Tensor
    route_start: Tensor
    route: Tensor
    pairs: Tensor
    matrix_start: Tensor
    seconds: Tensor
    metres: Tensor
    options: Tensor

    def __post_init__(self) -> None:
        """Refuse with ValueError, one sentence about the first fault, what the kernels could not read safely."""
        for name, dtype, shape in INPUTS:
            _check(name, dtype, shape, getattr(self, name))
        for start in ("hand_start", "route_start"):
            if len(getattr(self, start)) != len(self.riders) + 1:
                raise ValueError(f"tensor {start} must have one entry more than riders ({len(self.riders) + 1})")
        if len(self.matrix_start) not in (0, len(self.pairs) + 1):
            raise ValueError(f"tensor matrix_start must have {len(self.pairs) + 1} entries, or 0 in coord mode")
        if len(self.seconds) != len(self.metres):
            raise ValueError("tensors seconds and metres must have equal lengths")
        for place, name, least, most in _RANGES:
            value = int(self.options[place])
            if not least <= value <= most:
                raise ValueError(f"option {name} is {value}, it must lie between {least} and {most}")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "Batch":
        """Take over a request's tensors. Raises ValueError with one sentence about the first fault."""
        return cls(*(_taken(name, tensors) for name, _, _ in INPUTS))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, as they travel."""
        return {name: getattr(self, name) for name, _, _ in INPUTS}


@dataclass(frozen=True, slots=True)
class Answer:
    """The tensors of one reply; the module docstring gives dtypes, shapes and units."""

    status: Tensor
    proved: Tensor
    late_max: Tensor
    marginal: Tensor
    cost: Tensor
    delta_metres: Tensor
    late_sum: Tensor
    stops: Tensor
    arrivals: Tensor

    def __post_init__(self) -> None:
        """Refuse with ValueError what is no reply."""
        for name, dtype, shape in OUTPUTS:
            _check(name, dtype, shape, getattr(self, name))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "Answer":
        """Take over a reply's tensors. Raises ValueError where they are not those of a reply."""
        return cls(*(_taken(name, tensors) for name, _, _ in OUTPUTS))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, as they travel."""
        return {name: getattr(self, name) for name, _, _ in OUTPUTS}


def _taken(name: str, tensors: Mapping[str, Any]) -> Tensor:
    try:
        return np.ascontiguousarray(tensors[name])
    except KeyError:
        raise ValueError(f"tensor {name} is missing, send it (an empty one where it does not apply)") from None


def _check(name: str, dtype: str, shape: tuple[int, ...], array: Tensor) -> None:
    if array.dtype != np.dtype(dtype):
        raise ValueError(f"tensor {name} has dtype {array.dtype}, send {dtype}")
    if array.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, array.shape, strict=True)):
        raise ValueError(f"tensor {name} has shape {list(array.shape)}, send {list(shape)} (-1: any length)")
    if not array.flags.c_contiguous:
        raise ValueError(f"tensor {name} is not contiguous, pass it through numpy.ascontiguousarray")
