// Products of large matrices whose warps have roles. The first group of four warps copies tiles of both sides into a ring in shared
// memory; the others multiply them, and write results by way of shared memory. Blocks stay, and take one tile after the other.
struct Spot { int m, n, batch; };  // where a tile begins

template <class T, int N> DEVICE void fill_from(T (&to)[N], const T (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
}

// Tiles of ROWS times COLUMNS (of each of RIGHTS right sides), 64 deep. With TURNS, each of two groups has tiles of its own, and
// writes while the other one multiplies; else each has half of the rows. Of a cluster's two blocks, DOWN lie below each other and
// share the right side, ACROSS lie beside each other and share the left one: each fetches half of it for both. LEFT_ALONG,
// RIGHT_ALONG: whether neighbours in memory lie along the sum. So many pieces of results, 64 columns each, are WAITING at once.
template <class T, int ROWS, int COLUMNS, int RIGHTS, bool TURNS, int DOWN, int ACROSS, int STAGES, bool LEFT_ALONG, bool RIGHT_ALONG, int WAITING>
struct Roles {
    static constexpr int GROUPS = 2, BLOCKS = DOWN * ACROSS, HEIGHT = TURNS ? ROWS : ROWS / GROUPS, HEIGHTS = HEIGHT / 64, PIECES = (COLUMNS + 63) / 64;
    static constexpr int LEFT = ROWS * 128, RIGHT = PIECES * 8192, STAGE = LEFT + RIGHTS * RIGHT, PIECE = HEIGHT * 128;
    static constexpr int BYTES_OF_STAGE = LEFT + RIGHTS * (RIGHT_ALONG ? COLUMNS * 128 : RIGHT);
    static constexpr int BARRIERS = STAGES * STAGE + GROUPS * WAITING * PIECE, ROOM = 1024 + BARRIERS + 16 * STAGES + 8 * GROUPS;

    Address ring, full, empty, order;
    int group, block, slot = 0, parity = 0, turn = 0, put = 0;

    DEVICE explicit Roles(const void* room) {
        ring = (place_of(room) + 1023) / 1024 * 1024;
        full = ring + BARRIERS, empty = full + 8 * STAGES, order = empty + 8 * STAGES;
        group = alike(threadIdx.x / 128), block = BLOCKS > 1 ? block_of_cluster() : 0;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) make_barrier(full + 8 * i, 1), make_barrier(empty + 8 * i, (TURNS ? 1 : GROUPS) * BLOCKS);
            for (int i = 0; i < GROUPS; ++i) make_barrier(order + 8 * i, 1);
            barriers_made();
        }
        __syncthreads();
        if constexpr (BLOCKS > 1) meet_cluster();
    }
    DEVICE void leave() {
        if constexpr (BLOCKS > 1) leave_cluster();
    }

    DEVICE int first() const { return blockIdx.x / BLOCKS; }
    // The tile of a number: those of HIGH rows of tiles (or pairs of them) are taken together.
    template <int M, int N, int HIGH> DEVICE Spot spot(int number) const {
        constexpr int DOWNWARDS = M / DOWN, SIDEWARDS = N / ACROSS;
        const int tile = number % (DOWNWARDS * SIDEWARDS), above = tile / (HIGH * SIDEWARDS) * HIGH;
        const int high = DOWNWARDS - above < HIGH ? DOWNWARDS - above : HIGH, inside = tile % (HIGH * SIDEWARDS);
        const int m = (above + inside % high) * DOWN + (DOWN > 1 ? block : 0), n = inside / high * ACROSS + (ACROSS > 1 ? block : 0);
        return {m * ROWS, n * COLUMNS, number / (DOWNWARDS * SIDEWARDS)};
    }
    DEVICE void next() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }

    // What the copying thread does for each stage.
    DEVICE void begin_stage() const {
        await(empty + 8 * slot, parity ^ 1);
        announce(full + 8 * slot, BYTES_OF_STAGE);
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

    // What a group does: whether a tile is its own (else its stages go by), and its product, over so many stages.
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
    template <int N> DEVICE static void settle_all(float (&sums)[RIGHTS][HEIGHTS][N][32]) {
#pragma unroll
        for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
            for (int i = 0; i < HEIGHTS; ++i) settle(sums[r][i]);
    }
    DEVICE void multiply(float (&sums)[RIGHTS][HEIGHTS][PIECES][32], int stages) {
        if (TURNS && turn > 1) await(order + 8 * (group - 1), turn / 2 - 1 & 1);  // when the other group has what it multiplies
        int before = 0;
#pragma unroll 1
        for (int k = 0; k < stages; ++k) {
            await(full + 8 * slot, parity);
            const Address left = ring + slot * STAGE + (TURNS ? 0 : (group - 1) * HEIGHT * 128), right = ring + slot * STAGE + LEFT;
            settle_all(sums);
            begin_products();
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < HEIGHTS; ++i)
#pragma unroll
                    for (int r = 0; r < RIGHTS; ++r)
                        Product<T, COLUMNS>::template add<!LEFT_ALONG, !RIGHT_ALONG>(sums[r][i], strip(left + i * 8192 + j * (LEFT_ALONG ? 32 : 2048), 8192, 1024),
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
    }

    // Results, 64 columns at a time, as pairs that lie in shared memory until the copy unit has written them.
    DEVICE int row() const { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
    DEVICE int column() const { return threadIdx.x % 4 * 2; }
    DEVICE int base() const { return TURNS ? 0 : (group - 1) * HEIGHT; }
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
    DEVICE static void end_results() {
        if (threadIdx.x % 128 == 0) await_all_puts();
    }
};
