// Attention of ROWS query rows (at most 16) over cached positions, one thread-block cluster of PARTS blocks per set of keys and values.
//
// Each block processes a slice of the positions, CHUNK of them at a time. A warp holds DEEP tiles of 16 positions of one of ACROSS parts
// of the head size: keys and values are loaded as 16-byte vectors into registers, all before the first is used, in the order in which
// mma.m16n8k16 needs them. Scores are keys times queries (positions are the 16 rows of the instruction, query rows its 8 columns);
// scores and softmax weights pass through shared memory. Results are values times weights (16 columns of values, 8 query rows).
// Each block sends its maxima, sums and results by st.async to the blocks that combine them: block i combines columns [i * OWN, (i + 1) * OWN).
//
// WHOLE: whether every chunk of every block is full.
namespace clustered {
DEVICE constexpr int padded(int words) { return words + (36 - words % 32) % 32; }
DEVICE constexpr int aligned(int words) { return (words + 3) / 4 * 4; }
}  // namespace clustered
struct Exp { static DEVICE float of(float x) { return op::exp(x); } };
struct Exp2 { static DEVICE float of(float x) { return op::exp2(x); } };

template <class T, int ROWS, int HEAD, int COLUMNS, int WARPS, int ACROSS, int DEEP, int PARTS, bool WHOLE> struct ClusteredAttention {
    static constexpr int THREADS = 32 * WARPS * ACROSS, CHUNK = 16 * WARPS * DEEP, EIGHTS = (ROWS + 7) / 8, OWN = COLUMNS / PARTS;
    static constexpr int KEYS = (HEAD + 32 * ACROSS - 1) / (32 * ACROSS), VALUES = (COLUMNS + 64 * ACROSS - 1) / (64 * ACROSS);
    static constexpr bool ALL_KEYS = HEAD % (32 * ACROSS) == 0, ALL_VALUES = COLUMNS % (64 * ACROSS) == 0;

    // Shared memory, in floats. Row strides avoid bank conflicts.
    static constexpr int QUERY = HEAD + (HEAD % 64 ? 0 : 32), SCORE = clustered::padded(CHUNK), SHARE = 2 * clustered::padded(CHUNK / 2), PARTIAL = COLUMNS + 8;
    static constexpr int RECEIVED = 4, STATES = RECEIVED + PARTS * ROWS * OWN, QUERIES = clustered::aligned(STATES + 2 * PARTS * ROWS);
    static constexpr int SCORES = clustered::aligned(QUERIES + ROWS * QUERY / 2), SHARES = SCORES + ACROSS * ROWS * SCORE;
    static constexpr int SCALES = clustered::aligned(SHARES + ROWS * SHARE / 2), PARTIALS = clustered::aligned(SCALES + 2 * ROWS);
    static constexpr int SIZE = 4 * (PARTIALS + WARPS * ROWS * PARTIAL), SENT = 4 * PARTS * ROWS * (OWN + 2);
    static_assert(OWN * PARTS == COLUMNS && OWN % 4 == 0 && ROWS <= 16, "parts of the columns");

    float* const shared;
    const int thread, lane, row, column, along, across, block;  // `row`, `column`: position of the lane in mma fragments
    Pack<T, 8> keys[DEEP][KEYS][2], values[DEEP][VALUES][4];
    float sums[VALUES][EIGHTS][4][4], totals[EIGHTS][4];  // results; sums of softmax weights, equal in all rows of a fragment

    DEVICE explicit ClusteredAttention(float* room) : shared(room), thread(threadIdx.x), lane(thread % 32), row(lane / 4), column(lane % 4),
        along(thread / 32 / ACROSS), across(thread / 32 % ACROSS), block(PARTS > 1 ? clustered::block_rank() : 0) {
        if (thread == 0) clustered::make_barrier(clustered::place_of(shared), SENT);
        if constexpr (PARTS > 1) clustered::arrive_cluster();
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                totals[e][i] = 0.0f;
#pragma unroll
                for (int c = 0; c < VALUES; ++c)
#pragma unroll
                    for (int j = 0; j < 4; ++j) sums[c][e][j][i] = 0.0f;
            }
    }

    // Loads of a chunk that begins at position `first`; positions from `end` on are zeros. `step`: elements from a position to the next.
    DEVICE void load_keys(const T* from, long long step, int first, int end) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int k = 0; k < KEYS; ++k)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int position = first + (along * DEEP + d) * 16 + row + 8 * h, element = (across * KEYS + k) * 32 + column * 8;
                    keys[d][k][h] = vector((WHOLE || position < end) && (ALL_KEYS || element < HEAD), from, position * step + element);
                }
    }
    DEVICE void load_values(const T* from, long long step, int first, int end) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int c = 0; c < VALUES; ++c)
