"""Holds the C source of helper functions for kernels for attention of few rows: scores of a block of positions, and
sums of the block's values weighted by the scores."""

from __future__ import annotations

FEW_ROW_SCORES = """#ifdef __AVX512F__
#define FEW_ROW_LINES 16
#else
#define FEW_ROW_LINES 4
#endif
/* The sums of 16 vectors, each over its own elements. */
static inline floats lanes_sums(const floats *x)
{
#if (defined(__GNUC__) && __GNUC__ >= 12) || defined(__clang__)
#define HALVES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
    floats a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = HALVES(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
             + HALVES(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        b[i] = HALVES(a[i], a[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
             + HALVES(a[i], a[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        c[i] = HALVES(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
             + HALVES(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return HALVES(c[0], c[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
         + HALVES(c[0], c[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#undef HALVES
#else
    floats r;
    for (int i = 0; i < 16; i++) r[i] = lanes_sum(x[i]);
    return r;
#endif
}
/* scores[r][p]: product of row r of q and row p of k, rows of `width` numbers; block, width: multiples of 16. */
static inline __attribute__((always_inline)) void few_row_scores(const float *q, const float *k, float *scores, int rows, int width, int block)
{
    for (int p = 0; p < block; p += 16)
        for (int r = 0; r < rows; r++) {
            floats sums[16];
            for (int g = 0; g < 16; g += FEW_ROW_LINES) { /* as many sums as fit into registers */
                floats own[FEW_ROW_LINES];
                #pragma GCC unroll 16
                for (int i = 0; i < FEW_ROW_LINES; i++) own[i] = lanes(0.0f);
                for (int d = 0; d < width; d += 16) {
                    const floats x = lanes_f32(q + r * width + d);
                    #pragma GCC unroll 16
                    for (int i = 0; i < FEW_ROW_LINES; i++) own[i] = lanes_fma(x, lanes_f32(k + (p + g + i) * width + d), own[i]);
                }
                #pragma GCC unroll 16
                for (int i = 0; i < FEW_ROW_LINES; i++) sums[g + i] = own[i];
            }
            const floats found = lanes_sums(sums);
            __builtin_memcpy(scores + r * block + p, &found, 64);
        }
}"""

FEW_ROW_VALUES = """/* Vectors of a register's length: longer ones are kept in memory. */
#if defined(__AVX512F__)
#define FEW_LANES 16
#elif defined(__AVX__)
#define FEW_LANES 8
#else
#define FEW_LANES 4
#endif
typedef float few_floats __attribute__((vector_size(4 * FEW_LANES), aligned(4), may_alias));
static inline __attribute__((always_inline)) few_floats few_fma(float x, few_floats y, few_floats z)
{
#if defined(__AVX512F__)
    return (few_floats)_mm512_fmadd_ps(_mm512_set1_ps(x), (__m512)y, (__m512)z);
#elif defined(__FMA__) && defined(__AVX__)
    return (few_floats)_mm256_fmadd_ps(_mm256_set1_ps(x), (__m256)y, (__m256)z);
#else
    return x * y + z;
#endif
}
/* `rows` rows from r and `parts` vectors from column c of few_row_values: their sums stay in registers. */
static inline __attribute__((always_inline)) void few_row_strip(const float *weights, const float *v, const float *fades, float *out,
                                                                int width, int block, int count, int rows, int parts)
{
    few_floats sums[8];
    #pragma GCC unroll 8
    for (int i = 0; i < rows * parts; i++)
        sums[i] = *(few_floats *)(out + i / parts * width + i % parts * FEW_LANES) * fades[i / parts];
    for (int p = 0; p < count; p++)
        #pragma GCC unroll 8
        for (int i = 0; i < rows * parts; i++)
            sums[i] = few_fma(weights[i / parts * block + p], *(const few_floats *)(v + p * width + i % parts * FEW_LANES), sums[i]);
    #pragma GCC unroll 8
    for (int i = 0; i < rows * parts; i++) *(few_floats *)(out + i / parts * width + i % parts * FEW_LANES) = sums[i];
}
/* out[r] = out[r] * fades[r] + the rows of v weighted by weights[r]: rows of `width` numbers, a multiple of 16. */
static inline __attribute__((always_inline)) void few_row_values(const float *weights, const float *v, const float *fades, float *out,
                                                                 int rows, int width, int block, int count)
{
#define FEW_ROW_STRIP(rows, parts) few_row_strip(weights + r * block, v + c, fades + r, out + r * width + c, width, block, count, rows, parts)
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        for (int c = 0; c < width; c += 2 * FEW_LANES)
            if (c + 2 * FEW_LANES <= width) FEW_ROW_STRIP(4, 2);
            else FEW_ROW_STRIP(4, 1);
    for (; r < rows; r++)
        for (int c = 0; c < width; c += c + 8 * FEW_LANES <= width ? 8 * FEW_LANES : FEW_LANES)
            if (c + 8 * FEW_LANES <= width) FEW_ROW_STRIP(1, 8);
            else FEW_ROW_STRIP(1, 1);
#undef FEW_ROW_STRIP
}"""

__all__ = ["FEW_ROW_SCORES", "FEW_ROW_VALUES"]
