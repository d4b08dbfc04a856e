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
    __builtin_prefetch((const char *)p + 1024);
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
typedef float fours __attribute__((vector_size(16))); /* scales of the quarters of a vector */
static inline fours fours_f32(const float *p) { fours r; __builtin_memcpy(&r, p, 16); return r; }
static inline fours fours_f16(const _Float16 *p) { return (fours){(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }
static inline fours fours_bf16(const uint16_t *p)
{
#if defined(__AVX2__)
    return (fours)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16);
#else
    typedef uint32_t words32 __attribute__((vector_size(16)));
    return (fours)((words32){p[0], p[1], p[2], p[3]} << 16);
#endif
}
#if defined(__AVX512VNNI__) || (defined(__AVX2__) && !defined(__AVX512BW__))
#define DOTS 1
#else
#define DOTS 0
#endif
/* Sums of products of four neighbouring bytes with digits: int_sums, 16 sums of 32 bits; digit_sums, those of the highest
   two digits (planes `low` bytes apart) of a row, apart from each other; word_sums, the same for dots_split's words.
   evens: sums that have one scale, which may be added up in any number of lanes; quads: 16 sums, a scale for each four. */
#if defined(__AVX2__) && !defined(__AVX512BW__)
typedef bytes int_sums;
typedef struct { __m256i high[2], low[2]; } digit_sums;
typedef __m256 evens;
static inline int_sums dots_sum(int_sums s, bytes x, const int8_t *y)
{
    for (int i = 0; i < 2; i++) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)y + i);
#if defined(__AVXVNNI__)
        s.half[i] = _mm256_dpbusd_avx_epi32(s.half[i], x.half[i], v);
#else /* products of the even bytes and of the odd ones: two neighbours may exceed 16 bits together */
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x.half[i], _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x.half[i], 8), _mm256_srai_epi16(v, 8));
        s.half[i] = _mm256_add_epi32(s.half[i], _mm256_add_epi32(even, odd));
