// Warp-specialized persistent GEMM. The first warp group (producer) copies tiles of both operands by TMA into a ring buffer in shared
// memory; the other warp groups (consumers) multiply them by wgmma and write results through shared memory.
struct Spot { int m, n, batch; };  // where a tile begins

template <class T, int N> DEVICE void fill_from(T (&to)[N], const T (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
}

// Tiles of ROWS x COLUMNS (of each of RIGHTS right operands), K step 64. With TURNS (ping-pong), the two consumer groups process different
// tiles, and one stores while the other one multiplies; else each has half of the rows, or half of the columns of a tile of 64 rows (BESIDE).
// Clusters of two blocks: DOWN blocks of neighbouring rows share the right operand, ACROSS blocks of neighbouring columns share the left
// one; each block loads half of it and multicasts. LEFT_ALONG, RIGHT_ALONG: whether the operand is contiguous along K. WAITING: number of
// result pieces (64 columns) whose stores may be in flight. PARTS: blocks of a cluster that split K of one tile; each finishes some
// pieces, for which the others send their partial sums. TOGETHER: one instruction multiplies all right operands.
template <class T, int ROWS, int COLUMNS, int RIGHTS, bool TURNS, int DOWN, int ACROSS, int PARTS, int STAGES, bool LEFT_ALONG, bool RIGHT_ALONG, int WAITING>
struct Roles {
    static constexpr bool BESIDE = !TURNS && ROWS == 64, TOGETHER = !BESIDE && RIGHTS * COLUMNS <= 256 && COLUMNS % 64 == 0;
    static constexpr int GROUPS = 2, BLOCKS = DOWN * ACROSS, HEIGHT = TURNS || BESIDE ? ROWS : ROWS / GROUPS, HEIGHTS = HEIGHT / 64;
    static constexpr int WIDE = BESIDE ? COLUMNS / GROUPS : COLUMNS, PIECES = (WIDE + 63) / 64, ALL = RIGHTS * PIECES;
    static constexpr int LEFT = ROWS * 128, RIGHT = (COLUMNS + 63) / 64 * 8192, STAGE = LEFT + RIGHTS * RIGHT, PIECE = HEIGHT * 128;
    static constexpr int SENT = RIGHTS * HEIGHTS * 16384, OWN = (PIECES + PARTS - 1) / PARTS, OTHERS = PARTS - 1;  // bytes of a piece; pieces of a group
    static constexpr int BARRIERS = STAGES * STAGE + GROUPS * WAITING * PIECE;

    Address ring, full, empty, order;
    int group, block, slot = 0, parity = 0, turn = 0, put = 0;

    DEVICE explicit Roles(const void* room) {
        ring = (place_of(room) + 1023) / 1024 * 1024;
        full = ring + BARRIERS, empty = full + 8 * STAGES, order = empty + 8 * STAGES;
        group = alike(threadIdx.x / 128), block = BLOCKS * PARTS > 1 ? block_of_cluster() : 0;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) make_barrier(full + 8 * i, 1), make_barrier(empty + 8 * i, (TURNS ? 1 : GROUPS) * BLOCKS);
            for (int i = 0; i < GROUPS; ++i) make_barrier(order + 8 * i, 1);
            barriers_made();
            if constexpr (PARTS > 1)
                for (int i = 0; i < GROUPS; ++i) {
                    int pieces = 0;
                    for (int c = 0; c < PIECES; ++c) pieces += owner(i + 1, c) == block;
                    announce(order + 8 * i, pieces * OTHERS * SENT);
                }
        }
        __syncthreads();
        if constexpr (BLOCKS * PARTS > 1) meet_cluster();
    }
    DEVICE void leave() {
        if constexpr (BLOCKS * PARTS > 1) leave_cluster();
    }

    DEVICE int first() const { return blockIdx.x / (BLOCKS * PARTS); }
    // First stage of this block's part of `stages` along K; with `next` = 1, of the next block's part.
    DEVICE int part(int stages, int next = 0) const { return stages * (PARTS > 1 ? block + next : next) / PARTS; }
    // Tile number -> origin, rasterized in groups of HIGH rows of tiles. No tile begins after LAST_M and LAST_N: loading the part of a
    // box beyond the end of a matrix takes four times as long.
    template <int M, int N, int HIGH, int LAST_M, int LAST_N> DEVICE Spot spot(int number) const {
        constexpr int DOWNWARDS = M / DOWN, SIDEWARDS = N / ACROSS;
        const int tile = number % (DOWNWARDS * SIDEWARDS), above = tile / (HIGH * SIDEWARDS) * HIGH;
        const int high = DOWNWARDS - above < HIGH ? DOWNWARDS - above : HIGH, inside = tile % (HIGH * SIDEWARDS);
        const int m = (above + inside % high) * DOWN + (DOWN > 1 ? block : 0), n = inside / high * ACROSS + (ACROSS > 1 ? block : 0);
        return {m * ROWS < LAST_M ? m * ROWS : LAST_M, n * COLUMNS < LAST_N ? n * COLUMNS : LAST_N, number / (DOWNWARDS * SIDEWARDS)};
    }
    DEVICE void next() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }

    // Producer: the loads of a stage.
    DEVICE void begin_stage(int bytes) const {
        await(empty + 8 * slot, parity ^ 1);
        announce(full + 8 * slot, bytes);
    }
    DEVICE void left(const Box& box, int column, int row) const { side<LEFT_ALONG, ROWS, ACROSS>(box, column, row, ring + slot * STAGE); }
    template <int WHICH> DEVICE void right(const Box& box, int column, int row) const {
        side<RIGHT_ALONG, COLUMNS, DOWN>(box, column, row, ring + slot * STAGE + LEFT + WHICH * RIGHT);
    }
    template <bool ALONG, int SIZE, int SHARED> DEVICE void side(const Box& box, int column, int row, Address to) const {
        const int part = SHARED > 1 ? block : 0;
        if constexpr (ALONG) {
            fetch_box<SHARED>(to + part * (SIZE / SHARED * 128), box, column, row + part * (SIZE / SHARED), full + 8 * slot);
        } else {
#pragma unroll
            for (int i = 0; i < (SIZE + 63) / 64; ++i)
                fetch_box<SHARED>(to + i * 8192 + part * 4096, box, column + i * 64, row + part * 32, full + 8 * slot);
        }
    }

    // Producer, after the last stage: wait for the releases by all blocks of the cluster, so that none arrives after this block has ended.
    DEVICE void end_stages() {
        for (int i = 0; i < STAGES; ++i) {
            await(empty + 8 * slot, parity ^ 1);
            next();
        }
    }

    // Consumer: whether a tile belongs to this group (else its stages are skipped), and the product over `stages`.
    DEVICE bool mine(int stages) {
        if constexpr (!TURNS) return true;
        if (turn++ % 2 == group - 1) return true;
        for (slot += stages; slot >= STAGES; slot -= STAGES) parity ^= 1;
        return false;
    }
    DEVICE void give_back(int stage) const {
        const int own = threadIdx.x % 128;
        if constexpr (BLOCKS > 1) {
            if (own < BLOCKS) arrive_in(empty + 8 * stage, own);
        } else if (own == 0) {
            arrive(empty + 8 * stage);
        }
    }
    DEVICE static void settle_all(float (&sums)[HEIGHTS][ALL][32]) {
#pragma unroll
        for (int i = 0; i < HEIGHTS; ++i) settle(sums[i]);
    }
    DEVICE void multiply(float (&sums)[HEIGHTS][ALL][32], int stages) {
        if (TURNS && turn > 1) await(order + 8 * (group - 1), turn / 2 - 1 & 1);  // after the other group has issued its products
        int before = 0;
#pragma unroll 1
        for (int k = 0; k < stages; ++k) {
            await(full + 8 * slot, parity);
            const Address left = ring + slot * STAGE + base() * 128, right = ring + slot * STAGE + LEFT + side() * 128;
            settle_all(sums);
            begin_products();
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                    for (int r = 0; r < (TOGETHER ? 1 : RIGHTS); ++r)
                        Product<T, TOGETHER ? RIGHTS * COLUMNS : WIDE>::template add<!LEFT_ALONG, !RIGHT_ALONG>(
                            pieces<TOGETHER ? ALL : PIECES>(sums[i] + r * PIECES), strip(left + i * 8192 + j * (LEFT_ALONG ? 32 : 2048), 8192, 1024),
                            strip(right + r * RIGHT + j * (RIGHT_ALONG ? 32 : 2048), 8192, 1024), k > 0 || j > 0);
            end_products();
            settle_all(sums);
            await_products<1>();
            if (k > 0) give_back(before);
            before = slot;
            next();
        }
        if (TURNS && threadIdx.x % 128 == 0) arrive(order + 8 * (2 - group));
        await_products<0>();
        settle_all(sums);
        give_back(before);
        if constexpr (PARTS > 1) join(sums);
    }
    template <int N> DEVICE static float (&pieces(float (*first)[32]))[N][32] { return *reinterpret_cast<float (*)[N][32]>(first); }

    // Split K over a cluster: the pieces of a group are distributed over the blocks. Each thread sends its partial sums of a piece to
    // the corresponding thread of the owner's block, into the ring buffer, which is free by then. Sums are added in the order of
    // blocks, so that overlapping tiles give the same bits.
    DEVICE static void all_multiplied() { meet_cluster(); }
    DEVICE static int owner(int group, int piece) { return (piece + (group - 1) * PIECES) % PARTS; }
    DEVICE static int behind(int owner, int block) { return (block - owner + PARTS) % PARTS - 1; }
    DEVICE bool owns(int piece) const { return PARTS == 1 || owner(group, piece) == block; }
    DEVICE Address sent(int piece, int by) const { return ring + (((group - 1) * OWN + piece / PARTS) * OTHERS + by) * SENT + threadIdx.x % 128 * 16; }
    DEVICE void join(float (&sums)[HEIGHTS][ALL][32]) const {
        all_multiplied();
#pragma unroll
        for (int c = 0; c < PIECES; ++c) {
            if (owns(c)) continue;
            const int to = owner(group, c);
            const Address place = in_block(sent(c, behind(to, block)), to), told = in_block(order + 8 * (group - 1), to);
#pragma unroll
            for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
                    for (int j = 0; j < 8; ++j) send(place + ((i * RIGHTS + r) * 8 + j) * 2048, sums[i][r * PIECES + c] + 4 * j, told);
        }
        await(order + 8 * (group - 1), 0);
#pragma unroll
        for (int c = 0; c < PIECES; ++c) {
            if (!owns(c)) continue;
            float all[HEIGHTS][RIGHTS][32];
#pragma unroll
            for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
                    for (int q = 0; q < 32; ++q) all[i][r][q] = 0.0f;
#pragma unroll
            for (int by = 0; by < PARTS; ++by) {
                if (by == block) {
#pragma unroll
                    for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                        for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
                            for (int q = 0; q < 32; ++q) all[i][r][q] += sums[i][r * PIECES + c][q];
                } else {
                    const Address place = sent(c, behind(block, by));
#pragma unroll
                    for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                        for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
                            for (int j = 0; j < 8; ++j) add_held(all[i][r] + 4 * j, place + ((i * RIGHTS + r) * 8 + j) * 2048);
                }
            }
#pragma unroll
            for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                for (int r = 0; r < RIGHTS; ++r) fill_from(sums[i][r * PIECES + c], all[i][r]);
        }
    }

    // Results: pieces of 64 columns, as pairs of 16-bit values in shared memory until TMA has stored them.
    DEVICE int row() const { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
    DEVICE int column() const { return threadIdx.x % 4 * 2; }
    DEVICE int base() const { return TURNS || BESIDE ? 0 : (group - 1) * HEIGHT; }
    DEVICE int side() const { return BESIDE ? (group - 1) * WIDE : 0; }
    DEVICE Address begin_piece() {
        if (threadIdx.x % 128 == 0) await_puts<WAITING - 1>();
        meet_group(group);
        const Address at = ring + STAGES * STAGE + ((group - 1) * WAITING + put) * PIECE;
        put = (put + 1) % WAITING;
        return at;
    }
    template <class P> DEVICE void keep(Address piece, int below, int beside, const P& pair) const {
        hold(piece + (row() + 8 * below) * 128 + (beside ^ threadIdx.x % 32 / 4) * 16 + threadIdx.x % 4 * 4, pair);
    }
    DEVICE void end_piece(Address piece, const Box& box, int column, int row) const {
        shown_to_copies();
        meet_group(group);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
            for (int i = 0; i < HEIGHTS; ++i) put_box(box, column, row + 64 * i, piece + 8192 * i);
            end_puts();
        }
    }
    // Store of a piece without TMA, for rows that are not aligned: each warp stores its own rows, two columns per thread. AT_ONCE rows
    // are read before the first is written, to overlap the latencies of shared memory.
    template <class Y> DEVICE void write_piece(Address piece, Y* to, long long apart, int rows, int columns) const {
        constexpr int AT_ONCE = 8;
        const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
        meet_warp();
#pragma unroll
        for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll 1
            for (int begin = i * 64 + first; begin < i * 64 + first + 16; begin += AT_ONCE) {
                unsigned words[AT_ONCE], next[AT_ONCE];
#pragma unroll
                for (int r = 0; r < AT_ONCE; ++r) {
                    const Address line = piece + (begin + r) * 128;
                    words[r] = held_word(line + (lane / 4 ^ (begin + r) % 8) * 16 + lane % 4 * 4);
                    next[r] = held_word(line + ((lane + 1) / 4 % 8 ^ (begin + r) % 8) * 16 + (lane + 1) % 4 * 4);
                }
#pragma unroll
                for (int r = 0; r < AT_ONCE; ++r) {
                    if (begin + r >= rows) break;
                    Y* at = to + (begin + r) * apart;
                    int left = columns - 2 * lane;
                    if ((unsigned long long)at % 4) {  // the row begins at an odd address: pairs are shifted by one column
                        if (lane == 0 && left > 0) at->bits = words[r];
                        words[r] = words[r] >> 16 | next[r] << 16;
                        ++at, left = lane == 31 && left > 1 ? 1 : left - 1;
                    }
                    if (left > 1) *reinterpret_cast<unsigned*>(at + 2 * lane) = words[r];
                    else if (left == 1) at[2 * lane].bits = words[r];
                }
            }
    }
    DEVICE static void end_results() {
        if (threadIdx.x % 128 == 0) await_all_puts();
    }
};
