// Blocks of CUDA threads on a CPU: one fiber for each thread of a block, or of all blocks of a cluster. Fibers wait where the threads of
// their warp or block exchange. What the generated kernels need of the hardware (cuda_intrinsics.cuh), in plain C++; everything else is the text that a GPU runs.
#include <cmath>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define DEVICE inline
#define RARE inline
#define __cluster_dims__(...)
#define ROOM(T, name) T* const name = reinterpret_cast<T*>(host::room())

struct Place { int x; };
static Place threadIdx, blockIdx;

namespace host {
// A list of plain values that begin as zeros. Its memory lives until `drop`. (The functions of std::vector would be most of a compiled
// kernel, and take most of the time of its compilation.)
template <class T> struct List {
    T* at;
    int count, room;
    T& operator[](int i) { return at[i]; }
    void resize(int n) {
        if (n > room) room += n, at = static_cast<T*>(std::realloc(static_cast<void*>(at), sizeof(T) * room));
        if (n > count) std::memset(static_cast<void*>(at + count), 0, sizeof(T) * (n - count));
        count = n;
    }
    void begin(int n) { count = 0, resize(n); }
    void drop() { std::free(static_cast<void*>(at)), at = nullptr, count = room = 0; }
};
struct Copy { void* to; const void* from; int bytes, round; };
struct Fiber {
    ucontext_t context; jmp_buf left; bool begun, done; int points;
    List<Copy> copies; int round;  // asynchronous copies that nobody has waited for; the round that is open
};
struct Meeting { int here, turn; };
static List<Fiber> fibers;
static List<Meeting> warp_meetings, block_meetings;
static List<List<unsigned char>> rooms;  // dynamic shared memory of each block
static jmp_buf scheduler;
static int current, size_of_block, begun;  // `begun`: threads that have arrived at the barrier of their cluster
static bool moved;  // whether a fiber did anything but wait
static List<double> slots[2];
static const int STACK = 1 << 16;  // bytes

// Prepare a fiber for a function of the address of a body, in two halves.
template <class F> void prepare(Fiber& f, char* stack, void (*function)(unsigned, unsigned), F& body) {
    f.begun = f.done = false, f.points = f.round = f.copies.count = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
    size_t at = reinterpret_cast<size_t>(&body);
    makecontext(&f.context, reinterpret_cast<void (*)()>(function), 2, unsigned(at), unsigned(at >> 32));
}
// Prepare `count` fibers; returns the memory of their stacks, of which only the pages that are used take room. To be freed after the
// launch, because the libraries of all kernels stay loaded.
template <class F> char* prepare(List<Fiber>& list, int count, void (*function)(unsigned, unsigned), F& body) {
    if (list.count < count) list.resize(count);
    char* stacks = static_cast<char*>(std::malloc(size_t(count) * STACK));
    for (int t = 0; t < count; ++t) prepare(list[t], stacks + size_t(t) * STACK, function, body);
    return stacks;
}
// Run a fiber until it leaves. Only its start is a system call.
inline void resume(Fiber& f) {
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.left, 1);
    f.begun = true;
    setcontext(&f.context);
}
// Leave a fiber until it is resumed.
inline void leave(Fiber& f) {
    if (!_setjmp(f.left)) _longjmp(scheduler, 1);
}

// Wait until all `size` threads of a warp or block are here.
inline void meet(Meeting& there, int size) {
    const int turn = there.turn;
    ++fibers[current].points, moved = true;
    if (++there.here == size) there.here = 0, ++there.turn;
    else while (there.turn == turn) leave(fibers[current]);
}
inline void meet() { meet(block_meetings[current / size_of_block], size_of_block); }
inline void meet_warp() { meet(warp_meetings[current / 32], size_of_block < 32 ? size_of_block : 32); }
inline unsigned char* room(int block = -1) {
    if (rooms.count == 0) return nullptr;  // where shared memory is known by addresses only (cuda_roles_host.h)
    unsigned char* at = rooms[block < 0 ? current / size_of_block : block].at;
    return at + (128 - reinterpret_cast<size_t>(at) % 128) % 128;
}

