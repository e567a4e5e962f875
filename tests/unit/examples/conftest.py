"""What the dispatch tests share: the data folder, and seeded tasks with every feature in use."""

import random
from pathlib import Path

import pytest

from examples.dispatch.data.folder import data_folder
from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task


@pytest.fixture(scope="session")
def data() -> Path:
    folder = data_folder()
    if folder is None:
        pytest.skip("no data folder: set OVERSPILL_DATA, or put the sets in shared/data beside the checkout")
    return folder


def make_task(rng: random.Random, hand: int, new: int) -> Task:
    """One soft-late task: clustered shops, tight capacity, orders on board, an end stop now and then."""
    shops = [(rng.randrange(4000), rng.randrange(4000)) for _ in range(3)]

    def order(on_board: bool) -> OrderRow:
        ready = rng.randrange(1200)
        return OrderRow(
            pickup=rng.choice(shops),
            delivery=(rng.randrange(4000), rng.randrange(4000)),
            ready=ready,
            due=ready + rng.randrange(600, 2400),
            pickup_s=rng.randrange(240),
            delivery_s=rng.randrange(240),
            load=rng.randrange(1, 4),
            weight=rng.randrange(4),
            on_board=on_board,
        )

    rider = RiderRow(
        number=rng.randrange(1000),
        x=rng.randrange(4000),
        y=rng.randrange(4000),
        start=rng.randrange(600),
        capacity=rng.randrange(5, 9),
        speed=rng.choice((200, 320)),
        end=(rng.randrange(4000), rng.randrange(4000)) if rng.random() < 0.3 else None,
    )
    held = tuple(order(rng.random() < 0.3) for _ in range(hand))
    return Task(rider, held, tuple(order(on_board=False) for _ in range(new)), number=rng.randrange(10**6))
