// Roles of warps on a CPU: every thread of a cluster's blocks is a fiber that goes on where it need not wait. Boxes are copied at once,
// products and results as late as they may be: memory that is given back too early shows. Lines of shared memory are exchanged as
// the copy unit and the matrix unit do.
#include <cstdint>
#include <new>

#define __cluster_dims__(...)
typedef unsigned Address;
struct Box { char* data; int64_t rows, columns, height, width, apart; };  // a matrix of 16-bit elements, the box, and from row to row
struct Described {
    const Box* box;
    explicit Described(void* x) : box(static_cast<const Box*>(x)) {}
    operator const Box&() const { return *box; }
};
#define DESCRIBED Described

namespace host {
struct Barrier { int block; Address at; int arrivals, here, phase; int64_t bytes; };
struct Group { int block, which, here, turn; };
struct Task { void (*run)(void*); void* data; int round; };
struct Tasks {  // of one thread: those under way, by rounds; the last round is open
    List<Task> listed;
    int round;
    void end_round() { ++round; }
    // Run all but the last `left` rounds that have ended.
    void finish(int left) {
        int kept = 0;
        for (int i = 0; i < listed.count; ++i) {
            const Task one = listed[i];
            if (one.round < round - left) one.run(one.data), std::free(one.data);
            else listed[kept++] = one;
        }
        listed.count = kept;
    }
    template <class F> void add(F task) {
        listed.resize(listed.count + 1);
        void (*run)(void*) = [](void* data) { (*static_cast<F*>(data))(); };
        listed[listed.count - 1] = {run, new (std::malloc(sizeof(F))) F(task), round};
    }
};
static int cluster = 1, changes;
static bool stuck;
static const int MEMORY = 227 << 10;
static List<List<unsigned char>> memory;
static Barrier barriers[1024];  // in arrays whose elements stay where they are: threads wait with references to them
static Group groups[1024];
static int count_of_barriers, count_of_groups;
static List<Tasks> products, puts;
static List<Fiber> threads_of_cluster;
static int threads_of_block, now;

inline int block() { return blockIdx.x % cluster; }
inline unsigned char* at(int block, Address a) {
    if (block >= memory.count || a >= Address(MEMORY)) std::abort();
    return &memory[block][a];
}
inline Barrier* found(int block, Address at) {
    for (int i = 0; i < count_of_barriers; ++i)
        if (barriers[i].at == at && barriers[i].block == block) return &barriers[i];
    return nullptr;
}
inline Barrier& barrier(int block, Address at) {
    Barrier* b = found(block, at);
    if (!b) std::abort();
    return *b;
}
inline Group& group(int block, int which) {
    for (int i = 0; i < count_of_groups; ++i)
        if (groups[i].block == block && groups[i].which == which) return groups[i];
    if (count_of_groups == 1024) std::abort();
    return groups[count_of_groups++] = {block, which, 0, 0};
}
inline Address exchanged(Address a) { return a ^ (a >> 3 & 0x70); }
inline float value(int block, Address a, bf16) { bf16 x; std::memcpy(&x, at(block, exchanged(a)), 2); return wide(x); }
inline float value(int block, Address a, f16) { f16 x; std::memcpy(&x, at(block, exchanged(a)), 2); return wide(x); }
inline void give_way() { leave(threads_of_cluster[now]); }
template <class F> void wait_for(F ready) {
    while (!ready()) stuck = true, give_way();
    ++changes;
}
inline void step(Barrier& b, int here, int64_t bytes) {
    b.here += here, b.bytes += bytes, ++changes;
    if (b.here == b.arrivals && b.bytes == 0) b.here = 0, ++b.phase;
}

template <class F> void begin(unsigned low, unsigned high) {
    (*reinterpret_cast<F*>((size_t(high) << 32) | low))();
    threads_of_cluster[now].done = true;
    give_way();
}
// All blocks of a cluster; whether they ended, and nobody waits for ever.
template <class F> bool blocks(int first, int threads, F body) {
    const int count = cluster * threads;
    if (memory.count < cluster) memory.resize(cluster);
    for (int b = 0; b < cluster; ++b) memory[b].begin(MEMORY);
    if (products.count < count) products.resize(count), puts.resize(count);
    count_of_barriers = count_of_groups = 0, threads_of_block = threads;
    for (int t = 0; t < count; ++t) products[t].listed.count = puts[t].listed.count = products[t].round = puts[t].round = 0;
    char* stacks = prepare(threads_of_cluster, count, begin<F>, body);
    bool ended = true;
    for (bool more = true; more;) {
        const int before = changes;
        more = stuck = false;
        for (now = 0; now < count; ++now) {
            if (threads_of_cluster[now].done) continue;
            threadIdx.x = now % threads, blockIdx.x = first + now / threads;
            resume(threads_of_cluster[now]);
            more |= !threads_of_cluster[now].done;
        }
        ended = !more || !stuck || changes != before, more &= ended;
    }
    std::free(stacks);
    for (int b = 0; b < memory.count; ++b) memory[b].drop();
    return ended;
}
template <class... A, size_t... I> bool clusters(void (*kernel)(A...), void** args, int grid, int threads, int size, std::index_sequence<I...>) {
    cluster = size;
    for (int first = 0; first < grid; first += size)
        if (!blocks(first, threads, [&] { kernel(static_cast<A>(args[I])...); })) return false;
    return true;
}
template <class... A> bool run_roles(void (*kernel)(A...), void** args, int grid, int threads, int size) {
    return clusters(kernel, args, grid, threads, size, std::index_sequence_for<A...>{});
}
}  // namespace host

