"""Holds the C source of helper functions for integer dot products: a row of floats divided into 8-bit planes (digits),
and sums of products of bytes."""

from __future__ import annotations

DOTS = """/* Sums of products of bytes without sign and bytes with sign, 64 at a time; DOTS: whether the processor has instructions. */
typedef uint8_t bytes __attribute__((vector_size(64)));
typedef uint16_t pairs __attribute__((vector_size(64)));
static inline bytes dots_read(const void *p) { bytes r; __builtin_memcpy(&r, p, 64); return r; }
static inline bytes dots_bits(bytes x, int low, uint8_t mask) { return (bytes)((pairs)x >> low) & (mask - (bytes){0}); }
static inline floats dots_quarters(float a, float b, float c, float d)
{
#if defined(__AVX512F__) /* in registers: compilers store the quarters and load the whole, which waits for the stores */
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return (floats)_mm512_permutexvar_ps(order, _mm512_castps128_ps512(_mm_setr_ps(a, b, c, d)));
#else
    return (floats){a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d};
#endif
}
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define DOTS 1
#else
#define DOTS 0
#endif
static inline ints dots_sum(ints sum, bytes x, const int8_t *y)
{
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, _mm512_loadu_si512(y));
#elif DOTS
    __m256i s[2], u[2];
    __builtin_memcpy(s, &sum, 64); __builtin_memcpy(u, &x, 64);
    for (int i = 0; i < 2; i++) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(y + 32 * i));
        s[i] = _mm256_dpbusd_avx_epi32(s[i], u[i], v);
    }
    __builtin_memcpy(&sum, s, 64);
    return sum;
#else
    for (int i = 0; i < 64; i++) sum[i / 4] += x[i] * y[i];
    return sum;
#endif
}
/* A row as whole numbers times a step a block: digits base 256 in `planes` planes, the highest first, the chunks of 16 of a
   block in an order; totals: sums of the numbers that each lane of a group of vectors has. 0 if a value is not finite or of
   extreme size. */
static int dots_split(const float *x, long blocks, int vectors, const uint8_t *order, const uint8_t *group, int groups,
                      int planes, int8_t *out, float *steps, floats *totals)
{
    const long size = 64 * vectors, all = blocks * size;
    const float most = planes == 2 ? 32639.0f : 8355000.0f; /* the highest digit stays below 128 */
    const bytes ones = 1 - (bytes){0};
    for (long b = 0; b < blocks; b++) {
        float largest = 0.0f;
        int bad = 0;
        #pragma omp simd reduction(max:largest) reduction(|:bad)
        for (long i = b * size; i < (b + 1) * size; i++) {
            const float a = __builtin_fabsf(x[i]);
            largest = a > largest ? a : largest;
            bad |= !(a < 1e30f);
        }
        if (bad || (largest > 0.0f && largest < 1e-30f)) return 0;
        const float each = largest > 0.0f ? most / largest : 0.0f;
        steps[b] = largest / most;
        for (int c = 0; c < 4 * vectors; c++) {
            const float *from = x + b * size + 16 * order[c];
            int8_t *to = out + b * size + 16 * c;
            #pragma omp simd
            for (int i = 0; i < 16; i++) {
                int32_t n = (int32_t)__builtin_rintf(from[i] * each);
                if (planes == 3) to[2 * all + i] = (int8_t)n, n = (n + 128) >> 8;
                to[all + i] = (int8_t)n, n = (n + 128) >> 8;
                to[i] = (int8_t)n;
            }
        }
        for (int g = 0; g < groups; g++) totals[b * groups + g] = lanes(0.0f);
        for (int v = 0; v < vectors; v++) {
            const int8_t *at = out + b * size + 64 * v;
            const ints none = {0};
            const ints two = (dots_sum(none, ones, at) << 8) + dots_sum(none, ones, at + all);
            floats sum = lanes_float(two);
            if (planes == 3) sum = sum * 256.0f + lanes_float(dots_sum(none, ones, at + 2 * all));
            totals[b * groups + group[v]] += sum;
        }
    }
    return 1;
}"""

__all__ = ["DOTS"]
