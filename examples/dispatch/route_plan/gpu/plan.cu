// The kernels: a warp loads one task, plans what is in hand, plans with the new orders, and writes the answer.
//
// With legs by coordinates a rider's hand is planned once, by plan_hands, and read by all of the rider's pairs; a
// matrix belongs to one pair, whose warp then plans both. Statuses come in the order of gather.py and batch.py. The
// files end here; Next: source.py.

struct Hand { int status, length, proved; Int64 cost, metres; };

// Copy a route in hand into task.best if it serves the orders in hand rightly. Returns its length, or -1.
ON_DEVICE int take_route(const Byte* route, Int64 length, const Task& task) {
    unsigned picked = task.riding, done = 0;
    if (length != stops_of(task, task.n_hand)) return -1;
    for (int k = 0; k < length; k++) {
        int v = route[k], o = (v - 1) / 2;
        if (v < 1 || v > 2 * task.n_hand) return -1;
        unsigned bit = 1u << o, ready = v % 2 ? ~picked : picked & ~done;
        if (!(ready & bit)) return -1;
        if (v % 2) picked |= bit;
        else done |= bit;
        if (task.lane == 0) task.best[k] = (Byte)v;
    }
    warp_sync();
    return (int)length;
}

// What a route given as it is comes to: every lane walks it. False where it overloads the rider.
template <class W> ON_DEVICE bool worth_of(const Task& task, int m, W& worth) {
    int u = 0, t = task.start, load = task.load_start;
    bool fits = load <= task.capacity;
    worth = W::nothing();
    for (int k = 0; k < m; k++) {
        int v = task.best[k];
        step(task, u, v, t, worth);
        load += task.stops[v].w;
        fits = fits && load <= task.capacity;
        u = v;
    }
    finish(task, u, t, worth);
    return fits;
}

ON_DEVICE Int64 route_metres(const Task& task, int m) {
    Int64 total = 0;
    int u = 0;
    for (int k = 0; k < m; u = task.best[k++]) total += task.legs[u * task.stride + task.best[k]].y;
    return task.has_end ? total + task.legs[u * task.stride + task.end].y : total;
}

// Whether a task is left to a CPU: the exact search here is for few orders, and never stops half way.
ON_DEVICE bool is_elsewhere(const Int64* options, int n) {
    int solver = (int)options[OPTION_SOLVER];
    if (solver == SOLVER_EXACT) return n > EXACT_ORDERS_AUTO || (n > 0 && options[OPTION_NODES_MAX] < NODES_SURE);
    return solver == SOLVER_AUTO && n > 0 && n <= EXACT_ORDERS_AUTO && options[OPTION_NODES_MAX] < NODES_SURE;
}

// Plan the first n orders with the solver asked for; task.best holds the route in hand (m stops) before, the planned
// one afterwards. Returns its cost; m is -1 where nothing is feasible.
template <class W>
ON_DEVICE Int64 plan(Head head, const Task& task, const Lane<W>& own, int n, int number, int& m, int& proved) {
    const Int64* options = (const Int64*)head[HEAD_OPTIONS];
    int solver = (int)options[OPTION_SOLVER];
    W worth = W::far();
    proved = 0;
    if (n == 0 || (solver == SOLVER_INSERT && n == task.n_hand)) {
        if (!worth_of(task, m, worth)) m = -1;
    } else if (solver == SOLVER_INSERT) {
        worth = insert_new<W>(task, m);
    } else if (solver == SOLVER_EXACT || (solver == SOLVER_AUTO && n <= EXACT_ORDERS_AUTO)) {
        // More starts than the CPU's cost nothing here, for each has a lane; the answer does not depend on the bound.
        worth = two_stage(task, own, n, most(LANES, RULES), options[OPTION_SEED], number, m);
        Int64 bound = m >= 0 && worth.kept() ? worth.total() : FAR;
        proved = 1;
        return exact(task, own, n, bound, m);
    } else {
        worth = two_stage(task, own, n, (int)options[OPTION_STARTS], options[OPTION_SEED], number, m);
    }
    if (!worth.kept()) m = -1;
    return worth.total();
}