#pragma unroll
                for (int h = 0; h < 4; ++h) {
                    const int position = first + (along * DEEP + d) * 16 + 2 * column + h % 2 + h / 2 * 8, element = (across * VALUES + c) * 64 + row * 8;
                    values[d][c][h] = vector((WHOLE || position < end) && (ALL_VALUES || element < COLUMNS), from, position * step + element);
                }
    }
    static DEVICE Pack<T, 8> vector(bool there, const T* from, long long at) { return read_once_if<8>(there, from + at, from); }

    // Replace the row loaded at position `place`, in a chunk that begins at position `first`, by the new row in shared memory.
    DEVICE void replace_keys(long long place, int first, const T* row_there) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (first + (along * DEEP + d) * 16 + row + 8 * h == place) {
#pragma unroll
                    for (int k = 0; k < KEYS; ++k) {
                        const int element = (across * KEYS + k) * 32 + column * 8;
                        if (ALL_KEYS || element < HEAD) keys[d][k][h] = read<8>(row_there + element);
                    }
                }
    }
    DEVICE void replace_values(long long place, int first, const T* row_there) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int h = 0; h < 4; ++h)
                if (first + (along * DEEP + d) * 16 + 2 * column + h % 2 + h / 2 * 8 == place) {
#pragma unroll
                    for (int c = 0; c < VALUES; ++c) {
                        const int element = (across * VALUES + c) * 64 + row * 8;
                        if (ALL_VALUES || element < COLUMNS) values[d][c][h] = read<8>(row_there + element);
                    }
                }
    }

    // Address of queries in shared memory; scores of the chunk, written to shared memory.
    DEVICE T* query(int row, int element) const { return reinterpret_cast<T*>(shared + QUERIES) + row * QUERY + element; }
    DEVICE void write_scores() {
        constexpr int CHAINS = KEYS > 1 ? 2 : 1;  // independent accumulators, so that mma instructions do not wait for each other
        float scores[CHAINS][DEEP][EIGHTS][4];
#pragma unroll
        for (int c = 0; c < CHAINS; ++c)
#pragma unroll
            for (int d = 0; d < DEEP; ++d)
#pragma unroll
                for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                    for (int i = 0; i < 4; ++i) scores[c][d][e][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < KEYS; ++k)
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const int element = (across * KEYS + k) * 32 + column * 8;
                const bool there = (ROWS % 8 == 0 || 8 * e + row < ROWS) && (ALL_KEYS || element < HEAD);
                const Pack<T, 8> own = read_if<8>(there, query(8 * e + row, element), query(0, 0));
#pragma unroll
                for (int d = 0; d < DEEP; ++d) multiply(scores[k % CHAINS][d][e], keys[d][k][0], keys[d][k][1], own);
            }
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int m = 8 * e + 2 * column + i % 2;
                    if (m < ROWS) shared[SCORES + (across * ROWS + m) * SCORE + (along * DEEP + d) * 16 + row + i / 2 * 8] = CHAINS > 1 ? scores[0][d][e][i] + scores[CHAINS - 1][d][e][i] : scores[0][d][e][i];
                }
    }
    // Score of a query row and a position of the chunk; for positions beyond the chunk, that of its last position.
    DEVICE float score(int m, int position) const {
        const float* at = shared + SCORES + m * SCORE + least(position, CHUNK - 1);
        float found = at[0];
#pragma unroll
        for (int p = 1; p < ACROSS; ++p) found += at[p * ROWS * SCORE];
        return found;
    }

    // Softmax weights of R rows in a warp, rows `first`, `first + STEP`, ...; each lane has N positions, 32 apart. `tops`: maxima of the chunks so
    // far. Writes weights, maxima, and the factors by which earlier sums are rescaled to shared memory.
    template <class Power, int STEP, int N, int R> DEVICE void weights(float (&tops)[R], const float* scores, int first) const {
        float highest[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            highest[r] = tops[r];
#pragma unroll
            for (int i = 0; i < N; ++i) highest[r] = op::max(highest[r], scores[r * N + i]);
            highest[r] = clustered::highest(highest[r]);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int m = first + r * STEP;
            const float safe = op::finite(highest[r]);
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (N * 32 == CHUNK || lane + 32 * i < CHUNK)
                    *(reinterpret_cast<T*>(shared + SHARES) + m * SHARE + lane + 32 * i) = stored<T>(Power::of(scores[r * N + i] - safe));
            if (lane == 0) shared[SCALES + 2 * m] = highest[r], shared[SCALES + 2 * m + 1] = Power::of(tops[r] - safe);
            tops[r] = highest[r];
        }
    }

    // Rescale the sums of earlier chunks to the new maxima; add the weighted values of this chunk.
    DEVICE void rescale() {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float scale = shared[SCALES + 2 * least(8 * e + 2 * column + i, ROWS - 1) + 1];
                totals[e][i] *= scale, totals[e][2 + i] *= scale;
#pragma unroll
                for (int c = 0; c < VALUES; ++c)
#pragma unroll
                    for (int j = 0; j < 4; ++j) sums[c][e][j][i] *= scale, sums[c][e][j][2 + i] *= scale;
            }
    }
    DEVICE void add_values() {
#pragma unroll
        for (int d = 0; d < DEEP; ++d) {
            unsigned weights[EIGHTS][2];
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const bool there = ROWS % 8 == 0 || 8 * e + row < ROWS;
                    const unsigned* at = reinterpret_cast<const unsigned*>(shared + SHARES) + ((there ? 8 * e + row : 0) * SHARE + (along * DEEP + d) * 16) / 2 + column + 4 * h;
                    weights[e][h] = there ? *at : 0u;
                }
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const unsigned one = one_pair<T>;
                matrix_step(totals[e], one, one, one, one, weights[e][0], weights[e][1], T());
            }
