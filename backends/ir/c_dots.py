"""Holds the C source of helper functions for integer dot products: a row of floats divided into 8-bit planes (digits),
and sums of products of bytes."""

from __future__ import annotations

DOTS = """/* Sums of products of bytes without sign and bytes with sign, 64 at a time; DOTS: whether the processor has instructions. */
#if defined(__AVX2__) && !defined(__AVX512BW__) /* in halves: GCC moves wider vectors 8 bytes at a time, and waits for the stores */
typedef struct { __m256i half[2]; } bytes;
static inline bytes dots_all(uint8_t x) { const __m256i v = _mm256_set1_epi8((char)x); return (bytes){{v, v}}; }
static inline bytes dots_read(const void *p, uint8_t flip)
{
    bytes r = dots_all(flip);
    for (int i = 0; i < 2; i++) r.half[i] = _mm256_xor_si256(r.half[i], _mm256_loadu_si256((const __m256i *)p + i));
    return r;
}
static inline bytes dots_bits(bytes x, int low, uint8_t mask)
{
    const bytes m = dots_all(mask);
    for (int i = 0; i < 2; i++) x.half[i] = _mm256_and_si256(_mm256_srl_epi16(x.half[i], _mm_cvtsi32_si128(low)), m.half[i]);
    return x;
}
#else
typedef uint8_t bytes __attribute__((vector_size(64)));
typedef uint16_t pairs __attribute__((vector_size(64)));
static inline bytes dots_all(uint8_t x) { return x - (bytes){0}; }
static inline bytes dots_read(const void *p, uint8_t flip) { bytes r; __builtin_memcpy(&r, p, 64); return r ^ flip; }
static inline bytes dots_bits(bytes x, int low, uint8_t mask) { return (bytes)((pairs)x >> low) & (mask - (bytes){0}); }
#endif
static inline floats dots_quarters(float a, float b, float c, float d)
{
#if defined(__AVX512F__) /* in registers: compilers store the quarters and load the whole, which waits for the stores */
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return (floats)_mm512_permutexvar_ps(order, _mm512_castps128_ps512(_mm_setr_ps(a, b, c, d)));
#else
    return (floats){a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d};
#endif
}
#if defined(__AVX512VNNI__) || (defined(__AVX2__) && !defined(__AVX512BW__))
#define DOTS 1
#else
#define DOTS 0
#endif
#if DOTS && !defined(__AVX512VNNI__)
static inline __m256i dots_half(__m256i sum, __m256i x, const int8_t *y)
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)y);
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, x, v);
#else /* products of the even bytes and of the odd ones: two neighbours may exceed 16 bits together */
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(v, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#endif
}
#endif
static inline ints dots_sum(ints sum, bytes x, const int8_t *y)
{
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, _mm512_loadu_si512(y));
#elif DOTS
    __m256i s[2];
    __builtin_memcpy(s, &sum, 64);
    for (int i = 0; i < 2; i++) s[i] = dots_half(s[i], x.half[i], y + 32 * i);
    __builtin_memcpy(&sum, s, 64);
    return sum;
#else
    for (int i = 0; i < 64; i++) sum[i / 4] += x[i] * y[i];
    return sum;
#endif
}
/* The same of two vectors of bytes below 64, whose four products fit into 16 bits together. */
static inline ints dots_sum_small(ints sum, bytes x0, const int8_t *y0, bytes x1, const int8_t *y1)
{
#if DOTS && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
    __m256i s[2];
    __builtin_memcpy(s, &sum, 64);
    for (int i = 0; i < 2; i++) {
        const __m256i a = _mm256_maddubs_epi16(x0.half[i], _mm256_loadu_si256((const __m256i *)(y0 + 32 * i)));
        const __m256i b = _mm256_maddubs_epi16(x1.half[i], _mm256_loadu_si256((const __m256i *)(y1 + 32 * i)));
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1)));
    }
    __builtin_memcpy(&sum, s, 64);
    return sum;
#else
    return dots_sum(dots_sum(sum, x0, y0), x1, y1);
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
    const bytes ones = dots_all(1);
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
