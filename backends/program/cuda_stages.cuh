// A persistent kernel: every block runs its tiles of one stage after the other, and waits for the stages that a stage depends on.
// A row of the table is a stage: its kind, its number of tiles, the tiles of all stages before it, WAITS pairs (stage, tiles),
// operands. Stages are counted by finished tiles; the counters are zero before and after the kernel.
#define COUNTER_APART 32  // numbers between counters: each has its own line of memory

// This block's tiles of a stage: `first`, and every `blocks()`th one behind it.
struct Share {
    int first, tiles;
    DEVICE Share(const long long* row) : tiles(row[1]) {
        const int behind = (blockIdx.x - int(row[2] % blocks()) + blocks()) % blocks();
        first = behind;
    }
    DEVICE int count() const { return first < tiles ? (tiles - first - 1) / blocks() + 1 : 0; }
};

// The tiles of one group of threads out of a block's share, and its part of the block's memory.
template <int THREADS, int ALL, int ROOM_BYTES> struct Turns {
    static constexpr int GROUPS = least(ALL / THREADS, 15);
    Group<THREADS> block;
    int program, tiles;
    DEVICE Turns(Share share, char* place) : tiles(share.tiles) {
        const int group = threadIdx.x / THREADS;
        block.place = place + group * ROOM_BYTES;
        program = group < GROUPS ? share.first + group * blocks() : tiles;
    }
    DEVICE bool more() const { return program < tiles; }
    DEVICE void next() {
        program += GROUPS * blocks();
        if (program < tiles) block.wait();  // the last tile's values in shared memory have been read
    }
};

// The table in shared memory; negative numbers are operands that the launch gives.
template <int THREADS, int WORDS, int N> DEVICE void copy_table(long long* rows, const long long* table, void* const (&given)[N]) {
    for (int i = threadIdx.x; i < WORDS; i += THREADS) {
        const long long x = table[i];
        rows[i] = x < 0 ? reinterpret_cast<long long>(given[~x]) : x;
    }
    __syncthreads();
}

// The next stage from `stage` on that has tiles of this block.
template <int STAGES, int WIDTH> DEVICE int own_stage(const long long* rows, int stage) {
    while (stage < STAGES && Share(rows + stage * WIDTH).count() == 0) ++stage;
    return stage;
}

template <int WAITS> DEVICE void await_stages(const long long* row, const int* done) {
    if (threadIdx.x < WAITS) {
        const long long stage = row[3 + 2 * threadIdx.x], tiles = row[4 + 2 * threadIdx.x];
        while (!has_come(done + stage * COUNTER_APART, tiles)) yield();
    }
    __syncthreads();
}

DEVICE void finish_stage(int* done, int stage, int tiles) {
    __syncthreads();
    if (threadIdx.x == 0) report(done + stage * COUNTER_APART, tiles);
}

// The last block sets the counters back: those of stages, and the one of blocks behind them.
template <int STAGES, int THREADS> DEVICE void leave(int* done, bool* last) {
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicAdd(done + STAGES * COUNTER_APART, 1) == blocks() - 1;
    __syncthreads();
    if (!*last) return;
    visible();
    for (int i = threadIdx.x; i <= STAGES; i += THREADS) done[i * COUNTER_APART] = 0;
}