template <class F> void enter(unsigned low, unsigned high) {
    F* body = reinterpret_cast<F*>((size_t(high) << 32) | low);
    (*body)();
    fibers[current].done = moved = true;
    leave(fibers[current]);
}

// All blocks of a cluster, from block `first` on; whether all threads ended, and none waits for ever. Shared memory begins as NaN.
template <class F> bool run_blocks(int first, int cluster, int threads, F body) {
    const int count = cluster * threads;
    size_of_block = threads, begun = 0;
    warp_meetings.begin(count / 32 + 1), block_meetings.begin(cluster);
    if (rooms.count < cluster) rooms.resize(cluster);
    for (int b = 0; b < cluster; ++b) rooms[b].resize((256 << 10) + 128), std::memset(rooms[b].at, 255, rooms[b].count);
    for (auto& s : slots) s.begin(count);
    char* stacks = prepare(fibers, count, enter<F>, body);
    bool stuck = false;
    for (bool more = true; more;) {
        more = moved = false;
        for (current = 0; current < count; ++current) {
            if (fibers[current].done) continue;
            threadIdx.x = current % threads, blockIdx.x = first + current / threads;
            resume(fibers[current]);
            more |= !fibers[current].done;
        }
        stuck = more && !moved, more &= !stuck;
    }
    std::free(stacks);
    for (int b = 0; b < rooms.count; ++b) rooms[b].drop();
    return !stuck;
}

// An argument of a kernel: an address, or a size that is passed as one.
template <class A> A argument(void* x) {
    if constexpr (std::is_pointer_v<A>) return static_cast<A>(x);
    else return static_cast<A>(reinterpret_cast<size_t>(x));
}
template <class... A, size_t... I>
bool grid(void (*kernel)(A...), void** args, int blocks, int threads, int cluster, std::index_sequence<I...>) {
    for (int b = 0; b < blocks; b += cluster)
        if (!run_blocks(b, cluster, threads, [&] { kernel(argument<A>(args[I])...); })) return false;
    return true;
}
template <class... A> bool run(void (*kernel)(A...), void** args, int blocks, int threads, int cluster) {
    return grid(kernel, args, blocks, threads, cluster, std::index_sequence_for<A...>{});
}
}  // namespace host

inline void __syncthreads() { host::meet(); }
inline void __syncwarp() { host::meet_warp(); }
inline void visible() {}
inline void begin_next() {}
inline void prefetch_line(const void* x) { volatile char there = *static_cast<const char*>(x); (void)there; }  // reads: an address beyond an operand is found
inline void await_previous() {}
inline float recent(const float* x) { return *x; }
inline void recent_word(float* y, const float* x) { std::memcpy(y, x, 16); }
// Asynchronous copies happen as late as they may: when their round is waited for; with AT_ONCE, as early as they may.
template <int N> void fetch_near(void* to, const void* from) {
#ifdef AT_ONCE
    std::memcpy(to, from, N);
#else
    host::Fiber& f = host::fibers[host::current];
    f.copies.resize(f.copies.count + 1);
    f.copies[f.copies.count - 1] = {to, from, N, f.round};
#endif
}
template <class P, class T> void fetch_word(P& to, const T* from) { fetch_near<16>(&to, from); }
template <class P, class T> void fetch_line(P& to, const T* from) { fetch_word(to, from); }
inline void end_round() { ++host::fibers[host::current].round; }
template <int N> void await_round() {
    host::Fiber& f = host::fibers[host::current];
    int left = 0;
    for (int i = 0; i < f.copies.count; ++i) {
        const host::Copy c = f.copies[i];
        if (c.round < f.round - N) std::memcpy(c.to, c.from, c.bytes);
        else f.copies[left++] = c;
    }
    f.copies.count = left;
}
template <class T> T atomicAdd(T* x, T n) { T before = *x; *x += n; return before; }

