"""Writes the C text of convolutions of bytes: integer dot products in register tiles, with requantization.

Sums are exact int32. Weights are packed as [group][panel of 16 output channels][tap][quad of input channels][16][4]:
one instruction (VNNI) multiplies four channels of a pixel with those of 16 output channels. Signed
bytes are stored as unsigned ones, plus 128 (zero points are shifted, too). Zero points need no arithmetic in the loop:
padding reads the zero point of x, and its product with the weights' sums is subtracted where sums begin.
"""

from __future__ import annotations

from .integer_ends import INTEGER_ENDS
from .integer_wide import INTEGER_WIDE

ROWS = 6  # pixels of a tile

INTEGER_TILES = (
    """/* Integer dot products of bytes, 16 output channels at a time. */
#ifdef __AVX2__
#include <immintrin.h>
#endif
typedef int32_t quad_int __attribute__((vector_size(64), aligned(4), may_alias));
typedef float quad_vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t quad_bytes __attribute__((vector_size(16)));
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define QUAD_MASKS 1 /* parts of vectors are read and written */
#endif
#if defined(__AVX512F__)
#define QUAD_PANELS 4
#else
#define QUAD_PANELS 1
#endif
#define QUAD_ROWS @ROWS@
#define QUAD_CACHE (1 << 18) /* bytes of weights that stay in the second cache beside inputs and results */
#if defined(__clang__)
#define QUAD_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define QUAD_UNROLLED _Pragma("GCC unroll 64")
#endif
/* sum + the products of four bytes without sign (in x) with each lane's four bytes with sign at w. */
static inline __attribute__((always_inline)) quad_int quad_dot(quad_int sum, quad_int x, const void *w)
{
#if defined(__AVX512VNNI__)
    return (quad_int)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, _mm512_loadu_si512(w));
#elif defined(__AVX2__)
    __m256i s[2], u[2];
    __builtin_memcpy(s, &sum, 64); __builtin_memcpy(u, &x, 64);
    for (int i = 0; i < 2; i++) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)w + i);
#if defined(__AVXVNNI__)
        s[i] = _mm256_dpbusd_avx_epi32(s[i], u[i], v);
#else /* even and odd bytes apart: sums of two products of bytes do not fit into 16 bits */
        const __m256i low = _mm256_set1_epi16(255), even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_and_si256(u[i], low), even));
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_srli_epi16(u[i], 8), _mm256_srai_epi16(v, 8)));
#endif
    }
    __builtin_memcpy(&sum, s, 64);
    return sum;
#else
    const int8_t *const v = (const int8_t *)w;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) sum[i] += (int)((uint32_t)x[i] >> 8 * j & 255) * v[4 * i + j];
    return sum;
#endif
}
static inline __attribute__((always_inline)) quad_vec quad_clipped(quad_vec v, float low, float high)
{
#if defined(__AVX512F__)
    return (quad_vec)_mm512_min_ps(_mm512_max_ps((__m512)v, _mm512_set1_ps(low)), _mm512_set1_ps(high));
#elif defined(__AVX2__)
    __m256 parts[2];
    __builtin_memcpy(parts, &v, 64);
    for (int i = 0; i < 2; i++) parts[i] = _mm256_min_ps(_mm256_max_ps(parts[i], _mm256_set1_ps(low)), _mm256_set1_ps(high));
    __builtin_memcpy(&v, parts, 64);
    return v;
#else
    const quad_vec a = low - (quad_vec){0}, b = high - (quad_vec){0};
    quad_int m = v < a;
    v = (quad_vec)((m & (quad_int)a) | (~m & (quad_int)v));
    m = v > b;
    return (quad_vec)((m & (quad_int)b) | (~m & (quad_int)v));
#endif
}
/* Whole numbers nearest to v, ties to even, as floats; of numbers of less than 2**22 in size. */
static inline __attribute__((always_inline)) quad_vec quad_rounded(quad_vec v)
{
    const quad_vec big = v + 12582912.0f;
    return big - 12582912.0f;
}
/* What follows the sums. `kind` of results: 0 the sums (int32), 1 floats, 2 bytes, 3 bytes of a sum with the residual.
   Per channel (padded to whole panels): start: what sums begin with; by, plus: float factor and summand. low, high:
   limits of the float, zero: zero point of the result, flip: 128 if it has a sign. With a residual r (bytes ^ r_flip, zero point r_zero) the rounded
   bytes are multiplied by `own`, the residual's by `other`, and the sum's limits are least and most.
   offset: zero points of weights (0: all are 0), by which sums of x over the window are multiplied. */
typedef struct {
    const int32_t *start, *offset;
    const float *by, *plus;
    int kind, zero, flip, r_zero, r_flip;
    float low, high, own, other, least, most;
} quad_end;
"""
    + INTEGER_ENDS
    + """/* Subtract the products of weights' zero points with the sums of x over the windows of `pixels` pixels. */
static __attribute__((noinline)) void quad_centred(quad_int *sums, int pixels, int vectors, const uint8_t *const *rows, int taps, int run,
                                                   const int32_t *offset)
{
    for (int i = 0; i < pixels; i++) {
        int32_t sum = 0;
        for (int t = 0; t < taps; t++)
            for (int k = 0; k < run; k++) sum += rows[t * QUAD_ROWS + i][k];
        for (int j = 0; j < vectors; j++) sums[i * vectors + j] -= *(const quad_int *)(offset + 16 * j) * sum;
    }
}
/* Sums of products of R pixels and P panels, and what follows them. rows: QUAD_ROWS addresses for each tap. `panel`: bytes from
   one panel of weights to the next. there: pixels that exist; at: number of the first channel among padded ones; left:
   channels of the last panel; to: first element of results; line: elements from one pixel to the next. tiles: whole tiles of R pixels
   that follow each other, with `step` bytes from a pixel to the same one of the next tile. */
#ifdef QUAD_MASKS
#define QUAD_ENDED(R, P) \\
    if (e->kind >= 2 && there >= R && !e->offset) { \\
        const quad_end own = *e; \\
        const uint64_t channels = ~0ull >> (64 - 16 * (P - 1) - left); \\
        if (own.kind == 2) \\
            QUAD_UNROLLED for (int i = 0; i < R; i++) \\
                quad_ended(P, c[i], &own, own.by + at, own.plus + at, 0, (uint8_t *)y + to + i * line, channels); \\
        else \\
            QUAD_UNROLLED for (int i = 0; i < R; i++) \\
                quad_ended(P, c[i], &own, own.by + at, own.plus + at, r + to + i * line, (uint8_t *)y + to + i * line, channels); \\
        continue; \\
    }
#else
#define QUAD_ENDED(R, P)
#endif
/* The sums c of R pixels and P panels, from `start` on. Addresses in a are those of the pixels' bytes at a tap. */
#if defined(__AVX2__) && !defined(__AVX512F__)
/* Two registers for 16 channels: compilers keep larger vectors in memory. */
typedef __m256i quad_half;
static inline __attribute__((always_inline)) quad_half quad_half_at(const void *p, int half)
{
    return _mm256_loadu_si256((const __m256i *)p + half);
}
#if defined(__AVXVNNI__)
#define QUAD_SUMMED(R) \\
    const quad_half v0 = quad_half_at(w, 0), v1 = quad_half_at(w, 1); \\
    QUAD_UNROLLED for (int i = 0; i < R; i++) { \\
        int32_t four; \\
        __builtin_memcpy(&four, a[i] + 4 * q, 4); \\
        const quad_half x = _mm256_set1_epi32(four); \\
        s[i][0] = _mm256_dpbusd_avx_epi32(s[i][0], x, v0); \\
        s[i][1] = _mm256_dpbusd_avx_epi32(s[i][1], x, v1); \\
    }
#else /* even and odd bytes apart: sums of two products of bytes do not fit into 16 bits */
#define QUAD_SUMMED(R) \\
    const quad_half v0 = quad_half_at(w, 0), v1 = quad_half_at(w, 1), low = _mm256_set1_epi16(255); \\
    const quad_half even0 = _mm256_srai_epi16(_mm256_slli_epi16(v0, 8), 8), even1 = _mm256_srai_epi16(_mm256_slli_epi16(v1, 8), 8); \\
    const quad_half odd0 = _mm256_srai_epi16(v0, 8), odd1 = _mm256_srai_epi16(v1, 8); \\
    QUAD_UNROLLED for (int i = 0; i < R; i++) { \\
        int32_t four; \\
        __builtin_memcpy(&four, a[i] + 4 * q, 4); \\
        const quad_half x = _mm256_set1_epi32(four), evens = _mm256_and_si256(x, low), odds = _mm256_srli_epi16(x, 8); \\
        s[i][0] = _mm256_add_epi32(s[i][0], _mm256_madd_epi16(evens, even0)); \\
        s[i][1] = _mm256_add_epi32(s[i][1], _mm256_madd_epi16(evens, even1)); \\
        s[i][0] = _mm256_add_epi32(s[i][0], _mm256_madd_epi16(odds, odd0)); \\
        s[i][1] = _mm256_add_epi32(s[i][1], _mm256_madd_epi16(odds, odd1)); \\
    }
#endif
#define QUAD_SUMS(R, P) \\
    quad_half s[R][2]; \\
    QUAD_UNROLLED for (int i = 0; i < R; i++) s[i][0] = quad_half_at(e->start + at, 0), s[i][1] = quad_half_at(e->start + at, 1); \\
    for (int t = 0; t < taps; t++) { \\
        const uint8_t *a[R]; \\
        QUAD_UNROLLED for (int i = 0; i < R; i++) a[i] = rows[t * QUAD_ROWS + i] + tile * step; \\
        for (int64_t q = 0; q < quads; q++, w += 64) { QUAD_SUMMED(R) } \\
    } \\
    quad_int c[R][1]; \\
    __builtin_memcpy(c, s, sizeof(s));
#else
#define QUAD_SUMS(R, P) \\
    quad_int c[R][P]; \\
    QUAD_UNROLLED for (int j = 0; j < P; j++) { \\
        const quad_int start = *(const quad_int *)(e->start + at + 16 * j); \\
        QUAD_UNROLLED for (int i = 0; i < R; i++) c[i][j] = start; \\
    } \\
    for (int t = 0; t < taps; t++) { \\
        const uint8_t *a[R]; \\
        QUAD_UNROLLED for (int i = 0; i < R; i++) a[i] = rows[t * QUAD_ROWS + i] + tile * step; \\
        for (int64_t q = 0; q < quads; q++, w += 64) { \\
            QUAD_UNROLLED for (int i = 0; i < R; i++) { \\
                int32_t four; \\
                __builtin_memcpy(&four, a[i] + 4 * q, 4); \\
                const quad_int x = four - (quad_int){0}; \\
                QUAD_UNROLLED for (int j = 0; j < P; j++) c[i][j] = quad_dot(c[i][j], x, w + j * panel); \\
            } \\
        } \\
    }
#endif
#define QUAD_KERNEL(R, P) \\
static __attribute__((noinline)) void quad_##R##_##P(const uint8_t *const *rows, int taps, int quads, int run, const int8_t *w, \\
    int64_t panel, const quad_end *e, int there, int64_t at, int left, const uint8_t *r, void *y, int64_t to, int64_t line, \\
    int tiles, int64_t step) \\
{ \\
  const int8_t *const begin = w; \\
  for (int64_t tile = 0; tile < tiles; tile++, to += R * line) { \\
    w = begin; \\
    QUAD_SUMS(R, P) \\
    QUAD_ENDED(R, P) \\
    quad_int found[R * P]; \\
    QUAD_UNROLLED for (int i = 0; i < R; i++) QUAD_UNROLLED for (int j = 0; j < P; j++) found[i * P + j] = c[i][j]; \\
    if (e->offset) quad_centred(found, R, P, rows, taps, run, e->offset + at); \\
    quad_stored(found, there < R ? there : R, P, left, e, at, r, y, to, line); \\
  } \\
}
"""
    + INTEGER_WIDE
    + """#define QUAD_KERNELS(P) QUAD_KERNEL(2, P) QUAD_KERNEL(6, P)
QUAD_KERNELS(1)
#if QUAD_PANELS > 1
QUAD_KERNELS(2) QUAD_KERNELS(3) QUAD_KERNELS(4)
#endif
typedef void quad_kernel(const uint8_t *const *, int, int, int, const int8_t *, int64_t, const quad_end *, int, int64_t, int,
                         const uint8_t *, void *, int64_t, int64_t, int, int64_t);
static inline quad_kernel *quad_kernel_of(int there, int panels)
{
#define QUAD_ROW(P) {quad_2_##P, quad_6_##P}
    static quad_kernel *const all[QUAD_PANELS][2] = {
        QUAD_ROW(1),
#if QUAD_PANELS > 1
        QUAD_ROW(2), QUAD_ROW(3), QUAD_ROW(4),
#endif
    };
    return all[panels - 1][there > 2];
}
/* A byte as its value, with sign or without. */
static inline int quad_value(const void *p, int64_t i, int sign) { return sign ? ((const int8_t *)p)[i] : ((const uint8_t *)p)[i]; }
/* Scales and zero points of a convolution, by address. Flags: 1 x has a sign, 2 weights have a sign, 4 results have one, 8 the
   residual has one; 16 a factor m for each channel; 32 a zero point of weights for each channel, 1024 none; 64 float summands b, 128
   integer ones; 2048 factors are multiplied by the scale of x. */
typedef struct {
    const void *x_zero, *w_zero, *zero, *r_zero, *mid_zero;
    const float *x_scale, *m, *scale, *mid_scale, *mid_factor, *r_scale;
    const void *b;
} quad_scales;
/* Limits of a quotient by `scale`. */
static inline void quad_limits(float *low, float *high, float scale)
{
    const float a = *low / scale, b = *high / scale;
    *low = scale < 0.0f ? b : a, *high = scale < 0.0f ? a : b;
}
/* Limits that lie in [down, up]. */
static inline void quad_within(float *low, float *high, float down, float up)
{
    *low = *low < down ? down : *low > up ? up : *low;
    *high = *high > up ? up : *high < down ? down : *high;
}
/* What follows the sums of `made` channels of `groups` groups, whose numbers per channel are written to `room`. sums: of each
   channel's weights; taps: products of a sum. low, high: limits of the float (activation), least, most: those behind a residual. */
static quad_end quad_end_of(const quad_scales *s, int kind, int flags, int groups, int made, const int32_t *sums, int64_t taps,
                            float low, float high, float least, float most, int32_t *room)
{
    const int padded = (made + 15) / 16 * 16, all = groups * padded;
    int32_t *const start = room, *const offset = room + all;
    float *const by = (float *)(room + 2 * all), *const plus = (float *)(room + 3 * all);
    const int x_zero = quad_value(s->x_zero, 0, flags & 1) + (flags & 1 ? 128 : 0);
    /* the scale that the first rounding has: that of results, or with a residual that of the sum's first operand */
    const float scale = kind == 2 ? s->scale[0] : kind == 3 ? s->mid_scale[0] : 1.0f;
    const double factor = (flags & 2048 ? (double)s->x_scale[0] : 1.0) / scale;
    int any = 0;
    __builtin_memset(room, 0, 16ul * (unsigned long)all);
    for (int group = 0; group < groups; group++) {
        for (int own = 0; own < made; own++) {
            const int i = group * padded + own, channel = group * made + own;
            const int w_zero = flags & 1024 ? 0 : quad_value(s->w_zero, flags & 32 ? channel : 0, flags & 2) - (flags & 2 ? 0 : 128);
            any |= offset[i] = w_zero;
            start[i] = (int32_t)((uint32_t)(flags & 128 ? ((const int32_t *)s->b)[channel] : 0) - (uint32_t)x_zero * (uint32_t)sums[i]
                                 + (uint32_t)(taps * x_zero) * (uint32_t)w_zero);
            if (kind == 0) continue;
            by[i] = (float)(factor * s->m[flags & 16 ? channel : 0]);
            if (flags & 64) plus[i] = (float)((double)((const float *)s->b)[channel] / scale);
        }
    }
    quad_end e = {start, any ? offset : 0, by, plus, kind, 0, flags & 4 ? 128 : 0, 0, 0, low, high, 0, 0, least, most};
    quad_limits(&e.low, &e.high, scale);
    const int bottom = flags & 4 ? -128 : 0, top = flags & 4 ? 127 : 255;
    if (kind == 2 || kind == 3) e.zero = quad_value(s->zero, 0, flags & 4);
    const float down = (float)(bottom - e.zero), up = (float)(top - e.zero);
    if (kind == 2) {
        quad_within(&e.low, &e.high, down, up);
    }
    if (kind == 3) { /* the first rounding is to bytes, too */
        const int sign = flags & 256, mid = quad_value(s->mid_zero, 0, sign);
        e.low = (float)((sign ? -128 : 0) - mid), e.high = (float)((sign ? 127 : 255) - mid);
        e.r_flip = flags & 8 ? 128 : 0, e.r_zero = quad_value(s->r_zero, 0, flags & 8) + e.r_flip;
        e.own = s->mid_factor[0] / s->scale[0], e.other = s->r_scale[0] / s->scale[0];
        quad_limits(&e.least, &e.most, s->scale[0]);
        quad_within(&e.least, &e.most, down, up);
    }
    return e;
}
"""
).replace("@ROWS@", str(ROWS))
