// exact, for up to EXACT_ORDERS_AUTO orders: lanes take prefixes of three stops and search below them depth first, with
// one bound for all. Children come by ascending stop code and only what is dearer than the bound is cut, so each lane
// meets the lexicographically smallest of its cheapest routes first; the smallest over all lanes is the answer,
// whatever the bound began with and however the prefixes fell to the lanes. Next: plan.cu.

// The lower bound's tables: shortest seconds by any way, for direct legs may break the triangle, and least metres into
// v.
ON_DEVICE void open_search(const Task& task, int n) {
    int size = task.stride, count = 2 * n + 1 + task.has_end;
    for (int k = task.lane; k < size * size; k += LANES) task.near[k] = k / size == k % size ? 0 : task.legs[k].x;
    warp_sync();
    // Legs begin with the service at their first stop; whoever only passes w is not served there, so it is taken out.
    for (int c = 1; c < count; c++) {
        int w = c <= 2 * n ? c : task.end;
        if (w < task.end && w % 2 == 1 && task.riding >> (w / 2) & 1) continue;
        for (int k = task.lane; k < size * size; k += LANES) {
            int u = k / size, v = k % size;
            if ((u > 2 * n && u != task.end) || (v > 2 * n && v != task.end)) continue;
            int way = task.near[u * size + w] - task.service[u] + (task.near[w * size + v] - task.service[w]);
            if (u != v && u != w && v != w) task.near[k] = least(task.near[k], way + task.service[u]);
        }
        warp_sync();
    }
    for (int v = 1 + task.lane; v < size; v += LANES) {
        int metres = INT32_MAX;
        for (int u = 1; u <= 2 * n; u++)
            if (u != v && !(v % 2 == 1 && v < task.end && u == v + 1))
                metres = least(metres, task.legs[u * size + v].y);
        task.least_metres[v] = metres < INT32_MAX ? metres : 0;
    }
    warp_sync();
}

// The least cost of lateness to come after beginning service at u at t, or -1 where a hard window must fail.
ON_DEVICE Int64 late_at_least(const Task& task, int n, unsigned picked, unsigned done, int u, int t, bool hard) {
    Int64 total = 0;
    for (int o = 0; o < n; o++) {
        if (done >> o & 1) continue;
        int delivery = 2 * o + 2, arrive = t;
        if (picked >> o & 1) {
            arrive += task.near[u * task.stride + delivery];
        } else {
            int4 pickup = task.stops[2 * o + 1];
            arrive += task.near[u * task.stride + 2 * o + 1];
            if (hard && arrive > pickup.y) return -1;
            arrive = most(arrive, pickup.x) + task.near[(2 * o + 1) * task.stride + delivery];
        }
        int late = arrive - task.stops[delivery].y;
        if (late > 0) {
            if (hard) return -1;
            total += (Int64)task.stops[delivery].z * late;
        }
    }
    return total;
}

// One lane's way down: the stops so far and what they came to.
struct Descent {
    Byte* seq;
    int* at;
    Wide* cost;
    unsigned picked, done;
    int load, metres;  // metres: the least still to go
};

// The stop that order o may have next: each order that is not delivered has one.
ON_DEVICE int stop_of(const Descent& way, int o) { return 2 * o + 1 + (way.picked >> o & 1); }

// The smallest stop code above that of order o, or 0; o is -1 for the smallest of all.
ON_DEVICE int next_stop(const Descent& way, int n, int o) {
    for (o++; o < n; o++)
        if (!(way.done >> o & 1)) return stop_of(way, o);
    return 0;
}

ON_DEVICE void take(const Task& task, Descent& way, int v, int sign) {
    unsigned bit = 1u << (v - 1) / 2;
    if (v % 2) way.picked ^= bit;
    else way.done ^= bit;
    way.load += sign * task.stops[v].w;
    way.metres -= sign * task.least_metres[v];
}

