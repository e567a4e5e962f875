// Cheapest insertion: the best places for one order's stops in a route that keeps its own sequence.
//
// best_place() is one lane's, the building step of two_stage; insert_new() is the `insert` solver, where the lanes
// share the places of one route. Next: improve.cu.

struct Place { int i, j; };

// Insert into a lane's route of m stops; returns the new length.
ON_DEVICE int put(Byte* seq, int m, int pickup, int delivery, Place place) {
    for (int k = m; k > place.j; k--) seq[k * LANES] = seq[(k - 1) * LANES];
    seq[place.j * LANES] = (Byte)delivery;
    m++;
    if (pickup == 0) return m;
    for (int k = m; k > place.i; k--) seq[k * LANES] = seq[(k - 1) * LANES];
    seq[place.i * LANES] = (Byte)pickup;
    return m + 1;
}

// The first of the places whose route is worth least, if that is below the bound; else i is -1. The table is seq's.
// Where more than one place is worth the same the first of the scan stays.
template <class W>
ON_DEVICE_APART Place best_place(const Task task, const Lane<W> own, const Byte* seq, int m, const Totals<W> table,
                                 int pickup, int delivery, W& bound) {
    Place best = {-1, -1};
    int u0 = 0, t0 = task.start, load0 = task.load_start;
    W worth0 = W::nothing();
    for (int i = 0; i <= m; i++) {
        if (!worth0.below(bound)) break;  // prefixes only get dearer
        if (load0 > task.capacity) break;  // an order on board must be delivered sooner
        int u = u0, t = t0, load = load0, last = i;
        W worth = worth0;
        bool open = true;
        if (pickup > 0) {
            step(task, u, pickup, t, worth);
            load += task.stops[pickup].w;
            open = load <= task.capacity;
            u = pickup;
            last = m;
        }
        for (int j = i; open && j <= last; j++) {
            int t2 = t;
            W worth2 = worth;
            step(task, u, delivery, t2, worth2);
            if (worth2.below(bound)) {
                W found = rest(task, own, seq, m, table, j, delivery, t2, worth2, bound);
                if (found.below(bound)) {
                    bound = found;
                    best = {i, j};
                }
            }
            if (j < last) {
                int v = seq[j * LANES];
                step(task, u, v, t, worth);
                u = v;
                if (task.tight) {
                    load += task.stops[v].w;
                    open = load <= task.capacity;
                }
                open = open && worth.below(bound);
            }
        }
        if (i < m) {
            int v = seq[i * LANES];
            step(task, u0, v, t0, worth0);
            u0 = v;
            if (task.tight) load0 += task.stops[v].w;
        }
    }
    return best;
}

// The k-th stop of a shared route with an order put at its places.
ON_DEVICE int at_place(const Byte* seq, int o, Place place, int k) {
    if (k < place.i) return seq[k];
    if (k == place.i) return 2 * o + 1;
    k--;
    if (k < place.j) return seq[k];
    return k == place.j ? 2 * o + 2 : seq[k - 1];
}

ON_DEVICE bool place_before(const Byte* seq, int m, int o, Place first, Place second) {
    for (int k = 0; k < m + 2; k++) {
        int a = at_place(seq, o, first, k), b = at_place(seq, o, second, k);
        if (a != b) return a < b;
    }
    return false;
}

// Whether the first is the better one: less worth, or equal and lexicographically smaller.
template <class W>
ON_DEVICE bool wins(const Byte* seq, int m, int o, const W& worth, Place place, const W& other, Place other_place) {
    if (worth.below(other)) return true;
    if (other.below(worth) || place.i < 0) return false;
    return other_place.i < 0 || place_before(seq, m, o, place, other_place);
}

// Put order o into a route that the lanes share. Returns its worth; a route of no place has length -1.
template <class W> ON_DEVICE W insert_shared(const Task& task, Byte* seq, int& m, int o) {
    W best = W::far();
    Place place = {-1, -1};
    int places = (m + 1) * (m + 2) / 2;
    for (int q = task.lane; q < places; q += LANES) {
        Place tried = {0, q};  // q counts places row by row: row i has m + 1 - i of them
        while (tried.j > m - tried.i) tried.j -= m + 1 - tried.i++;
        tried.j += tried.i;
        int u = 0, t = task.start, load = task.load_start, k = 0;
        W worth = W::nothing();
        for (; k < m + 2; k++) {
            int v = at_place(seq, o, tried, k);
            step(task, u, v, t, worth);
            load += task.stops[v].w;
            u = v;
            if (load > task.capacity || best.below(worth)) break;
        }
        if (k < m + 2) continue;
        finish(task, u, t, worth);
        if (wins(seq, m, o, worth, tried, best, place)) {
            best = worth;
            place = tried;
        }
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        W other = best.of_partner(apart);
        Place theirs = {from_partner(place.i, apart), from_partner(place.j, apart)};
        if (wins(seq, m, o, other, theirs, best, place)) {
            best = other;
            place = theirs;
        }
    }
    warp_sync();
    if (place.i < 0) {
        m = -1;
        return W::far();
    }
    if (task.lane == 0) {
        for (int k = m + 1; k > place.j + 1; k--) seq[k] = seq[k - 2];
        seq[place.j + 1] = (Byte)(2 * o + 2);
        for (int k = place.j; k > place.i; k--) seq[k] = seq[k - 1];
        seq[place.i] = (Byte)(2 * o + 1);
    }
    m += 2;
    warp_sync();
    return best;
}

// The `insert` solver: the new orders (at most two) into task.best, two of them in both orders. Returns (length,
// worth).
template <class W> ON_DEVICE W insert_new(const Task& task, int& m) {
    int first = task.n_hand, second = task.n - 1, m_other = m;
    if (first == second) return insert_shared<W>(task, task.best, m, first);
    Byte* other = (Byte*)task.lanes + 64;
    for (int k = task.lane; k < m; k += LANES) other[k] = task.best[k];
    warp_sync();
    W worth = W::far(), worth_other = W::far();
    insert_shared<W>(task, task.best, m, first);
    if (m >= 0) worth = insert_shared<W>(task, task.best, m, second);
    insert_shared<W>(task, other, m_other, second);
    if (m_other >= 0) worth_other = insert_shared<W>(task, other, m_other, first);
    bool better = worth_other.below(worth);
    if (!better && !worth.below(worth_other))
        for (int k = 0; k < m_other; k++)
            if (other[k] != task.best[k]) {
                better = other[k] < task.best[k];
                break;
            }
    warp_sync();
    if (!better) return worth;
    for (int k = task.lane; k < m_other; k += LANES) task.best[k] = other[k];
    m = m_other;
    warp_sync();
    return worth_other;
}
