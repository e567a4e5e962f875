"""The front of route_plan: one call takes a batch and gives the answers, single-threaded, without the interpreter lock.

numba is imported at the first call, so that whoever only builds requests needs numpy alone. Next: batch.py.
"""

import numpy as np

from examples.dispatch.route_plan.contract import Answer, Batch, Options, Tensor
from examples.dispatch.route_plan.layout import NO_STOP, ORDERS_MAX, STOPS_MAX, Order, Rider


def solve_batch(batch: Batch) -> Answer:
    """Plan every pair of a batch.

    A pair's answer depends on its own rows, its task number and the options only: it is the same in any batch, at any
    place. A pair that cannot be planned has a status other than OK (layout.Status); no input makes this raise.
    """
    from examples.dispatch.route_plan.batch import run
    from examples.dispatch.route_plan.memory import Replies, Tables

    pairs = len(batch.pairs)
    states = np.zeros((pairs, 3), np.int32)
    costs = np.zeros((pairs, 4), np.int64)
    routes = np.full((pairs, STOPS_MAX), NO_STOP, np.uint8)
    arrivals = np.full((pairs, ORDERS_MAX), -1, np.int32)
    tables = Tables(*(_read_only(array) for array in batch.tensors().values()))
    run(tables, Replies(states, costs, routes, arrivals))
    status, proved, late_max = np.ascontiguousarray(states.T)
    marginal, cost, delta_metres, late_sum = np.ascontiguousarray(costs.T)
    return Answer(status, proved, late_max, marginal, cost, delta_metres, late_sum, routes, arrivals)


def warm_up() -> None:
    """Compile the kernels (or load them from the disk cache) on one tiny pair."""
    riders = np.zeros((1, len(Rider)), np.int32)
    riders[0, [Rider.CAPACITY, Rider.SPEED]] = 1
    starts = np.zeros(2, np.int32)
    solve_batch(
        Batch.from_tensors(
            {
                "riders": riders,
                "orders": np.zeros((1, len(Order)), np.int32),
                "hand_start": starts,
                "hand": np.zeros(0, np.int32),
                "route_start": starts,
                "route": np.zeros(0, np.uint8),
                "pairs": np.array([[0, 0, -1, 0]], np.int32),
                "matrix_start": np.zeros(0, np.int64),
                "seconds": np.zeros(0, np.int32),
                "metres": np.zeros(0, np.int32),
                "options": Options().tensor(),
            }
        )
    )


def _read_only(array: Tensor) -> Tensor:
    # numba compiles read-only arrays apart from others, so all inputs are made alike; requests come read-only.
    view = array.view()
    view.flags.writeable = False
    return view