#pragma unroll
            for (int c = 0; c < VALUES; ++c)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    unsigned x[4];
#pragma unroll
                    for (int h = 0; h < 4; ++h) x[h] = reinterpret_cast<const unsigned*>(&values[d][c][h])[j];
                    const unsigned a = pick(x[0], x[1], 0x5410), b = pick(x[0], x[1], 0x7632), a8 = pick(x[2], x[3], 0x5410), b8 = pick(x[2], x[3], 0x7632);
#pragma unroll
                    for (int e = 0; e < EIGHTS; ++e) matrix_step(sums[c][e][j], a, b, a8, b8, weights[e][0], weights[e][1], T());
                }
        }
    }

    // Write the block's results to shared memory; send them to the blocks that combine them, and maxima and sums of rows to all blocks.
    DEVICE void write_results() {
#pragma unroll
        for (int c = 0; c < VALUES; ++c)
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int m = 8 * e + 2 * column + i, first = (across * VALUES + c) * 64 + row * 8;
                    if (m >= ROWS || (!ALL_VALUES && first >= COLUMNS)) continue;
                    float* to = shared + PARTIALS + (along * ROWS + m) * PARTIAL + first;
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        write<4>(to + 4 * h, Pack<float, 4>{sums[c][e][2 * h][i], sums[c][e][2 * h][2 + i], sums[c][e][2 * h + 1][i], sums[c][e][2 * h + 1][2 + i]});
                }
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int m = 8 * e + 2 * column + i;
                if (across == 0 && row == 0 && m < ROWS) shared[PARTIALS + (along * ROWS + m) * PARTIAL + COLUMNS] = totals[e][i];
            }
        __syncthreads();
    }
    DEVICE void send_results() const {
        using namespace clustered;
        constexpr int VECTORS = ROWS * COLUMNS / 4;
#pragma unroll
        for (int t = 0; t < (VECTORS + THREADS - 1) / THREADS; ++t) {
            const int i = thread + t * THREADS;
            if (VECTORS % THREADS && i >= VECTORS) break;
            const int m = i / (COLUMNS / 4), first = i % (COLUMNS / 4) * 4, to = first / OWN;
            float x[4] = {};
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const Pack<float, 4> y = read<4>(shared + PARTIALS + (w * ROWS + m) * PARTIAL + first);
#pragma unroll
                for (int j = 0; j < 4; ++j) x[j] += y.at[j];
            }
            send(in_block(place_of(shared + RECEIVED + (block * ROWS + m) * OWN + first % OWN), to), x, in_block(place_of(shared), to));
        }