#define __syncthreads() (++host::changes, host::give_way())
inline Address place_of(const void*) { return 0; }
inline int alike(int x) { return x; }
inline int block_of_cluster() { return host::block(); }
template <int N> void fewer_registers() {}
template <int N> void more_registers() {}
inline void make_barrier(Address at, int arrivals) {
    host::Barrier* b = host::found(host::block(), at);
    if (!b && host::count_of_barriers == 1024) std::abort();
    if (!b) b = &(host::barriers[host::count_of_barriers++] = {host::block(), at, 0, 0, 0, 0});
    b->arrivals = arrivals;
}
inline void barriers_made() {}
inline void announce(Address at, int bytes) { host::step(host::barrier(host::block(), at), 1, bytes); }
inline void arrive(Address at) { host::step(host::barrier(host::block(), at), 1, 0); }
inline void arrive_in(Address at, int block) { host::step(host::barrier(block, at), 1, 0); }
inline Address in_block(Address at, int block) { return at | block << 20; }
inline void send(Address to, const float* x, Address barrier) {
    std::memcpy(host::at(to >> 20, to & 0xfffff), x, 16);
    host::step(host::barrier(barrier >> 20, barrier & 0xfffff), 0, -16);
}
inline void add_held(float* x, Address at) {
    float held[4];
    std::memcpy(held, host::at(host::block(), at), 16);
    for (int i = 0; i < 4; ++i) x[i] += held[i];
}
inline void await(Address at, int parity) {
    const host::Barrier& b = host::barrier(host::block(), at);
    host::wait_for([&] { return (b.phase & 1) != parity; });
}
inline void meet(int which, int threads) {
    host::Group& g = host::group(host::block(), which);
    const int turn = g.turn;
    if (++g.here == threads) g.here = 0, ++g.turn;
    host::wait_for([&] { return g.turn != turn; });
}
inline void meet_group(int group) { meet(group, 128); }
inline void meet_warp() { meet(100 + threadIdx.x / 32, 32); }
inline void meet_cluster() {
    host::Group& g = host::group(-1, 0);
    const int turn = g.turn;
    if (++g.here == host::cluster * host::threads_of_block) g.here = 0, ++g.turn;
    host::wait_for([&] { return g.turn != turn; });
}
inline void leave_cluster() {}

template <int BLOCKS> void fetch_box(Address to, const Box& box, int column, int row, Address barrier) {
    for (int block = BLOCKS > 1 ? 0 : host::block(), i = 0; i < BLOCKS; ++i, ++block) {
        for (int r = 0; r < box.height; ++r)
            for (int c = 0; c < box.width; ++c) {
                const bool there = row + r >= 0 && row + r < box.rows && column + c >= 0 && column + c < box.columns;
                unsigned short x = 0;
                if (there) std::memcpy(&x, box.data + ((row + r) * box.apart + column + c) * 2, 2);
                std::memcpy(host::at(block, host::exchanged(to + r * 128 + c * 2)), &x, 2);
            }
        host::step(host::barrier(block, barrier), 0, -box.height * 128);
    }
}
inline void put_box(const Box& box, int column, int row, Address from) {
    const int block = host::block();
    host::puts[host::now].add([=, &box] {
        for (int r = 0; r < box.height; ++r)
            for (int c = 0; c < box.width; ++c)
                if (row + r < box.rows && column + c < box.columns)
                    std::memcpy(box.data + ((row + r) * box.apart + column + c) * 2, host::at(block, host::exchanged(from + r * 128 + c * 2)), 2);
    });
}
inline void end_puts() { host::puts[host::now].end_round(); }
template <int N> void await_puts() { host::puts[host::now].finish(N); }
inline void await_all_puts() { host::puts[host::now].finish(0); }
inline void shown_to_copies() {}
inline unsigned held_word(Address at) {
    unsigned x;
    std::memcpy(&x, host::at(host::block(), at), 4);
    return x;
}
template <class P> void hold(Address at, const P& pair) { std::memcpy(host::at(host::block(), at), &pair, 4); }

inline unsigned long long strip(Address at, unsigned apart, unsigned next) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(apart >> 4) << 16 | (unsigned long long)(next >> 4) << 32;
}
inline void begin_products() {}
inline void end_products() { host::products[host::now].end_round(); }
template <int N> void await_products() { host::products[host::now].finish(N); }
template <int N> void settle(float (&)[N][32]) {}
template <class T, int COLUMNS> struct Product {
    template <bool LEFT_DOWN, bool RIGHT_DOWN> static void add(float (&x)[(COLUMNS + 63) / 64][32], unsigned long long a, unsigned long long b, bool more) {
        const int thread = threadIdx.x % 128, block = host::block();
        auto element = [block](unsigned long long strip, bool down, int i, int k) {
            const unsigned start = (strip & 0x3fff) << 4, apart = (strip >> 16 & 0x3fff) << 4, next = (strip >> 32 & 0x3fff) << 4;
            return host::value(block, down ? start + i / 64 * apart + k / 8 * next + k % 8 * 128 + i % 64 * 2 : start + i / 8 * next + i % 8 * 128 + k * 2, T());
        };
        host::products[host::now].add([=, &x] {
            for (int j = 0; j < COLUMNS / 8; ++j)
                for (int i = 0; i < 2; ++i)
                    for (int c = 0; c < 2; ++c) {
                        const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * i, column = j * 8 + thread % 4 * 2 + c;
                        const int wide = j / 8 == COLUMNS / 64 ? COLUMNS % 64 / 8 : 8;  // the last piece may be narrower
                        float& sum = x[j / 8][i * 2 * wide + j % 8 * 2 + c];
                        if (!more) sum = 0;
                        for (int k = 0; k < 16; ++k) sum += element(a, LEFT_DOWN, row, k) * element(b, RIGHT_DOWN, column, k);
                    }
        });
    }
};