#endif
    }
    return s;
}
static inline int_sums dots_plus(int_sums x, int_sums y)
{
    for (int i = 0; i < 2; i++) x.half[i] = _mm256_add_epi32(x.half[i], y.half[i]);
    return x;
}
static inline floats dots_floats(int_sums x)
{
    __m256 r[2];
    for (int i = 0; i < 2; i++) r[i] = _mm256_cvtepi32_ps(x.half[i]);
    floats f; __builtin_memcpy(&f, r, 64); return f;
}
static inline evens dots_evens(int_sums x) { return _mm256_cvtepi32_ps(_mm256_add_epi32(x.half[0], x.half[1])); }
static inline evens evens_of(floats x) { __m256 r[2]; __builtin_memcpy(r, &x, 64); return _mm256_add_ps(r[0], r[1]); }
static inline evens evens_all(float x) { return _mm256_set1_ps(x); }
#if defined(__FMA__)
static inline evens evens_fma(evens x, evens y, evens z) { return _mm256_fmadd_ps(x, y, z); }
#else
static inline evens evens_fma(evens x, evens y, evens z) { return x * y + z; }
#endif
typedef struct { __m256 half[2]; } quads;
static inline quads quads_all(float x) { return (quads){{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
static inline quads quads_of(floats x) { quads r; __builtin_memcpy(&r, &x, 64); return r; }
static inline quads quads_read(fours x)
{
    const __m256 v = _mm256_castps128_ps256((__m128)x);
    return (quads){{_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
                    _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))}};
}
static inline quads dots_quads(int_sums x) { return (quads){{_mm256_cvtepi32_ps(x.half[0]), _mm256_cvtepi32_ps(x.half[1])}}; }
static inline quads quads_fma(quads x, quads y, quads z)
{
    return (quads){{evens_fma(x.half[0], y.half[0], z.half[0]), evens_fma(x.half[1], y.half[1], z.half[1])}};
}
static inline evens quads_scaled(quads x, quads scale, float step, evens sums)
{
    const evens low = _mm256_mul_ps(x.half[0], scale.half[0]);
    return evens_fma(evens_fma(x.half[1], scale.half[1], low), _mm256_set1_ps(step), sums);
}
static inline float evens_sum(evens x)
{
    __m128 r = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_add_ss(r, _mm_movehdup_ps(r)));
}
/* Numbers of x below 64: without dot products of bytes, sums have 16 bits, which the emitter keeps from overflowing. */
static inline digit_sums dots_few(digit_sums s, bytes x, const int8_t *y, long low)
{
    for (int i = 0; i < 2; i++) {
        const __m256i h = _mm256_loadu_si256((const __m256i *)y + i), l = _mm256_loadu_si256((const __m256i *)(y + low) + i);
#if defined(__AVXVNNI__)
        s.high[i] = _mm256_dpbusd_avx_epi32(s.high[i], x.half[i], h), s.low[i] = _mm256_dpbusd_avx_epi32(s.low[i], x.half[i], l);
#else
        s.high[i] = _mm256_add_epi16(s.high[i], _mm256_maddubs_epi16(x.half[i], h));
        s.low[i] = _mm256_add_epi16(s.low[i], _mm256_maddubs_epi16(x.half[i], l));
#endif
    }
    return s;
}
static inline int_sums dots_of_few(digit_sums s)
{
    int_sums r;
    for (int i = 0; i < 2; i++)
#if defined(__AVXVNNI__)
        r.half[i] = _mm256_add_epi32(_mm256_slli_epi32(s.high[i], 8), s.low[i]);
#else
        r.half[i] = _mm256_add_epi32(_mm256_madd_epi16(s.high[i], _mm256_set1_epi16(256)), _mm256_madd_epi16(s.low[i], _mm256_set1_epi16(1)));
#endif
    return r;
}
static inline evens dots_evens_of_few(digit_sums s) /* of so few products that both halves together fit into 16 bits */
{
#if defined(__AVXVNNI__)
    return dots_evens(dots_of_few(s));
#else
    const __m256i high = _mm256_add_epi16(s.high[0], s.high[1]), low = _mm256_add_epi16(s.low[0], s.low[1]);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)), _mm256_madd_epi16(low, _mm256_set1_epi16(1))));
#endif
}
#else
typedef ints int_sums;
typedef struct { ints high, low; } digit_sums;
typedef floats evens;
static inline int_sums dots_sum(int_sums s, bytes x, const int8_t *y)
{
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)s, (__m512i)x, _mm512_loadu_si512(y));
#else
    for (int i = 0; i < 64; i++) s[i / 4] += x[i] * y[i];
    return s;