// Plan the orders in hand alone, whose bounds were checked. task.best holds the route afterwards.
template <class W> ON_DEVICE Hand plan_hand(Head head, const Task& task, const Lane<W>& own, int r, int bounds) {
    const Int64* options = (const Int64*)head[HEAD_OPTIONS];
    Int64 first = ints(head, HEAD_ROUTE_START)[r], last = ints(head, HEAD_ROUTE_START)[r + 1];
    Hand hand = {STATUS_OK, 0, 0, 0, 0};
    if (first < 0 || last < first || last > head[HEAD_ROUTE_LEN]) hand.status = STATUS_BAD_INDEX;
    else if (bounds != STATUS_OK) hand.status = bounds;
    else if (is_elsewhere(options, task.n_hand)) hand.status = STATUS_ELSEWHERE;
    if (hand.status != STATUS_OK) return hand;
    int number = ints(head, HEAD_RIDERS)[(Int64)r * RIDER_COLUMNS + RIDER_ID];
    if (options[OPTION_SOLVER] == SOLVER_INSERT && task.n_hand > 0) {
        if (last > first) hand.length = take_route((const Byte*)head[HEAD_ROUTE] + first, last - first, task);
        else two_stage(task, own, task.n_hand, (int)options[OPTION_STARTS], options[OPTION_SEED], number, hand.length);
        if (hand.length < 0) hand.status = last > first ? STATUS_BAD_ROUTE : STATUS_INFEASIBLE;
        if (hand.status != STATUS_OK) return hand;
    }
    hand.cost = plan(head, task, own, task.n_hand, number, hand.length, hand.proved);
    if (hand.length < 0) hand.status = STATUS_INFEASIBLE;
    else hand.metres = route_metres(task, hand.length);
    return hand;
}

// Load rider r and its orders in hand, and say where the rider's end stop stands if `fresh` new orders come.
ON_DEVICE int load_rider(Head head, int r, int fresh, Task& task) {
    Int64 first = ints(head, HEAD_HAND_START)[r], last = ints(head, HEAD_HAND_START)[r + 1];
    const int* rider = ints(head, HEAD_RIDERS) + (Int64)r * RIDER_COLUMNS;
    bool by_place = head[HEAD_MATRIX_START_LEN] == 0;
    task.n = task.n_hand = 0;
    if (first < 0 || last < first || last > head[HEAD_HAND_LEN]) return STATUS_BAD_INDEX;
    if (last - first > ORDERS_MAX) return STATUS_TOO_MANY_ORDERS;
    if (!rider_is_sound(rider, by_place)) return STATUS_BAD_VALUE;
    task.n = task.n_hand = (int)(last - first);
    task.end = 2 * least(task.n_hand + fresh, ORDERS_MAX) + 1;
    task.stride = task.end + 1;
    set_rider(rider, (const Int64*)head[HEAD_OPTIONS], task);
    int status = load_hand(head, ints(head, HEAD_HAND) + first, task, by_place);
    if (status != STATUS_OK || !by_place) return status;
    return link_places(head, task, 0, 2 * task.n_hand + 1, rider[RIDER_SPEED]);
}

// Write the stops and arrivals of the planned route, and what it comes to.
ON_DEVICE void write_answer(Head head, const Task& task, int p, int m, Int64 cost, const Hand& hand) {
    int u = 0, t = task.start, top = 0;
    Int64 total = 0;
    for (int o = task.lane; o < ORDERS_MAX; o += LANES) task.arrivals[o] = -1;
    warp_sync();
    for (int k = 0; k < m; k++) {
        int v = task.best[k], arrive = t + task.legs[u * task.stride + v].x;
        if (v % 2 == 0) {
            int late = most(0, arrive - task.stops[v].y);
            if (task.lane == 0) task.arrivals[(v - 1) / 2] = arrive;
            top = most(top, late);
            total += late;
        }
        t = most(arrive, task.stops[v].x);
        u = v;
    }
    warp_sync();
    Byte* stops = (Byte*)head[HEAD_OUT_STOPS] + (Int64)p * STOPS_MAX;
    int* arrivals = (int*)head[HEAD_OUT_ARRIVALS] + (Int64)p * ORDERS_MAX;
    for (int k = task.lane; k < STOPS_MAX; k += LANES) stops[k] = k < m ? task.best[k] : NO_STOP;
    for (int o = task.lane; o < ORDERS_MAX; o += LANES) arrivals[o] = task.arrivals[o];
    Int64 metres = route_metres(task, m);
    if (task.lane != 0) return;
    ((int*)head[HEAD_OUT_LATE_MAX])[p] = top;
    ((Int64*)head[HEAD_OUT_MARGINAL])[p] = cost - hand.cost;
    ((Int64*)head[HEAD_OUT_COST])[p] = cost;
    ((Int64*)head[HEAD_OUT_DELTA_METRES])[p] = metres - hand.metres;
    ((Int64*)head[HEAD_OUT_LATE_SUM])[p] = total;
}

