// Read one task out of the request's tables, checking every number on the way, in the order in which load.py checks.
//
// The tables come from a stranger: no index is used before it is checked, and a task with a fault gets its status while
// its neighbours go on. Lanes share the reading. Next: walk.cu.

ON_DEVICE bool on_globe(int coordinate) { return -COORDINATE_MAX <= coordinate && coordinate <= COORDINATE_MAX; }

ON_DEVICE bool rider_is_sound(const int* rider, bool by_place) {
    bool sound = rider[RIDER_START] >= 0 && rider[RIDER_CAPACITY] >= 0 && rider[RIDER_END_DUE] >= 0 &&
                 (rider[RIDER_HAS_END] == 0 || rider[RIDER_HAS_END] == 1);
    if (!by_place) return sound;
    return sound && rider[RIDER_SPEED] >= 1 && on_globe(rider[RIDER_X]) && on_globe(rider[RIDER_Y]) &&
           on_globe(rider[RIDER_END_X]) && on_globe(rider[RIDER_END_Y]);
}

ON_DEVICE bool order_is_sound(const int* order, bool by_place) {
    int least_of = least(order[ORDER_READY], order[ORDER_DUE]);
    least_of = least(least_of, least(order[ORDER_PICKUP_S], order[ORDER_DELIVERY_S]));
    least_of = least(least_of, least(order[ORDER_LOAD], least(order[ORDER_PICKUP_DUE], order[ORDER_DELIVERY_READY])));
    bool sound = least_of >= 0 && order[ORDER_WEIGHT] >= 0 && order[ORDER_WEIGHT] <= ORDER_WEIGHT_MAX &&
                 (order[ORDER_ON_BOARD] == 0 || order[ORDER_ON_BOARD] == 1);
    if (!by_place) return sound;
    return sound && on_globe(order[ORDER_PICKUP_X]) && on_globe(order[ORDER_PICKUP_Y]) &&
           on_globe(order[ORDER_DELIVERY_X]) && on_globe(order[ORDER_DELIVERY_Y]);
}

ON_DEVICE void set_order(const int* order, int o, Task& task) {
    int p = 2 * o + 1, d = 2 * o + 2;
    task.stops[p] = {order[ORDER_READY], order[ORDER_PICKUP_DUE], 0, order[ORDER_LOAD]};
    task.stops[d] = {order[ORDER_DELIVERY_READY], order[ORDER_DUE], task.b * order[ORDER_WEIGHT], -order[ORDER_LOAD]};
    task.service[p] = order[ORDER_PICKUP_S];
    task.service[d] = order[ORDER_DELIVERY_S];
    task.spots[p] = {order[ORDER_PICKUP_X], order[ORDER_PICKUP_Y]};
    task.spots[d] = {order[ORDER_DELIVERY_X], order[ORDER_DELIVERY_Y]};
}

// Take over the rider, whose row was checked, and the prices.
ON_DEVICE void set_rider(const int* rider, const Int64* options, Task& task) {
    task.a = (int)options[OPTION_METRE_COST];
    task.b = (int)options[OPTION_LATE_COST];
    task.c = (int)options[OPTION_WAIT_COST];
    task.h = (int)options[OPTION_FINISH_COST];
    task.capacity = rider[RIDER_CAPACITY];
    task.start = rider[RIDER_START];
    task.has_end = rider[RIDER_HAS_END];
    if (task.lane == 0) {
        task.stops[0] = {0, INT32_MAX, 0, 0};
        task.stops[task.end] = {0, rider[RIDER_END_DUE], 0, 0};
        task.service[0] = task.service[task.end] = 0;
        task.spots[0] = {rider[RIDER_X], rider[RIDER_Y]};
        task.spots[task.end] = {rider[RIDER_END_X], rider[RIDER_END_Y]};
    }
    warp_sync();
}

// The orders in hand, one a lane. The first order with a fault decides.
ON_DEVICE int load_hand(Head head, const int* rows, Task& task, bool by_place) {
    int fault = INT32_MAX, riding = 0;
    for (int k = task.lane; k < task.n_hand; k += LANES) {
        int row = rows[k], status = STATUS_OK;
        const int* order = ints(head, HEAD_ORDERS) + (Int64)row * ORDER_COLUMNS;
        if (row < 0 || row >= head[HEAD_ORDERS_LEN]) status = STATUS_BAD_INDEX;
        else if (!order_is_sound(order, by_place)) status = STATUS_BAD_VALUE;
        if (status != STATUS_OK) {
            fault = least(fault, k * 16 + status);
            continue;
        }
        task.rows[k] = row;
        set_order(order, k, task);
        riding |= order[ORDER_ON_BOARD] << k;
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2) riding |= from_partner(riding, apart);
    task.riding = (unsigned)riding;
    fault = warp_min(fault);
    warp_sync();
    return fault == INT32_MAX ? STATUS_OK : fault % 16;
}