#endif
}
static inline int_sums dots_plus(int_sums x, int_sums y) { return x + y; }
static inline floats dots_floats(int_sums x) { return lanes_float(x); }
static inline evens dots_evens(int_sums x) { return lanes_float(x); }
static inline evens evens_of(floats x) { return x; }
static inline evens evens_all(float x) { return lanes(x); }
static inline evens evens_fma(evens x, evens y, evens z) { return lanes_fma(x, y, z); }
static inline float evens_sum(evens x) { return lanes_sum(x); }
typedef floats quads;
static inline quads quads_all(float x) { return lanes(x); }
static inline quads quads_of(floats x) { return x; }
static inline quads quads_read(fours x)
{
#if defined(__AVX512F__) /* in registers: compilers store the quarters and load the whole, which waits for the stores */
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return (quads)_mm512_permutexvar_ps(order, _mm512_castps128_ps512((__m128)x));
#else
    return (quads){x[0], x[0], x[0], x[0], x[1], x[1], x[1], x[1], x[2], x[2], x[2], x[2], x[3], x[3], x[3], x[3]};
#endif
}
static inline quads dots_quads(int_sums x) { return lanes_float(x); }
static inline quads quads_fma(quads x, quads y, quads z) { return lanes_fma(x, y, z); }
static inline evens quads_scaled(quads x, quads scale, float step, evens sums) { return lanes_fma(x * scale, lanes(step), sums); }
static inline digit_sums dots_few(digit_sums s, bytes x, const int8_t *y, long low)
{
    return (digit_sums){dots_sum(s.high, x, y), dots_sum(s.low, x, y + low)};
}
static inline int_sums dots_of_few(digit_sums s) { return (s.high << 8) + s.low; }
static inline evens dots_evens_of_few(digit_sums s) { return dots_evens(dots_of_few(s)); }
#endif
#if defined(__AVX2__) && !defined(__AVX512BW__) && !defined(__AVXVNNI__)
#define DOTS_WORDS 1 /* without dot products of bytes, numbers from 64 on are multiplied as words of 16 bits */
typedef int_sums word_sums;
static inline word_sums dots_words(word_sums s, bytes x, const int8_t *y, long at, long low)
{
    for (int i = 0; i < 2; i++) {
        const __m256i *d = (const __m256i *)(y + 2 * at) + 2 * i;
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x.half[i], _mm256_set1_epi16(255)), _mm256_loadu_si256(d));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x.half[i], 8), _mm256_loadu_si256(d + 1));
        s.half[i] = _mm256_add_epi32(s.half[i], _mm256_add_epi32(even, odd));
    }
    return s;
}
static inline int_sums dots_of_words(word_sums s) { return s; }
#else
#define DOTS_WORDS 0
typedef digit_sums word_sums;
static inline word_sums dots_words(word_sums s, bytes x, const int8_t *y, long at, long low) { return dots_few(s, x, y + at, low); }
static inline int_sums dots_of_words(word_sums s) { return dots_of_few(s); }
#endif
typedef int16_t words16 __attribute__((may_alias));
/* A row as whole numbers times a step a block: digits base 256 in `planes` planes, the highest first, the chunks of 16 of a
   block in an order; totals: sums of the numbers that each lane of a group of vectors has. words: of the highest two digits,
   words of 16 bits (dots_words) in place of planes. 0 if a value is not finite or of extreme size. */
static int dots_split(const float *x, long blocks, int vectors, const uint8_t *order, const uint8_t *group, int groups,
                      int planes, int words, int8_t *out, float *steps, floats *totals)
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
            words16 *word = (words16 *)out + b * size + 32 * (c / 2) + 8 * (c % 2); /* of 32 bytes, the even ones, then the odd ones */
            int32_t n[16];
            #pragma omp simd
            for (int i = 0; i < 16; i++) n[i] = (int32_t)__builtin_rintf(from[i] * each);
            if (planes == 3)
                #pragma omp simd
                for (int i = 0; i < 16; i++) to[2 * all + i] = (int8_t)n[i], n[i] = (n[i] + 128) >> 8;
            if (words && DOTS_WORDS)
                for (int i = 0; i < 16; i++) word[16 * (i % 2) + i / 2] = (int16_t)n[i];
            else
                #pragma omp simd
                for (int i = 0; i < 16; i++) to[all + i] = (int8_t)n[i], to[i] = (int8_t)((n[i] + 128) >> 8);
        }
        for (int g = 0; g < groups; g++) totals[b * groups + g] = lanes(0.0f);
        for (int v = 0; v < vectors; v++) {
            const long at = b * size + 64 * v;
            floats sum = dots_floats(words ? dots_of_words(dots_words((word_sums){0}, ones, out, at, all))
                                           : dots_of_few(dots_few((digit_sums){0}, ones, out + at, all)));
            if (planes == 3) sum = sum * 256.0f + dots_floats(dots_sum((int_sums){0}, ones, out + 2 * all + at));
            totals[b * groups + group[v]] += sum;
        }
    }
    return 1;
}"""

__all__ = ["DOTS"]