// What "no answer" looks like; every pair begins so.
ON_DEVICE void write_nothing(Head head, int p, int lane) {
    for (int k = lane; k < STOPS_MAX; k += LANES) ((Byte*)head[HEAD_OUT_STOPS])[(Int64)p * STOPS_MAX + k] = NO_STOP;
    for (int o = lane; o < ORDERS_MAX; o += LANES) ((int*)head[HEAD_OUT_ARRIVALS])[(Int64)p * ORDERS_MAX + o] = -1;
    if (lane != 0) return;
    ((int*)head[HEAD_OUT_PROVED])[p] = ((int*)head[HEAD_OUT_LATE_MAX])[p] = 0;
    ((Int64*)head[HEAD_OUT_MARGINAL])[p] = ((Int64*)head[HEAD_OUT_COST])[p] = 0;
    ((Int64*)head[HEAD_OUT_DELTA_METRES])[p] = ((Int64*)head[HEAD_OUT_LATE_SUM])[p] = 0;
}

// The hand of rider r, from legs by coordinates: kept where the rider's pairs find it.
template <class W> ON_DEVICE void hand_of(Head head, int r, char* memory, int n_max, bool exact_too, int lane) {
    Task task = {};
    task.lane = lane;
    carve(task, memory, n_max, sizeof(W), false, exact_too);
    Hand hand = {load_rider(head, r, 0, task), 0, 0, 0, 0};
    if (hand.status == STATUS_OK) {
        int bounds = check_bounds(task, task.n_hand, W::ALL_COSTS);
        add_service(task);
        hand = plan_hand(head, task, lane_of<W>(task, n_max), r, bounds);
    }
    Byte* route = (Byte*)head[HEAD_HAND_ROUTES] + (Int64)r * STOPS_MAX;
    for (int k = lane; k < hand.length; k += LANES) route[k] = task.best[k];
    if (lane == 0) ((Hand*)head[HEAD_HANDS])[r] = hand;
}

// Pair p, loaded: plan it, and write its answer. Returns its status.
template <class W>
ON_DEVICE int plan_pair(Head head, int p, Task& task, const Lane<W>& own, bool by_place) {
    const Int64* options = (const Int64*)head[HEAD_OPTIONS];
    const int* pair = ints(head, HEAD_PAIRS) + (Int64)p * PAIR_COLUMNS;
    int r = pair[PAIR_RIDER], hand_bounds = by_place ? 0 : check_bounds(task, task.n_hand, W::ALL_COSTS);
    bool tight = task.tight;
    int load_start = task.load_start, bounds = check_bounds(task, task.n, W::ALL_COSTS);
    add_service(task);
    Hand hand;
    if (by_place) {
        hand = ((const Hand*)head[HEAD_HANDS])[r];
    } else {
        bool tight_all = task.tight;
        int load_start_all = task.load_start;
        task.tight = tight;
        task.load_start = load_start;
        hand = plan_hand(head, task, own, r, hand_bounds);
        task.tight = tight_all;
        task.load_start = load_start_all;
    }
    if (hand.status != STATUS_OK) return hand.status;
    if (bounds != STATUS_OK) return bounds;
    if (is_elsewhere(options, task.n)) return STATUS_ELSEWHERE;
    int m = hand.length, proved = 0;
    const Byte* route = (const Byte*)head[HEAD_HAND_ROUTES] + (Int64)r * STOPS_MAX;
    if (by_place)
        for (int k = task.lane; k < m; k += LANES) task.best[k] = route[k];
    warp_sync();
    Int64 cost = hand.cost;
    if (task.n > task.n_hand) cost = plan(head, task, own, task.n, pair[PAIR_TASK], m, proved);
    else proved = hand.proved;  // nothing is new: the plan is that of the hand
    if (task.lane == 0) ((int*)head[HEAD_OUT_PROVED])[p] = proved;
    if (m < 0) return STATUS_INFEASIBLE;
    write_answer(head, task, p, m, cost, hand);
    return STATUS_OK;
}

