
// Tiled float32 GEMM in shared memory (tiled_fp32/kernel.py).
enum { FUSED, THREE };  // FMA on CUDA cores; three TF32 products of split operands on tensor cores (3xTF32)

// One operand of a tile: TILE rows (or columns) by DEPTH elements along K, contiguous in memory along K or across it. Lines in shared
// memory are padded against bank conflicts.
template <int TILE, int DEPTH, bool ALONG, int WORDS> struct TileSide {
    static constexpr int LINES = ALONG ? TILE : DEPTH, LENGTH = ALONG ? DEPTH : TILE, LINE = LENGTH + (ALONG ? 4 : 8);
    static constexpr int SIZE = LINES * LINE, STEP = least(WORDS, BYTES / 4);

    // Issue the copies of the tile at a row and an element along K; elements beyond the end are 0.
    template <int THREADS> static DEVICE void bring(float* to, const float* from, long long step, int row, int rows, int k, int sum) {
        const int line0 = ALONG ? row : k, lines = ALONG ? rows : sum, first = ALONG ? k : row, length = ALONG ? sum : rows;
#pragma unroll
        for (int p = threadIdx.x; p < LINES * LENGTH / STEP; p += THREADS) {
            const int line = p / (LENGTH / STEP), at = p % (LENGTH / STEP) * STEP, left = length - first - at;
            const int count = line0 + line < lines ? left < 0 ? 0 : least(left, STEP) : 0;
            fetch_some<STEP>(to + line * LINE + at, count ? from + (line0 + line) * step + first + at : from, count);
        }
    }
    static DEVICE float at(const float* x, int row, int k) { return x[ALONG ? row * LINE + k : k * LINE + row]; }

    // Four elements along K of four neighbouring rows.
    static DEVICE void square(const float* x, int row, int k, float (&y)[4][4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Words four = *reinterpret_cast<const Words*>(ALONG ? x + (row + i) * LINE + k : x + (k + i) * LINE + row);
#pragma unroll
            for (int j = 0; j < 4; ++j) (ALONG ? y[i][j] : y[j][i]) = four.at[j];
        }
    }
    struct alignas(16) Words { float at[4]; };
};

// Split of a float into a TF32 number and the remainder. NaN and infinities have remainder 0, so that only the product of the high parts has them.
struct Halves { float large, finite, small; };
DEVICE Halves halved(float x) {
    const float large = truncated(x);
    const bool whole = op::abs(x) < infinity();
    return {large, whole ? large : 0.0f, whole ? rounded(x - large) : 0.0f};
}

// A block's tile of M rows and N columns. HIGH rows and WIDE columns belong to each warp (tensor cores) or thread (CUDA cores).
template <int HOW, int M, int N, int DEPTH, int HIGH, int WIDE, int STAGES, int RIGHTS, bool LEFT_ALONG, bool RIGHT_ALONG, int LEFT_WORDS, int RIGHT_WORDS>
struct Tiles {
    using Left = TileSide<M, DEPTH, LEFT_ALONG, LEFT_WORDS>;
    using Right = TileSide<N, DEPTH, RIGHT_ALONG, RIGHT_WORDS>;
    static constexpr int ACROSS = N / WIDE, DOWN = M / HIGH, THREADS = ACROSS * DOWN * (HOW == FUSED ? 1 : 32);
    static constexpr int STAGE = Left::SIZE + RIGHTS * Right::SIZE, HELD = HOW == FUSED ? HIGH * WIDE : HIGH * WIDE / 32;
    using Sums = float[RIGHTS][HELD];

    static DEVICE int row() {
        return HOW == FUSED ? threadIdx.x / ACROSS * 4 : threadIdx.x / 32 / ACROSS * HIGH + threadIdx.x % 32 / 4;
    }
    static DEVICE int column() {
        return HOW == FUSED ? threadIdx.x % ACROSS * 4 : threadIdx.x / 32 % ACROSS * WIDE + threadIdx.x % 4 * 2;
    }