template <class T> T across_lanes(T x, int step) {
    const int own = host::current, parity = host::fibers[own].points % 2;
    std::memcpy(&host::slots[parity][own], &x, sizeof x);
    host::meet_warp();
    T y;
    std::memcpy(&y, &host::slots[parity][own ^ step], sizeof y);
    return y;
}

template <class P, class T> void read_past(P& to, const T* from) { std::memcpy(&to, from, 16); }

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
inline float infinity() { return HUGE_VALF; }
inline float from_byte(int i) { return i; }
inline float from_signed_byte(int i) { return (signed char)i; }
inline float wide(bf16 x) { unsigned bits = unsigned(x.bits) << 16; float y; std::memcpy(&y, &bits, 4); return y; }
inline float wide(f16 x) { _Float16 y; std::memcpy(&y, &x.bits, 2); return float(y); }
inline void narrow(float x, bf16& y) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    y.bits = x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void narrow(float x, f16& y) { _Float16 h = _Float16(x); std::memcpy(&y.bits, &h, 2); }

inline unsigned pick(unsigned a, unsigned b, unsigned digits) {
    unsigned y = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned at = digits >> 4 * i & 7;
        y |= ((at < 4 ? a : b) >> 8 * (at % 4) & 255) << 8 * i;
    }
    return y;
}
inline float __uint_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;
template <class T> unsigned pair_of(float low, float high, T) {
    T a, b;
    narrow(low, a), narrow(high, b);
    return a.bits | unsigned(b.bits) << 16;
}
template <class T> unsigned pair_sum(unsigned a, unsigned b, unsigned c, T) {
    T x[2], y[2], z[2];
    for (int i = 0; i < 2; ++i) x[i].bits = a >> 16 * i, y[i].bits = b >> 16 * i, z[i].bits = c >> 16 * i;
    return pair_of(wide(x[0]) * wide(y[0]) + wide(z[0]), wide(x[1]) * wide(y[1]) + wide(z[1]), T());
}
template <class T> void pairs_of_float8(unsigned& low, unsigned& high, unsigned codes, T) {
    float found[4];
    for (int i = 0; i < 4; ++i) {
        int code = codes >> 8 * i & 255, power = code >> 3 & 15, rest = code & 7;
        found[i] = ldexpf(power ? 8 + rest : rest, (power ? power : 1) - 10);
        if ((code & 127) == 127) found[i] = NAN;
        if (code & 128) found[i] = -found[i];
    }
    low = pair_of(found[0], found[1], T()), high = pair_of(found[2], found[3], T());
}

// 16 rows times 8 columns, 16 elements of the sum: every thread of a warp shows what it holds, and adds what is its own.
template <class T> void matrix_step(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, T) {
    static unsigned held[2][1 << 14][6];
    const int thread = host::current, first = thread / 32 * 32, parity = host::fibers[thread].points % 2;
    const unsigned own[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(held[parity][thread], own, sizeof own);
    host::meet_warp();
    auto at = [&](int lane, int word, int half) {
        T x;
        x.bits = held[parity][first + lane][word] >> 16 * half & 0xffff;
        return wide(x);
    };
    for (int i = 0; i < 4; ++i) {
        const int row = thread % 32 / 4 + i / 2 * 8, column = thread % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k)
            c[i] += at(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) * at(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }

namespace op {
inline float max(float a, float b) { return a != a || a > b ? a : b; }
inline float min(float a, float b) { return a != a || a < b ? a : b; }
inline float exp2(float x) { return exp2f(x); }
inline float div(float a, float b) { return a / b; }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float held_sum(float a, float b, float c) { float y = a * b + c; return y > 0 ? y < 1 ? y : 1 : 0; }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
}  // namespace op