// The pair's new orders after those in hand.
ON_DEVICE int load_new(Head head, const int* pair, Task& task, bool by_place) {
    for (int column = PAIR_FIRST; column <= PAIR_SECOND; column++) {
        int row = pair[column];
        if (row == -1) continue;
        if (row < 0 || row >= head[HEAD_ORDERS_LEN]) return STATUS_BAD_INDEX;
        if (task.n >= ORDERS_MAX) return STATUS_TOO_MANY_ORDERS;
        const int* order = ints(head, HEAD_ORDERS) + (Int64)row * ORDER_COLUMNS;
        if (!order_is_sound(order, by_place) || order[ORDER_ON_BOARD] != 0) return STATUS_BAD_VALUE;
        if (task.lane == 0) {
            task.rows[task.n] = row;
            set_order(order, task.n, task);
        }
        task.n++;
    }
    warp_sync();
    int equal = 0;
    for (int a = task.lane; a < task.n; a += LANES)
        for (int b = 0; b < a; b++) equal |= task.rows[a] == task.rows[b];
    return warp_max(equal) ? STATUS_DUPLICATE_ORDER : STATUS_OK;
}

// Legs by coordinates between all stops, those alone with a stop from `low` on in them. Returns OK or OVERFLOW.
// metres = ceil(detour * sqrt(dx^2 + dy^2)): one correctly rounded double operation after another, as in load.py.
ON_DEVICE int link_places(Head head, Task& task, int low, int high, int speed) {
    const Int64* options = (const Int64*)head[HEAD_OPTIONS];
    double detour = quotient((double)options[OPTION_DETOUR_PERMILLE], 1000.0);
    int over = 0, size = task.stride;
    for (int k = task.lane; k < size * size; k += LANES) {
        int u = k / size, v = k % size;
        bool u_ends = u == task.end, v_ends = v == task.end;
        if ((u >= high && !u_ends) || (v >= high && !v_ends) || u == v) continue;
        if ((u_ends || v_ends) && !task.has_end) continue;
        if (!(u >= low && !u_ends) && !(v >= low && !v_ends)) continue;
        Int64 dx = task.spots[u].x - task.spots[v].x, dy = task.spots[u].y - task.spots[v].y;
        double way = product(detour, root((double)(dx * dx + dy * dy)));
        Int64 metres = (Int64)way;
        metres += (double)metres < way;
        Int64 seconds = (metres * 60 + speed - 1) / speed;
        over |= seconds > INT32_MAX || metres > INT32_MAX;
        task.legs[k] = {(int)seconds, (int)metres};
    }
    over = warp_max(over);
    warp_sync();
    return over ? STATUS_OVERFLOW : STATUS_OK;
}

// Legs from the pair's own matrices. Returns OK or BAD_MATRIX.
ON_DEVICE int link_matrix(Head head, Task& task, int p) {
    const Int64* starts = (const Int64*)head[HEAD_MATRIX_START];
    Int64 first = starts[p], last = starts[p + 1];
    int size = 2 * task.n + 1 + task.has_end, bad = 0;
    if (first < 0 || last > head[HEAD_LEGS_LEN] || last - first != size * size) return STATUS_BAD_MATRIX;
    for (int k = task.lane; k < size * size; k += LANES) {
        int seconds = ints(head, HEAD_SECONDS)[first + k], metres = ints(head, HEAD_METRES)[first + k];
        bad |= seconds < 0 || metres < 0;
        task.legs[k / size * task.stride + k % size] = {seconds, metres};
    }
    bad = warp_max(bad);
    warp_sync();
    return bad ? STATUS_BAD_MATRIX : STATUS_OK;
}

// The first n orders' bounds. Returns OVERFLOW if a route might pass int32, INFEASIBLE if the load cannot fit, and sets
// the load at the start; RETRY_WIDE if a cost might pass 2^30 and the caller's worth is narrow.
ON_DEVICE int check_bounds(Task& task, int n, bool all_costs) {
    int count = 2 * n + 1, top_seconds = 0, top_metres = 0;
    for (int k = task.lane; k < task.stride * task.stride; k += LANES) {
        int u = k / task.stride, v = k % task.stride;
        bool in = (u < count || (u == task.end && task.has_end)) && (v < count || (v == task.end && task.has_end));
        if (!in || u == v) continue;
        top_seconds = most(top_seconds, task.legs[k].x);
        top_metres = most(top_metres, task.legs[k].y);
    }
    top_seconds = warp_max(top_seconds);
    top_metres = warp_max(top_metres);
    Int64 service = 0, prices = 0, on_board = 0, loads = 0;
    int latest = task.start;
    bool fits = true;
    for (int v = 1; v < count; v++) {
        int4 stop = task.stops[v];
        service += task.service[v];
        latest = most(latest, stop.x);
        prices += stop.z;
        if (v % 2 == 0) continue;
        loads += stop.w;
        if (task.riding >> (v / 2) & 1) on_board += stop.w;
        fits = fits && stop.w <= task.capacity;
    }
    Int64 finish = latest + service + (Int64)count * top_seconds, metres = (Int64)count * top_metres;
    if (finish > INT32_MAX || metres > INT32_MAX) return STATUS_OVERFLOW;
    if (!fits || on_board > task.capacity) return STATUS_INFEASIBLE;
    task.load_start = (int)on_board;
    task.tight = loads > task.capacity;
    Int64 dearest = task.a * metres + (prices + task.c + task.h) * finish;
    return all_costs || dearest < NARROW_COST_LIMIT ? STATUS_OK : STATUS_RETRY_WIDE;
}

// Once all is checked: a leg begins with the service at its first stop, so that a walk need not look it up.
ON_DEVICE void add_service(Task& task) {
    for (int k = task.lane; k < task.stride * task.stride; k += LANES)
        task.legs[k].x = (int)((unsigned)task.legs[k].x + (unsigned)task.service[k / task.stride]);
    warp_sync();
}