template <class W>
ON_DEVICE void pair_of(Head head, int p, char* memory, int n_max, bool lean, bool exact_too, int lane) {
    Task task = {};
    task.lane = lane;
    carve(task, memory, n_max, sizeof(W), lean, exact_too);
    const int* pair = ints(head, HEAD_PAIRS) + (Int64)p * PAIR_COLUMNS;
    int r = pair[PAIR_RIDER], status = STATUS_BAD_INDEX;
    bool by_place = head[HEAD_MATRIX_START_LEN] == 0;
    write_nothing(head, p, lane);
    if (r >= 0 && r < head[HEAD_RIDERS_LEN]) {
        status = load_rider(head, r, (pair[PAIR_FIRST] != -1) + (pair[PAIR_SECOND] != -1), task);
        if (status == STATUS_OK) status = load_new(head, pair, task, by_place);
        if (status == STATUS_OK && by_place)
            status = link_places(head, task, 2 * task.n_hand + 1, 2 * task.n + 1,
                                 ints(head, HEAD_RIDERS)[(Int64)r * RIDER_COLUMNS + RIDER_SPEED]);
        else if (status == STATUS_OK)
            status = link_matrix(head, task, p);
        if (status == STATUS_OK) status = plan_pair(head, p, task, lane_of<W>(task, n_max), by_place);
    }
    if (lane == 0) ((int*)head[HEAD_OUT_STATUS])[p] = status;
}

#ifdef __CUDACC__
// One warp a row; rows are listed by the host, most work first. `warp_bytes` is what geometry.py counts for one warp.
template <class W>
ON_DEVICE void each_warp(Head head, const int* rows, int count, int n_max, int flags, int warp_bytes) {
    extern __shared__ __align__(16) char memory[];
    int warp = threadIdx.x / LANES, at = blockIdx.x * (blockDim.x / LANES) + warp;
    if (at >= count) return;
    char* own = memory + warp * warp_bytes;
    if (flags & FLAG_HANDS) hand_of<W>(head, rows[at], own, n_max, flags & FLAG_EXACT, threadIdx.x % LANES);
    else pair_of<W>(head, rows[at], own, n_max, flags & FLAG_LEAN, flags & FLAG_EXACT, threadIdx.x % LANES);
}
#define KERNEL(name, W) \
    extern "C" __global__ void name(Head head, const int* rows, int count, int n_max, int flags, int warp_bytes) { \
        each_warp<W>(head, rows, count, n_max, flags, warp_bytes); \
    }
#ifdef WORTH
KERNEL(plan_rows, WORTH)  // one kind a module: the compiler takes long enough for one
#endif
#else
template <class W> static void each(Head head, const int* rows, int count, int n_max, int flags, char* memory) {
    for (int at = 0; at < count; at++) {
        if (flags & FLAG_HANDS) hand_of<W>(head, rows[at], memory, n_max, flags & FLAG_EXACT, 0);
        else pair_of<W>(head, rows[at], memory, n_max, flags & FLAG_LEAN, flags & FLAG_EXACT, 0);
    }
}
extern "C" int bytes_of_task(int n, int worth_bytes, int lean, int exact) {
    return task_bytes(n, worth_bytes, lean, exact);
}
extern "C" void plan_rows(int kind, Head head, const int* rows, int count, int n_max, int flags, char* memory) {
    if (kind == 0) each<Narrow>(head, rows, count, n_max, flags, memory);
    if (kind == 1) each<Wide>(head, rows, count, n_max, flags, memory);
    if (kind == 2) each<Hard>(head, rows, count, n_max, flags, memory);
}
#endif
