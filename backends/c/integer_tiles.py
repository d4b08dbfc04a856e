"""Writes the C text of convolutions of bytes: integer dot products in register tiles, with requantization.

Sums are exact int32. Weights are packed as [group][panel of 16 output channels][tap][quad of input channels][16][4]:
one instruction (VNNI) multiplies four channels of a pixel with those of 16 output channels. A byte with sign is its
value plus 128 without (zero points are shifted, too). Zero points need no arithmetic in the loop: padding reads the
zero point of x, and its product with the weights' sums is subtracted where sums begin.
"""

from __future__ import annotations

from .tiled_products import MAX_TAPS, contracted, window_addresses

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
    + contracted("""/* The values of 16 bytes without sign, of which `count` exist. */
static inline __attribute__((always_inline)) quad_int quad_widened(const uint8_t *p, int count)
{
#ifdef QUAD_MASKS
    return (quad_int)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((uint16_t)((1u << count) - 1), p));
#else
    quad_bytes b = {0};
    if (count >= 16) __builtin_memcpy(&b, p, 16);
    else __builtin_memcpy(&b, p, (unsigned long)count);
    return __builtin_convertvector(b, quad_int) & 255;
#endif
}
/* Write 16 bytes, of which `count` exist. */
static inline __attribute__((always_inline)) void quad_written(uint8_t *p, quad_bytes b, int count)
{
#ifdef QUAD_MASKS
    _mm_mask_storeu_epi8(p, (uint16_t)((1u << count) - 1), (__m128i)b);
#else
    if (count >= 16) __builtin_memcpy(p, &b, 16);
    else __builtin_memcpy(p, &b, (unsigned long)count);
#endif
}
/* The bytes of whole numbers nearest to floats, ties to even, plus the zero point. */
static inline __attribute__((always_inline)) quad_bytes quad_whole(quad_vec v, const quad_end *e)
{
    const quad_int whole = (quad_int)(v + 12582912.0f) - (0x4b400000 - e->zero);
#if defined(__AVX512F__)
    return (quad_bytes)_mm512_cvtepi32_epi8((__m512i)whole);
#else
    return __builtin_convertvector(whole, quad_bytes);
#endif
}
/* The bytes of the sum of a rounded value and a residual. */
static inline __attribute__((always_inline)) quad_bytes quad_added(quad_vec v, quad_int other, const quad_end *e)
{
    other = (other ^ e->r_flip) - e->r_zero;
    const quad_vec sum = quad_rounded(v) * e->own + __builtin_convertvector(other, quad_vec) * e->other;
    return quad_whole(quad_clipped(sum, e->least, e->most), e);
}
/* Write `there` pixels of `vectors` vectors of sums, the last of which has `left` channels. at: number of the first channel
   among padded ones; to: number of the first element of results and residual; line: elements from one pixel to the next. */
static __attribute__((noinline)) void quad_stored(const quad_int *sums, int there, int vectors, int left, const quad_end *end, int64_t at,
                                                  const uint8_t *r, void *y, int64_t to, int64_t line)
{
    const quad_end e = *end; /* results may overlap with all else, as far as compilers know */
#define QUAD_COPIED(kind) \\
    if (count >= 16) __builtin_memcpy((kind *)y + place, &found, 16 * sizeof(kind)); \\
    else __builtin_memcpy((kind *)y + place, &found, sizeof(kind) * (unsigned long)count);
#define QUAD_STORED(vector, value, written) \\
    for (int j = 0; j < vectors; j++, at += 16, to += 16, sums++) { \\
        const quad_vec by = *(const quad_vec *)(e.by + at), plus = *(const quad_vec *)(e.plus + at); \\
        const int count = j < vectors - 1 ? 16 : left; \\
        for (int i = 0; i < there; i++) { \\
            const int64_t place = to + i * line; \\
            const quad_int sum = sums[i * vectors]; \\
            const vector found = value; \\
            written \\
        } \\
    }
#define QUAD_SCALED quad_clipped(__builtin_convertvector(sum, quad_vec) * by + plus, e.low, e.high)
#define QUAD_BYTES quad_written((uint8_t *)y + place, found, count);
    if (e.kind == 0) QUAD_STORED(quad_int, ((void)by, (void)plus, sum), QUAD_COPIED(int32_t))
    else if (e.kind == 1) QUAD_STORED(quad_vec, QUAD_SCALED, QUAD_COPIED(float))
    else if (e.kind == 2) QUAD_STORED(quad_bytes, quad_whole(QUAD_SCALED, &e), QUAD_BYTES)
    else QUAD_STORED(quad_bytes, quad_added(QUAD_SCALED, quad_widened(r + place, count), &e), QUAD_BYTES)
}
""")
    + contracted("""#ifdef QUAD_MASKS
/* The bytes of a pixel's P vectors of sums, of which the channels `there` are written; by, plus: their factors and summands;
   r: a residual, or 0. Packing leaves four channels of each vector side by side, which a permutation sorts. */
static inline __attribute__((always_inline)) void quad_ended(int P, const quad_int *sums, const quad_end *e, const float *by, const float *plus,
                                                             const uint8_t *r, uint8_t *y, uint64_t there)
{
    __m512i v[4];
    QUAD_UNROLLED for (int j = 0; j < 4; j++) {
        if (j >= P) { v[j] = _mm512_setzero_si512(); continue; }
        quad_vec x = __builtin_convertvector(sums[j], quad_vec) * *(const quad_vec *)(by + 16 * j) + *(const quad_vec *)(plus + 16 * j);
        x = quad_clipped(x, e->low, e->high);
        if (r) {
            quad_int other = (quad_int)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((uint16_t)(there >> 16 * j), r + 16 * j));
            other = (other ^ e->r_flip) - e->r_zero;
            x = quad_clipped(quad_rounded(x) * e->own + __builtin_convertvector(other, quad_vec) * e->other, e->least, e->most);
        }
        v[j] = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), _mm512_set1_epi32(e->zero + e->flip));
    }
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    const __m512i sorted = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
    _mm512_mask_storeu_epi8(y, there, _mm512_xor_si512(sorted, _mm512_set1_epi8((char)e->flip)));
}
#endif
""")
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
#define QUAD_KERNEL(R, P) \\
static __attribute__((noinline)) void quad_##R##_##P(const uint8_t *const *rows, int taps, int quads, int run, const int8_t *w, \\
    int64_t panel, const quad_end *e, int there, int64_t at, int left, const uint8_t *r, void *y, int64_t to, int64_t line, \\
    int tiles, int64_t step) \\
{ \\
  const int8_t *const begin = w; \\
  for (int64_t tile = 0; tile < tiles; tile++, to += R * line) { \\
    quad_int c[R][P]; \\
    w = begin; \\
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
    } \\
    QUAD_ENDED(R, P) \\
    quad_int found[R * P]; \\
    QUAD_UNROLLED for (int i = 0; i < R; i++) QUAD_UNROLLED for (int j = 0; j < P; j++) found[i * P + j] = c[i][j]; \\
    if (e->offset) quad_centred(found, R, P, rows, taps, run, e->offset + at); \\
    quad_stored(found, there < R ? there : R, P, left, e, at, r, y, to, line); \\
  } \\
}
#define QUAD_KERNELS(P) QUAD_KERNEL(2, P) QUAD_KERNEL(6, P)
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