#pragma unroll
        for (int t = 0; t < (ROWS * PARTS + THREADS - 1) / THREADS; ++t) {
            const int i = THREADS - 1 - thread + t * THREADS;  // in reverse order of threads, since the last ones have fewer iterations of the loop above
            if (ROWS * PARTS % THREADS && i >= ROWS * PARTS) break;
            const int m = i / PARTS, to = i % PARTS;
            float x[2] = {shared[SCALES + 2 * m], 0.0f};
#pragma unroll
            for (int w = 0; w < WARPS; ++w) x[1] += shared[PARTIALS + (w * ROWS + m) * PARTIAL + COLUMNS];
            send(in_block(place_of(shared + STATES + 2 * (block * ROWS + m)), to), x, in_block(place_of(shared), to));
        }
        await(place_of(shared));
    }
    // Combine the partial results of all blocks: maximum, sum and N results of a row, from column `first` of this block's columns on. LANES
    // neighbouring threads share the blocks' parts; all of them get the results.
    template <class Power, int LANES, int N> DEVICE void combine(int m, int first, float& top, float& total, float* results) const {
        constexpr int EACH = PARTS / LANES;
        Pack<float, 2> states[EACH];
        Pack<float, N> parts[EACH];
#pragma unroll
        for (int p = 0; p < EACH; ++p) {
            const int part = lane % LANES + p * LANES;
            states[p] = read<2>(shared + STATES + 2 * (part * ROWS + m));
            parts[p] = read<N>(shared + RECEIVED + (part * ROWS + m) * OWN + first);
        }
        float tops[1] = {states[0].at[0]}, sums[N + 1] = {};
#pragma unroll
        for (int p = 1; p < EACH; ++p) tops[0] = op::max(tops[0], states[p].at[0]);
        across_warp<Max, 1, LANES>(tops);
        const float safe = op::finite(tops[0]);
#pragma unroll
        for (int p = 0; p < EACH; ++p) {
            const float scale = Power::of(states[p].at[0] - safe);
            sums[N] += scale * states[p].at[1];
#pragma unroll
            for (int i = 0; i < N; ++i) sums[i] += scale * parts[p].at[i];
        }
        across_warp<Sum, 1, LANES>(sums);
        top = tops[0], total = sums[N];
#pragma unroll
        for (int i = 0; i < N; ++i) results[i] = sums[i];
    }
    DEVICE static void await_blocks() {
        if constexpr (PARTS > 1) clustered::await_cluster();
    }
};
