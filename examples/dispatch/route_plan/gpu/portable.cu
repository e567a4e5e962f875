// What the kernels stand on: a warp's lanes, how they talk, and what a route is worth.
//
// The same text compiles twice: for a GPU, with 32 lanes to a warp, and as plain C++ with one lane, so that its answers
// can be compared on any machine. Files are joined in the order of source.py; constants come from layout.py. Next:
// task.cu.

#ifdef __CUDACC__
#define ON_DEVICE __device__ __forceinline__
#define ON_DEVICE_APART __device__ __noinline__
#define MEMBER __device__ __forceinline__
#define LANES 32
ON_DEVICE void warp_sync() { __syncwarp(); }
ON_DEVICE int from_partner(int value, int apart) { return __shfl_xor_sync(0xffffffffu, value, apart); }
ON_DEVICE void lower(long long* bound, long long value) { atomicMin(bound, value); }
ON_DEVICE double root(double square) { return __dsqrt_rn(square); }
ON_DEVICE double quotient(double a, double b) { return __ddiv_rn(a, b); }
ON_DEVICE double product(double a, double b) { return __dmul_rn(a, b); }
#else
#define ON_DEVICE static inline
#define ON_DEVICE_APART static
#define MEMBER inline
#define LANES 1
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
ON_DEVICE void warp_sync() {}
ON_DEVICE int from_partner(int value, int) { return value; }
ON_DEVICE void lower(long long* bound, long long value) { if (value < *bound) *bound = value; }
ON_DEVICE double root(double square) { return __builtin_sqrt(square); }
ON_DEVICE double quotient(double a, double b) { return a / b; }
ON_DEVICE double product(double a, double b) { return a * b; }
#endif

typedef long long Int64;
typedef unsigned long long Word64;
typedef unsigned char Byte;

ON_DEVICE int least(int a, int b) { return a < b ? a : b; }
ON_DEVICE int most(int a, int b) { return a > b ? a : b; }

ON_DEVICE int warp_min(int value) {
    for (int apart = LANES / 2; apart > 0; apart /= 2) value = least(value, from_partner(value, apart));
    return value;
}
ON_DEVICE int warp_max(int value) {
    for (int apart = LANES / 2; apart > 0; apart /= 2) value = most(value, from_partner(value, apart));
    return value;
}
ON_DEVICE Int64 from_partner64(Int64 value, int apart) {
    Word64 low = (unsigned)from_partner((int)(unsigned)value, apart);
    Word64 high = (unsigned)from_partner((int)(unsigned)((Word64)value >> 32), apart);
    return (Int64)(high << 32 | low);
}

// Three kinds of worth, one interface. Narrow holds a cost below 2^30, which load() proves for a task before it is
// used; Wide any cost; Hard adds the seconds by which hard windows are missed, compared first.
struct Narrow {
    int cost;
    static const bool HARD_WINDOWS = false;
    static const bool ALL_COSTS = false;
    static MEMBER Narrow nothing() { return {0}; }
    static MEMBER Narrow far() { return {0x7fffffff}; }
    MEMBER void pay(int price, int units) { cost += price * units; }
    MEMBER void miss(int) {}
    MEMBER bool below(const Narrow& other) const { return cost < other.cost; }
    MEMBER Narrow plus(const Narrow& a, const Narrow& b) const { return {cost + a.cost - b.cost}; }
    MEMBER Int64 total() const { return cost; }
    MEMBER bool kept() const { return true; }
    MEMBER Narrow of_partner(int apart) const { return {from_partner(cost, apart)}; }
};

struct Wide {
    Int64 cost;
    static const bool HARD_WINDOWS = false;
    static const bool ALL_COSTS = true;
    static MEMBER Wide nothing() { return {0}; }
    static MEMBER Wide far() { return {FAR}; }
    MEMBER void pay(int price, int units) { cost += (Int64)price * units; }
    MEMBER void miss(int) {}
    MEMBER bool below(const Wide& other) const { return cost < other.cost; }
    MEMBER Wide plus(const Wide& a, const Wide& b) const { return {cost + a.cost - b.cost}; }
    MEMBER Int64 total() const { return cost; }
    MEMBER bool kept() const { return true; }
    MEMBER Wide of_partner(int apart) const { return {from_partner64(cost, apart)}; }
};

struct Hard {
    Int64 missed, cost;
    static const bool HARD_WINDOWS = true;
    static const bool ALL_COSTS = true;
    static MEMBER Hard nothing() { return {0, 0}; }
    static MEMBER Hard far() { return {FAR, FAR}; }
    MEMBER void pay(int price, int units) { cost += (Int64)price * units; }
    MEMBER void miss(int seconds) { missed += seconds; }
    MEMBER bool below(const Hard& other) const {
        return missed < other.missed || (missed == other.missed && cost < other.cost);
    }
    MEMBER Hard plus(const Hard& a, const Hard& b) const {
        return {missed + a.missed - b.missed, cost + a.cost - b.cost};
    }
    MEMBER Int64 total() const { return cost; }
    MEMBER bool kept() const { return missed == 0; }
    MEMBER Hard of_partner(int apart) const { return {from_partner64(missed, apart), from_partner64(cost, apart)}; }
};
