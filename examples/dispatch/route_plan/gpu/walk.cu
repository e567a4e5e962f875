// Walk a route and price it: the arithmetic that every solver shares. Times are int32, for check_bounds() has proved
// that no route passes it; what a route is worth is a type of its own (portable.cu).
//
// A table keeps the state before each stop of a route, so that a changed route is priced from its first changed stop
// only and given up as soon as it must lose. Next: insertion.cu.

// Go from u to v and wait there; `t` is when service begins, before and after.
template <class W> ON_DEVICE void step(const Task& task, int u, int v, int& t, W& worth) {
    int2 leg = task.legs[u * task.stride + v];
    int4 stop = task.stops[v];
    int arrive = t + leg.x;
    worth.pay(task.a, leg.y);
    int late = most(arrive - stop.y, 0);
    worth.pay(stop.z, late);
    worth.miss(late);
    int wait = most(stop.x - arrive, 0);
    worth.pay(task.c, wait);
    t = arrive + wait;
}

// Close a route whose last stop is u. Returns the finish time.
template <class W> ON_DEVICE int finish(const Task& task, int u, int t, W& worth) {
    int over = t + task.service[u];
    if (task.has_end) {
        int2 leg = task.legs[u * task.stride + task.end];
        over = t + leg.x;
        worth.pay(task.a, leg.y);
        worth.miss(most(over - task.stops[task.end].y, 0));
    }
    worth.pay(task.h, over);
    return over;
}

// Fill the table of the lane's route of m stops. Returns what it is worth.
template <class W> ON_DEVICE Totals<W> fill(const Task& task, const Lane<W>& own, const Byte* seq, int m) {
    int u = 0, t = task.start;
    W worth = W::nothing(), waits = W::nothing();
    for (int k = 0; k < m; k++) {
        int v = seq[k * LANES];
        own.at[k * LANES] = t;
        own.worth[k * LANES] = worth;
        own.sure[k * LANES] = worth.plus(W::nothing(), waits);
        int arrive = t + task.legs[u * task.stride + v].x;
        step(task, u, v, t, worth);
        waits.pay(task.c, t - arrive);
        u = v;
    }
    own.at[m * LANES] = t;
    own.worth[m * LANES] = worth;
    own.sure[m * LANES] = worth.plus(W::nothing(), waits);
    finish(task, u, t, worth);
    return {worth, worth.plus(W::nothing(), waits)};
}

// Serve seq[k:] after beginning at u at t. Returns what the route is worth; anything not below the bound may come back
// as FAR. The stops before k must be those of the table's route in any order, plus whole orders already delivered.
// Beginning no sooner than the table's route makes each later stop no sooner, hence no less late: its rest is a lower
// bound.
template <class W>
ON_DEVICE W rest(const Task& task, const Lane<W>& own, const Byte* seq, int m, const Totals<W>& table, int k, int u,
                 int t, W worth, const W& bound) {
    while (k < m) {
        int v = seq[k * LANES];
        step(task, u, v, t, worth);
        u = v;
        k++;
        int at = own.at[k * LANES];
        if (t == at) return worth.plus(table.all, own.worth[k * LANES]);  // in step: what follows is known
        W hope = t > at ? worth.plus(table.sure, own.sure[k * LANES]) : worth;
        if (!hope.below(bound)) return W::far();
    }
    finish(task, u, t, worth);
    return worth;
}
