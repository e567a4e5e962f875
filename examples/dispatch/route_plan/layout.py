"""The fixed numbers of route_plan: table columns, option places, statuses and limits.

They stand alone because three readers share them: the Python face (contract.py), the numba kernels, which take them as
compile-time constants, and any other implementation that must give equal answers. Nothing here computes. Next:
contract.py.
"""

from enum import IntEnum

ORDERS_MAX = (
    16  # Peak riders carry up to 10 orders (Meituan, KDD 2021); 16 leaves room and keeps a stop set in 32 bits.
)
STOPS_MAX = 2 * ORDERS_MAX
NO_STOP = 255  # fills the unused places of a stop sequence
END = STOPS_MAX + 1  # local index of the optional end stop: fixed, so that growing a task never moves it
STRIDE = STOPS_MAX + 2  # rider, 32 stops, end


class Rider(IntEnum):
    """Columns of the rider table."""

    ID = 0  # any number that stays the same between requests; it seeds the shuffles of the rider's own route
    X = 1  # metres on a local plane
    Y = 2
    START = 3  # seconds; the rider is free from then on
    CAPACITY = 4
    SPEED = 5  # metres per minute, coord mode only
    HAS_END = 6  # 1 where the route must finish at (END_X, END_Y)
    END_X = 7
    END_Y = 8
    END_DUE = 9  # seconds; binds under hard_tw only


class Order(IntEnum):
    """Columns of the order table."""

    PICKUP_X = 0
    PICKUP_Y = 1
    DELIVERY_X = 2
    DELIVERY_Y = 3
    READY = 4  # seconds; the meal is ready, a rider who comes sooner waits
    DUE = 5  # seconds; the promise
    PICKUP_S = 6  # seconds spent at the pickup
    DELIVERY_S = 7  # seconds spent at the delivery
    LOAD = 8
    WEIGHT = 9  # multiplies the lateness of this order
    ON_BOARD = 10  # 1 where the rider holds it already: no pickup stop
    PICKUP_DUE = 11  # seconds; binds under hard_tw only
    DELIVERY_READY = 12  # seconds; a delivery that must not be sooner (0 in meal delivery)


class Pair(IntEnum):
    """Columns of the pair table."""

    RIDER = 0
    FIRST = 1  # row of the order table, or -1
    SECOND = 2
    TASK = 3  # any number that stays the same between requests; it seeds the shuffles


class Option(IntEnum):
    """Places in the option vector."""

    SOLVER = 0
    STARTS = 1
    SEED = 2
    DETOUR_PERMILLE = 3  # street metres per 1000 straight metres
    METRE_COST = 4
    LATE_COST = 5
    WAIT_COST = 6
    FINISH_COST = 7
    HARD_TW = 8
    NODES_MAX = 9
    SUBSET_ORDERS_MAX = 10


class Solver(IntEnum):
    """How a route is sought."""

    INSERT = 0
    TWO_STAGE = 1
    EXACT = 2
    AUTO = 3  # exact for up to EXACT_ORDERS_AUTO orders, two_stage above


class Status(IntEnum):
    """What became of one pair. Anything but OK leaves the pair's other fields at their fill values."""

    OK = 0
    INFEASIBLE = 1  # no route keeps capacity (and, under hard_tw, the time windows)
    TOO_MANY_ORDERS = 2
    BAD_INDEX = 3  # a row number or offset that points outside its table
    BAD_VALUE = 4  # a negative time, load or weight, a speed below 1, a coordinate beyond half the globe
    BAD_MATRIX = 5  # a matrix whose size does not fit its orders, or with a negative entry
    BAD_ROUTE = 6  # the route in hand is not a valid sequence of the orders in hand
    DUPLICATE_ORDER = 7
    OVERFLOW = 8  # times or metres that may pass 2^31 - 1


EXACT_ORDERS_AUTO = 5
STARTS_MAX = 64
PASSES_MAX = 20
# With these bounds the dearest possible route costs less than 2^62, so an int64 cost cannot wrap.
COST_WEIGHT_MAX = 65_535
ORDER_WEIGHT_MAX = 1_000
COORDINATE_MAX = 20_000_000
DETOUR_PERMILLE_MAX = 10_000
INT32_MAX = 2**31 - 1
FAR = 2**62  # above every cost
SUBSET_ORDERS_LIMIT = 15  # the 3^n table of 15 orders takes 0.9 GB

# Columns of a stop's row, of a task's parameters and of a route's prefix table: the kernels' own working memory.
READY, DUE, SERVICE, LOAD, PRICE = range(5)
STOP_FIELDS = 5
A, B, C, H, HARD, CAPACITY, START, LOAD_START, HAS_END = range(9)
PARAMETERS = 9
AT, CARRIED, COST, VIOLATION, ARRIVE, TAIL_METRES, TAIL_LATE, TAIL_VIOLATION = range(8)
TAIL_WAIT, TAIL_PRICE = 8, 9  # seconds waited from here on, and the price of each second of delay among the late
DETOUR_METRES, DETOUR_SECONDS, LEAST_LEG = 10, 11, 12  # of one delivery, from this place on
PREFIX_FIELDS = 13
TOTAL = STOPS_MAX + 1  # row of a prefix table that holds the finished route

# Words for the kernels' small choices. A caller wraps them in int(): numba would otherwise compile the kernel once more
# for each constant it is called with.
FIRST_STAYS, SMALLER_WINS = 0, 1  # what becomes of equal costs
REVERSED, LAST_TO_FRONT, FIRST_TO_END = range(3)  # how a piece of a route is rearranged
