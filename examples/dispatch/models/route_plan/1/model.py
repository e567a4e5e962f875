"""Serves route_plan: tensors in, routes out (examples/dispatch/route_plan/contract.py describes all of them).

It only hands over: what is checked and planned is in that package. Next: examples/dispatch/route_plan/planner.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.dispatch.route_plan import Batch, Option
from examples.dispatch.route_plan.planner import planner_for

if TYPE_CHECKING:
    from workers.backends.base import Inputs, ModelConfig, Outputs


class Model:
    """One request is one batch of (rider, new order) pairs; single-threaded, one executor runs per device."""

    def __init__(self, config: ModelConfig) -> None:
        self._subset_orders_max = config.whole_number("subset_orders_max", 13)
        self._planner = planner_for(config.parameter("device", "auto"))

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Plan the batch. Raises ValueError for tensors that are no batch; a bad pair gets a status instead."""
        try:
            batch = Batch.from_tensors(inputs)
        except ValueError as fault:  # said again here, so that it counts as a refusal and not as an accident
            raise ValueError(str(fault)) from None
        if batch.options[Option.SUBSET_ORDERS_MAX] > self._subset_orders_max:
            raise ValueError(f"option subset_orders_max must be at most {self._subset_orders_max} on this node")
        for name, array in self._planner.solve(batch).tensors().items():
            outputs[name] = array

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the disk cache."""
        self._planner.warm_up()
