"""route_plan: the pickup-and-delivery route of one rider, for many (rider, new order) pairs at once.

Read on in this order: contract.py (tensors), layout.py (numbers), solve.py (the call), batch.py, gather.py, load.py,
plan.py and the solvers insertion.py, starts.py with improve.py, branch.py and subsets.py, all over walk.py. The same on
a GPU: planner.py, then gpu/.
"""

from examples.dispatch.route_plan.contract import INPUTS, OUTPUTS, Answer, Batch, Options
from examples.dispatch.route_plan.layout import Option, Order, Pair, Rider, Solver, Status
from examples.dispatch.route_plan.solve import solve_batch, warm_up

__all__ = [
    "INPUTS",
    "OUTPUTS",
    "Answer",
    "Batch",
    "Option",
    "Options",
    "Order",
    "Pair",
    "Rider",
    "Solver",
    "Status",
    "solve_batch",
    "warm_up",
]