// Try v as the stop number `depth`. Returns whether to search below it; a whole route that is better replaces the best.
template <class W>
ON_DEVICE bool enter(const Task& task, Descent& way, int n, int m, int depth, int v, Int64& best, Byte* kept) {
    int u = depth > 0 ? way.seq[(depth - 1) * LANES] : 0, t = way.at[depth * LANES];
    W worth = W::nothing();
    step(task, u, v, t, worth);
    if (way.load + task.stops[v].w > task.capacity || !worth.kept()) return false;
    Int64 cost = way.cost[depth * LANES].cost + worth.total(), bound = *(volatile Int64*)task.scratch;
    way.seq[depth * LANES] = (Byte)v;
    if (depth + 1 == m) {
        W last = W::nothing();
        finish(task, v, t, last);
        cost += last.total();
        // Of equal cost the first met is the lexicographically smallest of this lane's, so only less is better.
        if (!last.kept() || cost > bound || cost >= best) return false;
        best = cost;
        for (int k = 0; k < m; k++) kept[k * LANES] = way.seq[k * LANES];
        lower((Int64*)task.scratch, cost);
        return false;
    }
    take(task, way, v, 1);
    Int64 late = late_at_least(task, n, way.picked, way.done, v, t, W::HARD_WINDOWS);
    Int64 floor = cost + (Int64)task.a * way.metres + (Int64)task.h * t + late;
    if (late < 0 || floor > bound) {
        take(task, way, v, -1);
        return false;
    }
    way.at[(depth + 1) * LANES] = t;
    way.cost[(depth + 1) * LANES].cost = cost;
    return true;
}

// Search one prefix to its end: `number` counts in base n the orders whose stops it takes, first stop first. Ascending
// numbers are ascending sequences, for at each place an order has one stop only.
template <class W>
ON_DEVICE void search(const Task& task, Descent& way, int n, int m, int levels, int number, Int64& best, Byte* kept) {
    int unit = 1, depth = 0, last = -1;
    for (int k = 1; k < levels; k++) unit *= n;
    bool open = true;
    for (; depth < levels; depth++, unit /= n) {
        int o = number / unit % n;
        open = !(way.done >> o & 1) && enter<W>(task, way, n, m, depth, stop_of(way, o), best, kept);
        if (!open) break;
    }
    int top = depth;
    while (open) {
        int v = next_stop(way, n, last);
        if (v == 0) {
            if (depth == top) break;
            int taken = way.seq[--depth * LANES];
            take(task, way, taken, -1);
            last = (taken - 1) / 2;
        } else if (enter<W>(task, way, n, m, depth, v, best, kept)) {
            depth++;
            last = -1;
        } else {
            last = (v - 1) / 2;
        }
    }
    while (depth > 0) take(task, way, way.seq[--depth * LANES], -1);
}

// The cheapest route of the first n orders into task.best, starting from the bound of a known route or FAR. Returns its
// cost; the length is -1 where no route is feasible. It must be inlined: compiled apart, builds for some register
// bounds missed the only route of a task (CUDA 13.0, sm_90; never inlined, never in a debug build). tests/hw holds each
// build to it.
template <class W>
ON_DEVICE Int64 exact(const Task& task, const Lane<W>& own, int n, Int64 bound, int& length) {
    int m = stops_of(task, n), levels = least(m, 3), prefixes = 1;
    for (int k = 0; k < levels; k++) prefixes *= n;
    open_search(task, n);
    if (task.lane == 0) *(volatile Int64*)task.scratch = bound;
    Wide* cost = (Wide*)task.lanes + task.lane;
    Descent way = {own.seq, own.at, cost, task.riding & ((1u << n) - 1), 0, task.load_start, 0};
    way.at[0] = task.start;
    way.cost[0].cost = 0;
    for (int v = 1; v <= 2 * n; v++)
        if (v % 2 == 0 || !(task.riding >> (v / 2) & 1)) way.metres += task.least_metres[v];
    if (task.has_end) way.metres += task.least_metres[task.end];
    warp_sync();
    Int64 best = FAR;
    for (int first = 0; first < prefixes; first += LANES) {
        if (first + task.lane < prefixes) search<W>(task, way, n, m, levels, first + task.lane, best, own.kept);
        warp_sync();
    }
    Int64 least_cost = best;
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        Int64 other = from_partner64(least_cost, apart);
        if (other < least_cost) least_cost = other;
    }
    length = least_cost == FAR ? -1 : m;
    bool tied = best == least_cost && best < FAR;
    for (int k = 0; k < m && length > 0; k++) {  // among the lanes of least cost the smallest sequence, stop by stop
        int smallest = warp_min(tied ? own.kept[k * LANES] : INT32_MAX);
        tied = tied && own.kept[k * LANES] == smallest;
        if (task.lane == 0) task.best[k] = (Byte)smallest;
    }
    warp_sync();
    return least_cost;
}