    // Accumulators square by square, in the order of the epilogue.
    static DEVICE void fused(Sums& sums, const float* x) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 4) {
            float a[HIGH / 4][4][4];
#pragma unroll
            for (int i = 0; i < HIGH / 4; ++i) Left::square(x, row() + i * DOWN * 4, k, a[i]);
#pragma unroll
            for (int r = 0; r < RIGHTS; ++r) {
                float b[WIDE / 4][4][4];
#pragma unroll
                for (int j = 0; j < WIDE / 4; ++j) Right::square(x + Left::SIZE + r * Right::SIZE, column() + j * ACROSS * 4, k, b[j]);
#pragma unroll
                for (int d = 0; d < 4; ++d)
#pragma unroll
                    for (int i = 0; i < HIGH; ++i)
#pragma unroll
                        for (int j = 0; j < WIDE; ++j) sums[r][(i / 4 * (WIDE / 4) + j / 4) * 16 + i % 4 * 4 + j % 4] += a[i / 4][i % 4][d] * b[j / 4][j % 4][d];
            }
        }
    }

    // Accumulators in the layout of mma: rows 8 apart, pairs of columns 8 apart. Tensor cores truncate when they accumulate, so each
    // stage has its own sums.
    static DEVICE void by_matrix_unit(Sums& sums, const float* x) {
        Sums part = {};
        const int r0 = threadIdx.x / 32 / ACROSS * HIGH + threadIdx.x % 32 / 4, c0 = threadIdx.x / 32 % ACROSS * WIDE + threadIdx.x % 32 / 4;
#pragma unroll 1  // unrolled, split operands took twice the registers
        for (int k = 0; k < DEPTH; k += 8) {
            const int t = k + threadIdx.x % 4;
            float a[HIGH / 16][4], finite_a[HIGH / 16][4], small_a[HIGH / 16][4];
#pragma unroll
            for (int i = 0; i < HIGH / 16; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const Halves v = halved(Left::at(x, r0 + i * 16 + j % 2 * 8, t + j / 2 * 4));
                    a[i][j] = v.large, finite_a[i][j] = v.finite, small_a[i][j] = v.small;
                }
#pragma unroll
            for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
                for (int j = 0; j < WIDE / 8; ++j) {
                    float b[2], finite_b[2], small_b[2];
#pragma unroll
                    for (int d = 0; d < 2; ++d) {
                        const Halves v = halved(Right::at(x + Left::SIZE + r * Right::SIZE, c0 + j * 8, t + d * 4));
                        b[d] = v.large, finite_b[d] = v.finite, small_b[d] = v.small;
                    }
#pragma unroll
                    for (int i = 0; i < HIGH / 16; ++i) {
                        float* y = part[r] + (i * 2 * (WIDE / 8) + j) * 2;
                        single_step(y[0], y[1], y[WIDE / 4], y[WIDE / 4 + 1], small_a[i], finite_b);
                        single_step(y[0], y[1], y[WIDE / 4], y[WIDE / 4 + 1], finite_a[i], small_b);
                        single_step(y[0], y[1], y[WIDE / 4], y[WIDE / 4 + 1], a[i], b);
                    }
                }
        }
#pragma unroll
        for (int r = 0; r < RIGHTS; ++r)
#pragma unroll
            for (int i = 0; i < HELD; ++i) sums[r][i] += part[r][i];
    }

    // Main loop: the sum over K for the tile at a row and a column.
    static DEVICE void multiply(float* room, Sums& sums, const float* left, long long left_step, int row, int rows,
                                const float* const (&right)[RIGHTS], long long right_step, int column, int columns, int sum) {
        const int rounds = (sum + DEPTH - 1) / DEPTH;
        auto bring = [&](int round) {
            float* to = room + round % STAGES * STAGE;
            Left::template bring<THREADS>(to, left, left_step, row, rows, round * DEPTH, sum);
#pragma unroll
            for (int r = 0; r < RIGHTS; ++r)
                Right::template bring<THREADS>(to + Left::SIZE + r * Right::SIZE, right[r], right_step, column, columns, round * DEPTH, sum);
        };
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < rounds) bring(s);
            end_round();
        }
        for (int round = 0; round < rounds; ++round) {
            await_round<STAGES - 2>();
            __syncthreads();
            if (round + STAGES - 1 < rounds) bring(round + STAGES - 1);
            end_round();
            if constexpr (HOW == FUSED) fused(sums, room + round % STAGES * STAGE);
            else by_matrix_unit(sums, room + round % STAGES * STAGE);
        }
    }
};