INTEGER_DIRECT = """/* Three lines of bytes ^ flip side by side, in a loop that compilers vectorize. */
static void quad_interleaved(const uint8_t *restrict a, const uint8_t *restrict b, const uint8_t *restrict c, int count, int flip,
                             uint8_t *restrict to)
{
    const uint8_t f = (uint8_t)flip;
    for (int i = 0; i < count; i++) {
        to[3 * i] = a[i] ^ f;
        to[3 * i + 1] = b[i] ^ f;
        to[3 * i + 2] = c[i] ^ f;
    }
}
/* Convolution of bytes with packed weights (sums of each channel's, then panels); y and the residual r are channels-last.
   x has the strides sn, sc, sh, sw in elements. Flags: as of quad_scales, and 512: the channels of each group are copied to `room`
   as images with their padding, in which the pixels of a line of a window are one run (without a dilation along it; with one,
   a group has a multiple of four channels). Else bytes have no sign, the channels of x are neighbours, those of a
   group a multiple of four, and padding reads a line of the zero point in room. room begins with four numbers a channel. */
void quad_conv(const void *x, const void *w, const void *x_zero, const void *w_zero, const void *x_scale, const void *m,
               const void *b, const void *scale, const void *zero, const void *r, const void *mid_scale, const void *mid_zero,
               const void *mid_factor, const void *r_scale, const void *r_zero,
               void *y, void *room, int n, int h, int wide, int c, int sn, int sc, int sh, int sw, int oh, int ow, int k, int groups,
               int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left, int kind, int flags,
               int low, int high, int least, int most)
{
    const quad_scales scales = {x_zero, w_zero, zero, r_zero, mid_zero, x_scale, m, scale, mid_scale, mid_factor, r_scale, b};
    const int own = c / groups, made = k / groups, panels = (made + 15) / 16, blocks = (panels + QUAD_PANELS - 1) / QUAD_PANELS;
    const int64_t padded = (int64_t)groups * panels * 16;
    const quad_end e = quad_end_of(&scales, kind, flags, groups, made, w, (int64_t)kh * kw * own, of_bits((uint32_t)low),
                                   of_bits((uint32_t)high), of_bits((uint32_t)least), of_bits((uint32_t)most), room);
    const int8_t *const packed = (const int8_t *)w + 4 * padded;
    uint8_t *const more = (uint8_t *)room + 16 * padded; /* the padded copy, or a line of zero points */
    const int copied = flags & 512, flip = flags & 1 ? 128 : 0, x_byte = quad_value(x_zero, 0, flags & 1) + flip;
    const int64_t ph = (oh - 1) * step_h + (kh - 1) * dil_h + 1, pw = (ow - 1) * step_w + (kw - 1) * dil_w + 1;
    const int flat = !copied && kh * kw == 1 && step_h == 1 && step_w == 1 && !top && !left && oh == h && ow == wide
        && (h == 1 || sh == wide * sw) && (n == 1 || sn == h * wide * sw); /* pixels follow each other at equal distances */
    const int joined = copied && dil_w == 1; /* a line of a window is one run */
    const int taps = joined ? kh : kh * kw, run = joined ? kw * own : own, quads = (run + 3) / 4;
    const int64_t panel = 64ll * kh * ((kw * own + 3) / 4);
    const int64_t all = (int64_t)n * oh * ow, tiles = (all + QUAD_ROWS - 1) / QUAD_ROWS;
    /* weights that stay in a cache are read for each tile, whose pixels are then written whole; others once for all tiles */
    const int inner = panel * panels <= QUAD_CACHE ? blocks : 1, outer = blocks / inner;
    if (copied) {
        #pragma omp parallel for schedule(static)
        for (int64_t line = 0; line < groups * n * ph; line++) {
            const int at = (int)(line % ph) - top, last = pw - left < wide ? (int)pw - left : wide;
            uint8_t *const to = more + line * pw * own;
            __builtin_memset(to, x_byte, (unsigned long)(pw * own));
            if (at < 0 || at >= h) continue;
            const uint8_t *const from = (const uint8_t *)x + line / (n * ph) * own * sc + line / ph % n * sn + (int64_t)at * sh;
            if (sc == 1 && sw == own)
                for (int64_t j = 0; j < (int64_t)last * own; j++) to[(int64_t)left * own + j] = from[j] ^ flip;
            else if (sw == 1 && own == 3)
                quad_interleaved(from, from + sc, from + 2 * (int64_t)sc, last, flip, to + (int64_t)left * own);
            else if (sc == 1)
                for (int j = 0; j < last; j++)
                    for (int i = 0; i < own; i++) to[(int64_t)(left + j) * own + i] = from[(int64_t)j * sw + i] ^ flip;
            else
                for (int i = 0; i < own; i++)
                    for (int j = 0; j < last; j++) to[(int64_t)(left + j) * own + i] = from[(int64_t)j * sw + (int64_t)i * sc] ^ flip;
        }
    } else {
        __builtin_memset(more, x_byte, (unsigned long)own);
    }
    /* several tiles a task: their first pixel is found by division, the others by counting */
    const int several = tiles < 64 ? 1 : 8;
    const int64_t lines = (tiles + several - 1) / several;
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < lines * groups * outer; task++) {
        const int64_t line = task % lines;
        const int begin = (int)(task / lines % outer) * inner, group = (int)(task / lines / outer);
        const uint8_t *rows[@TAPS@ * QUAD_ROWS];
        int image = 0, row = 0, column = 0;
        if (!flat) {
            const int64_t first = line * several * QUAD_ROWS;
            const int at = (int)(first % ((int64_t)oh * ow));
            image = (int)(first / ((int64_t)oh * ow)), row = at / ow, column = at % ow;
        }
        int at_once = 1; /* tiles of one call */
        for (int64_t tile = line * several; tile < tiles && tile < (line + 1) * several; tile += at_once) {
            const int64_t pixel = tile * QUAD_ROWS;
            const int there = all - pixel < QUAD_ROWS ? (int)(all - pixel) : QUAD_ROWS;
            if (flat && !e.offset) {
                const int64_t whole = all / QUAD_ROWS - tile, rest = (line + 1) * several - tile;
                at_once = whole < 1 ? 1 : whole < rest ? (int)whole : (int)rest;
            }
            for (int i = 0; i < QUAD_ROWS; i++) {
                if (flat) {
                    rows[i] = (const uint8_t *)x + (pixel + (i < there ? i : there - 1)) * sw + group * own;
                    continue;
                }
                if (i >= there) { /* repeats the last pixel; not stored */
                    for (int t = 0; t < taps; t++) rows[t * QUAD_ROWS + i] = rows[t * QUAD_ROWS + i - 1];
                    continue;
                }
                if (copied) {
                    const uint8_t *const from = more + ((((int64_t)group * n + image) * ph + row * step_h) * pw + column * step_w) * own;
                    if (joined)
                        for (int t = 0; t < kh; t++) rows[t * QUAD_ROWS + i] = from + (int64_t)t * dil_h * pw * own;
                    else
                        for (int t = 0; t < taps; t++)
                            rows[t * QUAD_ROWS + i] = from + ((int64_t)(t / kw) * dil_h * pw + (int64_t)(t % kw) * dil_w) * own;
                } else {
                    const uint8_t *const from = (const uint8_t *)x + (int64_t)image * sn + (int64_t)group * own;
@WINDOW@
                }
                if (++column == ow) { column = 0; if (++row == oh) row = 0, image++; }
            }
            for (int block = begin; block < blocks && block < begin + inner; block++) { /* of panels, in equal parts */
                const int first = block * panels / blocks, count = (block + 1) * panels / blocks - first;
                const int behind = made - first * 16 - 16 * (count - 1), channel = group * made + first * 16;
                quad_kernel_of(there, count)(rows, taps, quads, run, packed + ((int64_t)group * panels + first) * panel, panel, &e, there,
                                             ((int64_t)group * panels + first) * 16, behind < 16 ? behind : 16, r, y, pixel * k + channel, k,
                                             at_once, (int64_t)QUAD_ROWS * sw);
            }
        }
    }
}
""".replace("@TAPS@", str(MAX_TAPS)).replace("@WINDOW@\n", window_addresses("QUAD_ROWS", "more", indent=20))

