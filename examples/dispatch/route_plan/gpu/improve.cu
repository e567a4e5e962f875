// Local search on one lane's route: move an order, move one stop, reverse a piece, until nothing helps. Moves are tried
// in the order of improve.py and taken only if strictly better, so both end in the same route. Next: starts.cu.

enum { REVERSED, LAST_TO_FRONT, FIRST_TO_END };

ON_DEVICE int rearranged(const Byte* seq, int low, int high, int kind, int k) {
    if (kind == REVERSED) return seq[(low + high - k) * LANES];
    if (kind == LAST_TO_FRONT) return seq[(k > low ? k - 1 : high) * LANES];
    return seq[(k < high ? k + 1 : low) * LANES];
}

// Whether the route with its stops low..high rearranged is worth less than the table's.
template <class W>
ON_DEVICE bool piece_helps(const Task& task, const Lane<W>& own, const Byte* seq, int m, const Totals<W>& table,
                           int low, int high, int kind) {
    int t = own.at[low * LANES], u = low > 0 ? seq[(low - 1) * LANES] : 0, load = task.load_start;
    W worth = own.worth[low * LANES];
    if (task.tight)
        for (int k = 0; k < low; k++) load += task.stops[seq[k * LANES]].w;
    for (int k = low; k <= high; k++) {
        int v = rearranged(seq, low, high, kind, k);
        step(task, u, v, t, worth);
        u = v;
        if (task.tight) {
            load += task.stops[v].w;
            if (load > task.capacity) return false;
        }
        if (!worth.below(table.all)) return false;
    }
    return rest(task, own, seq, m, table, high + 1, u, t, worth, table.all).below(table.all);
}

ON_DEVICE void rearrange(Byte* seq, int low, int high, int kind) {
    if (kind == REVERSED) {
        for (; low < high; low++, high--) {
            Byte held = seq[low * LANES];
            seq[low * LANES] = seq[high * LANES];
            seq[high * LANES] = held;
        }
    } else if (kind == LAST_TO_FRONT) {
        Byte held = seq[high * LANES];
        for (int k = high; k > low; k--) seq[k * LANES] = seq[(k - 1) * LANES];
        seq[low * LANES] = held;
    } else {
        Byte held = seq[low * LANES];
        for (int k = low; k < high; k++) seq[k * LANES] = seq[(k + 1) * LANES];
        seq[high * LANES] = held;
    }
}

// Take each order out and put it where it is best. The table serves the route without the order meanwhile.
template <class W>
ON_DEVICE bool move_orders(const Task& task, const Lane<W>& own, int m, int orders, W& worth) {
    bool moved = false;
    for (int o = 0; o < orders; o++) {
        int pickup = pickup_of(task, o), delivery = 2 * o + 2, length = 0;
        for (int k = 0; k < m; k++) {
            int v = own.seq[k * LANES];
            if (v != delivery && v != pickup) own.spare[length++ * LANES] = (Byte)v;
        }
        Totals<W> table = fill(task, own, own.spare, length);
        W found = worth;
        Place place = best_place(task, own, own.spare, length, table, pickup, delivery, found);
        if (place.i >= 0) {
            put(own.spare, length, pickup, delivery, place);
            for (int k = 0; k < m; k++) own.seq[k * LANES] = own.spare[k * LANES];
            worth = found;
            moved = true;
        }
    }
    return moved;
}

// Move single stops, backwards then forwards, never past the other stop of their order. The table is seq's.
template <class W> ON_DEVICE bool move_stops(const Task& task, const Lane<W>& own, int m, Totals<W>& table) {
    bool moved = false;
    for (int p = 0; p < m; p++) {
        int v = own.seq[p * LANES], partner = v % 2 == 1 ? v + 1 : v - 1, to = -1;
        for (int q = p - 1; q >= 0 && own.seq[q * LANES] != partner; q--)
            if (piece_helps(task, own, own.seq, m, table, q, p, LAST_TO_FRONT)) {
                to = q;
                break;
            }
        if (to < 0)
            for (int q = p + 1; q < m && own.seq[q * LANES] != partner; q++)
                if (piece_helps(task, own, own.seq, m, table, p, q, FIRST_TO_END)) {
                    to = q;
                    break;
                }
        if (to >= 0) {
            rearrange(own.seq, least(p, to), most(p, to), to < p ? LAST_TO_FRONT : FIRST_TO_END);
            table = fill(task, own, own.seq, m);
            moved = true;
        }
    }
    return moved;
}

// Reverse pieces that hold no order whole. The table is seq's.
template <class W> ON_DEVICE bool reverse_pieces(const Task& task, const Lane<W>& own, int m, Totals<W>& table) {
    bool moved = false;
    for (int low = 0; low < m - 1; low++) {
        unsigned seen = 1u << (own.seq[low * LANES] - 1) / 2;
        for (int high = low + 1; high < m; high++) {
            unsigned order = 1u << (own.seq[high * LANES] - 1) / 2;
            if (seen & order) break;
            seen |= order;
            if (high - low > 1 && piece_helps(task, own, own.seq, m, table, low, high, REVERSED)) {
                rearrange(own.seq, low, high, REVERSED);  // the piece holds the same orders as before: the scan goes on
                table = fill(task, own, own.seq, m);
                moved = true;
            }
        }
    }
    return moved;
}

// Improve the lane's route in place to a local optimum of the three moves. Returns what it is worth.
template <class W> ON_DEVICE W improve(const Task& task, const Lane<W>& own, int m, int orders) {
    Totals<W> table = fill(task, own, own.seq, m);
    int idle = 0;  // kinds of move that found nothing, one after the other
    for (int turn = 0; turn < 3 * PASSES_MAX && idle < 3; turn++) {
        bool moved;
        if (turn % 3 == 0) {
            moved = move_orders(task, own, m, orders, table.all);
            table = fill(task, own, own.seq, m);
        } else if (turn % 3 == 1) {
            moved = move_stops(task, own, m, table);
        } else {
            moved = reverse_pieces(task, own, m, table);
        }
        idle = moved ? 0 : idle + 1;
    }
    return table.all;
}
