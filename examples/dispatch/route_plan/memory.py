"""What the loop over a batch hands around: the request's tables, the memory of one task, and what riders' hands cost.

They are named tuples because numba can take those apart; they hold arrays and nothing else. Next: gather.py.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.load import Table
from examples.dispatch.route_plan.walk import Ints, Legs

Bytes = NDArray[np.uint8]
ROW, STATUS, COUNT = range(3)  # places of Work.held
UNKNOWN = -1


class Tables(NamedTuple):
    """The tensors of a request, in the order of contract.INPUTS."""

    riders: Table
    orders: Table
    hand_start: Table
    hand: Table
    route_start: Table
    route: Bytes
    pairs: Table
    matrix_start: Ints
    seconds: Table
    metres: Table
    options: Ints


class Replies(NamedTuple):
    """Where answers go: states [P, 3]: status, proved, max lateness; costs [P, 4]: marginal, J, metres, lateness."""

    states: Table
    costs: Ints
    routes: Bytes
    arrivals: Table


class Work(NamedTuple):
    """The memory that one task is loaded into (load.py), its route, and what is loaded: rider row, status, orders."""

    legs: Legs
    stops: Ints
    par: Ints
    pickups: Ints
    spots: Ints
    rows: Ints
    seq: Ints
    held: Ints


class Hands(NamedTuple):
    """What is known of each rider's orders in hand alone."""

    status: Ints
    length: Ints
    cost: Ints
    metres: Ints
    route: Bytes
