// Persistent kernels on a CPU: all blocks at the same time, one of them drawn at random for every turn. What cuda_stage_intrinsics.cuh
// is on a GPU. A turn brings each thread of a block to its next meeting point, in rising or falling order.
#include <random>

namespace host {
struct Block { std::vector<Fiber> fibers; std::vector<double> slots[2]; std::vector<unsigned> held[2]; std::vector<char> room; bool done; };
static char* room;
static int all_blocks;

// Bring a block's threads and memory to where they are used, and back.
inline void swap(Block& b, int number) {
    std::swap(fibers, b.fibers);
    for (int i = 0; i < 2; ++i) std::swap(slots[i], b.slots[i]), std::swap(held[i], b.held[i]);
    room = reinterpret_cast<char*>((reinterpret_cast<size_t>(b.room.data()) + 127) / 128 * 128);
    blockIdx.x = number;
}

// Let those go on whose group is complete; whether there are some, or a thread has ended.
inline bool release(int threads) {
    bool any = false;
    for (int t = 0; t < threads; ++t) {
        const int span = fibers[t].span, first = t / span * span;
        bool all = fibers[t].waiting;
        for (int u = first; all && u < first + span; ++u) all = fibers[u].waiting && fibers[u].span == span;
        if (all) for (int u = first; u < first + span; ++u) fibers[u].waiting = false, any = true;
    }
    return any;
}

// Whether all blocks came to their end.
template <class F> bool whole(int blocks, int threads, unsigned seed, F body) {
    std::mt19937 random(seed);
    std::vector<Block> there(blocks);
    all_blocks = blocks;
    for (int b = 0; b < blocks; ++b) {
        there[b].room.resize((1 << 18) + 128), there[b].done = false;
        fibers.clear();
        prepare(threads, body);
        swap(there[b], b);  // leaves the empty ones of the block
    }
    int left = blocks;
    for (long idle = 0; left && idle < 2000L * blocks; ++idle) {
        const int b = random() % blocks, falling = random() % 2;
        if (there[b].done) continue;
        swap(there[b], b);
        int ended = 0;
        for (int i = 0; i < threads; ++i) {
            const int t = falling ? threads - 1 - i : i;
            if (!fibers[t].done && !fibers[t].waiting) {
                threadIdx.x = t;
                swapcontext(&scheduler, &fibers[t].context);
            }
            ended += fibers[t].done;
        }
        if (release(threads)) idle = 0;
        if (ended == threads) there[b].done = true, --left, idle = 0;
        swap(there[b], b);
    }
    fibers.clear();
    return left == 0;
}
template <class... A, size_t... I>
bool whole_grid(void (*kernel)(A...), void** args, int blocks, int threads, unsigned seed, std::index_sequence<I...>) {
    auto body = [&] { kernel(argument<A>(args[I])...); };
    return whole(blocks, threads, seed, body);
}
template <class... A> bool run_whole(void (*kernel)(A...), void** args, int blocks, int threads, unsigned seed) {
    return whole_grid(kernel, args, blocks, threads, seed, std::index_sequence_for<A...>{});
}
}  // namespace host

template <int THREADS> struct Group {
    char* place;
    int thread() const { return threadIdx.x % THREADS; }
    void wait() const { host::meet(); }
    template <class T> T* room(int offset) const { return reinterpret_cast<T*>(place + offset); }
    bool* flag() const { return reinterpret_cast<bool*>(place); }
};
template <int THREADS> void begin_groups() { host::fibers[threadIdx.x].span = THREADS; }
inline void end_groups() { host::fibers[threadIdx.x].span = host::count; }
inline bool has_come(const int* counter, int number) { return *counter >= number; }
inline void report(int* counter, int number) { *counter += number; }
inline void yield() { swapcontext(&host::fibers[threadIdx.x].context, &host::scheduler); }
inline int blocks() { return host::all_blocks; }

#define BLOCK_ROOM(name) char* const name = host::room
