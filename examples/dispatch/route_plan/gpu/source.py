"""The kernels' source text: constants taken from layout.py, then the `.cu` files in reading order.

One text serves the GPU and the C++ compiler of a test. Numbers that Python and the kernels share are written here from
the enums, so that they cannot drift apart. It compiles nothing. Read portable.cu next, then `geometry.py`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from pathlib import Path

from examples.dispatch.route_plan import layout
from examples.dispatch.route_plan.contract import INPUTS, OUTPUTS

FILES = (
    "portable.cu",
    "task.cu",
    "load.cu",
    "walk.cu",
    "insertion.cu",
    "improve.cu",
    "starts.cu",
    "exact.cu",
    "plan.cu",
)

RULES = 4  # starts that follow a rule, as in starts.py
NARROW_COST_LIMIT = 2**30  # two such costs may be added in 32 bits
NODES_SURE = 326_010  # nodes of the whole search tree of five orders: a search allowed so many always finishes
RETRY_WIDE, ELSEWHERE = 14, 15  # statuses inside this folder: plan again with 64-bit costs; plan on a CPU

ADDRESSES = (*(name for name, _, _ in INPUTS), "hands", "hand_routes", *(f"out_{name}" for name, _, _ in OUTPUTS))
LENGTHS = ("riders_len", "orders_len", "hand_len", "route_len", "matrix_start_len", "legs_len")
HEAD = (*ADDRESSES, *LENGTHS)  # places of the list that a kernel finds everything by, int64 each
HAND_BYTES = 32  # struct Hand of plan.cu
HAND_STATUS_AT = 0


class Flag(IntFlag):
    """What a launch is for."""

    HANDS = 1  # rows are riders: plan what they have in hand
    LEAN = 2  # insertion into routes that are known: no memory for lanes of their own
    EXACT = 4  # tasks may be searched to the end: memory for the bound's tables


def prelude() -> str:
    """Return the constants as C++."""
    plain = (
        "ORDERS_MAX",
        "STOPS_MAX",
        "NO_STOP",
        "EXACT_ORDERS_AUTO",
        "PASSES_MAX",
        "ORDER_WEIGHT_MAX",
        "COORDINATE_MAX",
        "INT32_MAX",
    )
    values = {name: int(getattr(layout, name)) for name in plain}
    values |= {"RULES": RULES, "NARROW_COST_LIMIT": NARROW_COST_LIMIT, "NODES_SURE": NODES_SURE}
    values |= {"STATUS_RETRY_WIDE": RETRY_WIDE, "STATUS_ELSEWHERE": ELSEWHERE}
    for prefix, words in (
        ("RIDER", layout.Rider),
        ("ORDER", layout.Order),
        ("PAIR", layout.Pair),
        ("OPTION", layout.Option),
        ("SOLVER", layout.Solver),
        ("STATUS", layout.Status),
        ("FLAG", Flag),
    ):
        values |= _named(prefix, words)
    for prefix, table in (("RIDER", layout.Rider), ("ORDER", layout.Order), ("PAIR", layout.Pair)):
        values[f"{prefix}_COLUMNS"] = len(table)
    values |= {f"HEAD_{name.upper()}": place for place, name in enumerate(HEAD)}
    lines = [f"static const int {name} = {value};" for name, value in values.items()]
    return "\n".join([*lines, f"static const long long FAR = {layout.FAR}ll;", ""])


def program() -> str:
    """Return the whole text."""
    folder = Path(__file__).parent
    return prelude() + "".join((folder / name).read_text(encoding="utf-8") for name in FILES)


def _named(prefix: str, words: type[IntEnum | IntFlag]) -> dict[str, int]:
    return {f"{prefix}_{word.name}": int(word) for word in words}
