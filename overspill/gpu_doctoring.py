"""The checks of `overspill doctor` about GPUs: the classes of faults, the driver, the cards.

It asks the management library and makes no context. Read `workers/cuda/nvml.py` for how.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fabric.errors import ConfigError, MissingDependency, OverspillError
from overspill.findings import Finding, Grade
from workers.cuda.faults import read_faults
from workers.cuda.units import in_gib
from workers.cuda.visible import ORDER_VARIABLE, VARIABLE, shown_cards
from workers.device import OverseerError, open_overseer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.device import Overseer


def gpu_findings() -> Iterator[Finding]:
    """What stands in the way of GPUs, and which there are."""
    try:
        book = read_faults()
    except OverspillError as error:
        yield Finding(Grade.BROKEN, "fault classes", str(error))
        return
    fatal = sum(kind.value == "fatal" for _, _, kind in book.cuda)
    yield Finding(
        Grade.OK,
        "fault classes",
        f"version {book.version}: {fatal} of {len(book.cuda)} CUDA errors end a context, {len(book.xids)} Xids are"
        f" known; {book.source}",
    )
    try:
        overseer = open_overseer("cuda", "")
    except MissingDependency as error:
        yield Finding(Grade.MISSING, "gpu", str(error))
        return
    except OverseerError as error:
        yield Finding(Grade.MISSING, "gpu", f"{error}; without one give --devices cpu:N, or fake:N for drills")
        return
    yield from _cards(overseer)


def _cards(overseer: Overseer) -> Iterator[Finding]:
    try:
        cards = overseer.cards()
        if not cards:
            yield Finding(Grade.MISSING, "gpu", "the driver is there and has no GPU; look at `nvidia-smi`")
        shown = shown_cards(os.environ.get(VARIABLE), os.environ.get(ORDER_VARIABLE, ""), cards)
        for card in cards:
            free, action = in_gib(overseer.free_bytes(card.uuid)), overseer.recovery_action(card.uuid)
            if action:
                wanted = f"its driver wants recovery action {action}; see NVIDIA's manual, a node leaves it alone"
                yield Finding(Grade.BROKEN, card.uuid, wanted)
            else:
                told = f"{card.model}, cuda:{card.index}, {free} of {in_gib(card.memory_bytes)} free"
                hidden = "" if card in shown else f"; hidden by {VARIABLE}, so a node leaves it alone"
                yield Finding(Grade.OK, card.uuid, told + hidden)
    except (OverseerError, ConfigError) as error:
        yield Finding(Grade.BROKEN, "gpu", str(error))
