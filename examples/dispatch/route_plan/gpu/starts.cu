// two_stage: each lane builds a route from its own order of insertion and improves it; the best of all lanes stays.
//
// Four orders follow rules, the others are shuffles that depend on (seed, task number, start number) alone. Equal worth
// goes to the lower start number. Next: exact.cu.

ON_DEVICE Word64 mix(Word64 z) {  // splitmix64 (Steele, Lea, Flood 2014)
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

ON_DEVICE void shuffle(Byte* order, int n, Int64 seed, int number, int start) {
    Word64 state = mix(mix(mix((Word64)seed) + (Word64)(Int64)number) + (Word64)start);
    for (int k = n - 1; k > 0; k--) {
        state += 0x9E3779B97F4A7C15ull;
        int other = (int)((mix(state) >> 33) % (unsigned)(k + 1));
        Byte held = order[k * LANES];
        order[k * LANES] = order[other * LANES];
        order[other * LANES] = held;
    }
}

ON_DEVICE int rule_key(const Task& task, int o, int rule) {
    int delivery = 2 * o + 2, first = pickup_of(task, o) > 0 ? 2 * o + 1 : delivery;
    if (rule == 0) return task.stops[delivery].y;
    if (rule == 1) return task.legs[first].y;
    if (rule == 2) return -task.legs[delivery].y;
    return task.stops[first].x;
}

// Write the start's order of insertion: orders on board first, for their load binds until they are placed.
ON_DEVICE void start_order(const Task& task, int n, Int64 seed, int number, int start, Byte* order, int* keys) {
    for (int o = 0; o < n; o++) order[o * LANES] = (Byte)o;
    if (start >= RULES) shuffle(order, n, seed, number, start);
    for (int o = 0; o < n; o++) keys[o * LANES] = start >= RULES ? 0 : rule_key(task, o, start);
    for (int k = 1; k < n; k++) {  // a stable insertion sort by (picked up, key)
        int held = order[k * LANES], q = k - 1;
        bool waits = pickup_of(task, held) > 0;
        for (; q >= 0; q--) {
            int other = order[q * LANES];
            bool other_waits = pickup_of(task, other) > 0;
            if (!(other_waits && !waits) && !(other_waits == waits && keys[other * LANES] > keys[held * LANES])) break;
            order[(q + 1) * LANES] = (Byte)other;
        }
        order[(q + 1) * LANES] = (Byte)held;
    }
}

// Build and improve one start's route in own.seq. Returns its worth, FAR where an order found no place.
template <class W>
ON_DEVICE_APART W follow(const Task task, const Lane<W> own, int n, Int64 seed, int number, int start) {
    start_order(task, n, seed, number, start, own.spare, own.at);
    int m = 0;
    bool placed = true;
    for (int k = 0; k < n && placed; k++) {
        int o = own.spare[k * LANES];
        Totals<W> table = fill(task, own, own.seq, m);
        W worth = W::far();
        Place place = best_place(task, own, own.seq, m, table, pickup_of(task, o), 2 * o + 2, worth);
        placed = place.i >= 0;
        if (placed) m = put(own.seq, m, pickup_of(task, o), 2 * o + 2, place);
    }
    return placed ? improve(task, own, m, n) : W::far();
}

ON_DEVICE int stops_of(const Task& task, int n) {
    int m = 0;
    for (int o = 0; o < n; o++) m += task.riding >> o & 1 ? 1 : 2;
    return m;
}

// Write the best route of the first n orders into task.best. Returns its worth; its length is -1 where none fits the
// load.
template <class W>
ON_DEVICE_APART W two_stage(const Task task, const Lane<W> own, int n, int starts, Int64 seed, int number,
                            int& length) {
    int m = stops_of(task, n), winner = INT32_MAX;
    W best = W::far();
    for (int start = task.lane; start < starts; start += LANES) {
        W worth = follow(task, own, n, seed, number, start);
        if (worth.below(best)) {
            best = worth;
            winner = start;
            for (int k = 0; k < m; k++) own.kept[k * LANES] = own.seq[k * LANES];
        }
    }
    warp_sync();
    int mine = winner;
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        W other = best.of_partner(apart);
        int theirs = from_partner(winner, apart);
        if (other.below(best) || (!best.below(other) && theirs < winner)) {
            best = other;
            winner = theirs;
        }
    }
    length = winner == INT32_MAX ? -1 : m;
    if (winner != INT32_MAX && mine == winner)
        for (int k = 0; k < m; k++) task.best[k] = own.kept[k * LANES];
    warp_sync();
    return best;
}