INTEGER_STACKS = """/* Pack the bytes w[k][n], which have the distances `down` and `across`, as quad_conv reads weights: the sum of each column
   (int32), then [panel of 16 columns][quad of rows][16][4]. flip: 128 for bytes without sign. */
static void quad_packed(const uint8_t *w, int k, int n, int64_t down, int64_t across, int flip, void *to)
{
    const int panels = (n + 15) / 16, quads = (k + 3) / 4;
    const quad_int ones = 0x01010101 - (quad_int){0};
    #pragma omp parallel for schedule(static)
    for (int p = 0; p < panels; p++) {
        uint8_t *at = (uint8_t *)to + 64ll * panels + 64ll * quads * p;
        const int there = n - 16 * p < 16 ? n - 16 * p : 16;
        const uint8_t *from = w + 16 * p * across;
        quad_int sum = {0};
        for (int q = 0; q < quads; q++, at += 64, from += 4 * down) {
            const int rows = k - 4 * q < 4 ? k - 4 * q : 4;
            if (rows == 4 && there == 16 && across == 1)
                for (int j = 0; j < 16; j++)
                    for (int i = 0; i < 4; i++) at[4 * j + i] = from[i * down + j] ^ flip;
            else if (rows == 4 && there == 16 && down == 1)
                for (int j = 0; j < 16; j++) {
                    uint32_t four;
                    __builtin_memcpy(&four, from + j * across, 4);
                    four ^= (uint32_t)flip * 0x01010101u;
                    __builtin_memcpy(at + 4 * j, &four, 4);
                }
            else {
                __builtin_memset(at, 0, 64);
                for (int j = 0; j < there; j++)
                    for (int i = 0; i < rows; i++) at[4 * j + i] = from[i * down + j * across] ^ flip;
            }
            sum = quad_dot(sum, ones, at);
        }
        *(quad_int *)((int32_t *)to + 16 * p) = sum;
    }
}
/* outer x inner products of matrices x[m][k] and w[k][n] of bytes, whose elements have the distances x_* and w_*; y is row-major.
   Other arguments: as of quad_conv. room begins with a packed matrix. */
void quad_products(const void *x, const void *w, const void *x_zero, const void *w_zero, const void *x_scale, const void *m_scale,
                   const void *b, const void *scale, const void *zero, const void *r, const void *mid_scale, const void *mid_zero,
                   const void *mid_factor, const void *r_scale, const void *r_zero, void *y, void *room, int outer, int inner, int m, int k,
                   int n, int x_outer, int x_inner, int x_row, int x_column, int w_outer, int w_inner, int w_row, int w_column,
                   int kind, int flags, int low, int high, int least, int most)
{
    const int64_t size = 64ll * ((n + 15) / 16) * (1 + (k + 3) / 4), element = kind < 2 ? 4 : 1;
    for (int64_t i = 0; i < (int64_t)outer * inner; i++) {
        const int64_t own = i / inner, other = i % inner;
        quad_packed((const uint8_t *)w + own * w_outer + other * w_inner, k, n, w_row, w_column, flags & 2 ? 0 : 128, room);
        quad_conv((const uint8_t *)x + own * x_outer + other * x_inner, room, x_zero, w_zero, x_scale, m_scale, b, scale, zero, r, mid_scale,
                  mid_zero, mid_factor, r_scale, r_zero, (uint8_t *)y + i * m * n * element, (uint8_t *)room + size, 1, 1, m, k, 0, x_column, 0,
                  x_row, 1, m, n, 1, 1, 1, 1, 1, 1, 1, 0, 0, kind, flags, low, high, least, most);
    }
}
"""
