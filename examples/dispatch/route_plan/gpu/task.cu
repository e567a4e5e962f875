// One task in a warp's memory: the legs and stops that all lanes read, and the arrays that each lane has for itself.
//
// Arrays of lanes are interleaved: equal places of all lanes lie side by side, so that lanes in step touch each bank
// once. The memory of a task of n orders is laid out by carve(); geometry.py counts the same bytes. Next: load.cu.

// Addresses and lengths of a request's tensors, one Int64 each; HEAD_ names are places in this list.
typedef const Int64* Head;

ON_DEVICE const int* ints(Head head, int place) { return (const int*)head[place]; }

struct Task {
    int lane;
    int stride, end;    // legs[u * stride + v]; the end stop has the number after the last order's delivery
    int n, n_hand;      // orders, and how many of them are in hand
    int a, b, c, h;     // prices of a metre, a second late, a second waited, and of the finish time
    int start, capacity, load_start, has_end;
    bool tight;         // whether a route could overload the rider at all
    unsigned riding;    // bit i: order i is on board, its pickup is done
    int2* legs;         // seconds from the begin of service at u to the arrival at v, metres
    int4* stops;        // ready, due, price of a second late, load
    int* service;       // seconds
    int* near;          // exact only: shortest seconds between any two stops
    int* least_metres;  // exact only: least metres into a stop
    Byte* best;         // the route that goes out
    int* arrivals;
    int* scratch;       // exact only: the bound that all lanes share, 64 bits
    char* lanes;        // where the lanes' own arrays begin
    int2* spots;        // while loading, where the lanes' arrays stand later
    int* rows;
};

// What one lane has for itself while it follows one start.
template <class W> struct Lane {
    Byte* seq;
    Byte* spare;
    Byte* kept;  // the better route of this lane's starts
    int* at;     // of the route in the table, before its k-th stop: begin of service at the stop before,
    W* worth;    // what it has cost until then,
    W* sure;     // and that without the price of waiting, which a later arrival can save
};

template <class W> struct Totals { W all, sure; };

ON_DEVICE int pickup_of(const Task& task, int o) { return task.riding >> o & 1 ? 0 : 2 * o + 1; }

ON_DEVICE int padded(int bytes) { return (bytes + 15) / 16 * 16; }

// Bytes of shared memory of one warp whose tasks have at most n orders. `lean` is for insertion, where lanes share a
// route.
ON_DEVICE int task_bytes(int n, int worth_bytes, bool lean, bool exact) {
    int size = 2 * n + 2, m = 2 * n + 1;
    int common = padded(size * size * 8) + padded(size * 16) + padded(size * 4) + 32 + 64 + 16;
    if (exact) common += padded(size * size * 4) + padded(size * 4);
    if (lean) return common + 3 * 64 + padded(size * 8);
    return common + 3 * padded(m * LANES) + m * LANES * 4 + 2 * m * LANES * worth_bytes + 16;
}

template <class W> ON_DEVICE Lane<W> lane_of(const Task& task, int n_max) {
    int m = 2 * n_max + 1, bytes = padded(m * LANES);
    Lane<W> own;
    own.worth = (W*)task.lanes + task.lane;
    own.sure = (W*)task.lanes + m * LANES + task.lane;
    char* rest = task.lanes + 2 * m * LANES * (int)sizeof(W);
    own.at = (int*)rest + task.lane;
    rest += m * LANES * 4;
    own.seq = (Byte*)rest + task.lane;
    own.spare = own.seq + bytes;
    own.kept = own.spare + bytes;
    return own;
}

ON_DEVICE void carve(Task& task, char* memory, int n_max, int worth_bytes, bool lean, bool exact) {
    int size = 2 * n_max + 2;
    task.legs = (int2*)memory;
    memory += padded(size * size * 8);
    task.stops = (int4*)memory;
    memory += padded(size * 16);
    task.service = (int*)memory;
    memory += padded(size * 4);
    task.arrivals = (int*)memory;
    memory += 64;
    task.best = (Byte*)memory;
    memory += 32;
    task.scratch = (int*)memory;
    memory += 16;
    if (exact) {
        task.near = (int*)memory;
        memory += padded(size * size * 4);
        task.least_metres = (int*)memory;
        memory += padded(size * 4);
    }
    task.lanes = memory;
    task.rows = (int*)memory;
    task.spots = (int2*)(memory + 64);
    if (!lean) return;
    task.spots = (int2*)(memory + 3 * 64);
}
