"""Writes the C text of depthwise convolutions of bytes by integer dot products.

Four rows of a window are one operand: the bytes of 16 channels in four lines at one column, transposed so that each
lane of a vector holds the four bytes of a channel. Such a column is made once for all the neighbouring results that
read it. Weights are packed as [chunk of 16 channels][four rows][column of the window][16][4]. The text uses the sums
and the requantization of integer_tiles.py.
"""

from __future__ import annotations

from .tiled_products import MAX_TAPS

WIDE_WEIGHTS = 40  # vectors of weights of 64 channels: two of four rows, five columns

INTEGER_DEPTHWISE = """#if defined(__AVX2__) && !defined(QUAD_MASKS)
/* `count` bytes, of less than 16. */
static __attribute__((noinline)) __m128i quad_some(const uint8_t *p, int count)
{
    __m128i b = _mm_setzero_si128();
    __builtin_memcpy(&b, p, (unsigned long)count);
    return b;
}
#endif
/* The bytes of 16 channels at `at` in four lines, of which `count` exist: lane i has those of channel i. */
static inline __attribute__((always_inline)) quad_int quad_column(const uint8_t *const *lines, int64_t at, int count)
{
#ifdef QUAD_MASKS
    const __mmask16 there = (uint16_t)((1u << count) - 1);
    __m512i v = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(there, lines[0] + at));
    v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(there, lines[1] + at), 1);
    v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(there, lines[2] + at), 2);
    v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(there, lines[3] + at), 3);
    v = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
    return (quad_int)_mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
#elif defined(__AVX2__)
    __m128i b[4], r[4];
    for (int i = 0; i < 4; i++) b[i] = count >= 16 ? _mm_loadu_si128((const __m128i *)(lines[i] + at)) : quad_some(lines[i] + at, count);
    const __m128i low = _mm_unpacklo_epi8(b[0], b[1]), high = _mm_unpackhi_epi8(b[0], b[1]);
    const __m128i less = _mm_unpacklo_epi8(b[2], b[3]), more = _mm_unpackhi_epi8(b[2], b[3]);
    r[0] = _mm_unpacklo_epi16(low, less), r[1] = _mm_unpackhi_epi16(low, less);
    r[2] = _mm_unpacklo_epi16(high, more), r[3] = _mm_unpackhi_epi16(high, more);
    quad_int v;
    __builtin_memcpy(&v, r, 64);
    return v;
#else
    quad_int v = {0};
    for (int i = 0; i < 4; i++) {
        quad_bytes b = {0};
        __builtin_memcpy(&b, lines[i] + at, count >= 16 ? 16 : (unsigned long)count);
        v |= (__builtin_convertvector(b, quad_int) & 255) << 8 * i;
    }
    return v;
#endif
}
/* One line of 16 channels of results: `columns` pixels, whose windows begin at column `left` before the first one. */
typedef struct {
    const uint8_t *lines[@LINES@]; /* of the image, at the first channel; those of padding are lines of zero points */
    const int8_t *w;
    int fours, kh, kw, wide, c, left, step, dil, count;
    quad_int start, flip, pad; /* pad: a column of zero points */
    const quad_end *e;
    int64_t at, to;
    const uint8_t *r;
    void *y;
} quad_row;
/* Lines 4 * four and following at column `at` of the image, or its padding. */
static inline __attribute__((always_inline)) quad_int quad_taken(const quad_row *q, int four, int at)
{
    if (at < 0 || at >= q->wide) return q->pad;
    return quad_column(q->lines + 4 * four, (int64_t)at * q->c, q->count) ^ q->flip;
}
#if defined(QUAD_MASKS) || defined(__AVX2__) /* else columns take many instructions, and one result at a time is computed */
/* R neighbouring results from column `first` on, with a window of KW columns and a step of S. */
static inline __attribute__((always_inline)) void quad_pixels(int R, int S, int KW, const quad_row *q, int first)
{
    quad_int sum[8];
    QUAD_UNROLLED for (int i = 0; i < R; i++) sum[i] = q->start;
    const int8_t *w = q->w;
    for (int four = 0; four < q->fours; four++, w += 64 * KW) {
        QUAD_UNROLLED for (int j = 0; j < (R - 1) * S + KW; j++) {
            const quad_int x = quad_taken(q, four, first * S - q->left + j);
            QUAD_UNROLLED for (int u = 0; u < KW; u++)
                if (j >= u && (j - u) % S == 0 && (j - u) / S < R) sum[(j - u) / S] = quad_dot(sum[(j - u) / S], x, w + 64 * u);
        }
    }
#ifdef QUAD_MASKS /* else quad_stored takes less text */
    if (q->e->kind == 2) {
        const quad_end e = *q->e;
        const quad_vec by = *(const quad_vec *)(e.by + q->at), plus = *(const quad_vec *)(e.plus + q->at);
        uint8_t *const y = (uint8_t *)q->y + q->to + (int64_t)first * q->c;
        QUAD_UNROLLED for (int i = 0; i < R; i++) {
            const quad_vec v = quad_clipped(__builtin_convertvector(sum[i], quad_vec) * by + plus, e.low, e.high);
            quad_written(y + (int64_t)i * q->c, quad_whole(v, &e), q->count);
        }
        return;
    }
#endif
    quad_int found[8];
    QUAD_UNROLLED for (int i = 0; i < R; i++) found[i] = sum[i];
    quad_stored(found, R, 1, q->count, q->e, q->at, q->r, q->y, q->to + (int64_t)first * q->c, q->c);
}
/* R pixels at a time; the last ones may be computed twice. */
static inline __attribute__((always_inline)) void quad_pixel_line(int R, int S, int KW, const quad_row *q, int columns)
{
    for (int i = 0; i < columns; i += R) quad_pixels(R, S, KW, q, i + R <= columns ? i : columns - R);
}
#endif
/* Any window, and zero points of weights: one result at a time. */
static void quad_any_line(const quad_row *q, int columns)
{
    for (int i = 0; i < columns; i++) {
        quad_int sum = q->start, bytes = {0};
        const int8_t *w = q->w;
        for (int four = 0; four < q->fours; four++) {
            _Alignas(64) int8_t ones[64];
            for (int b = 0; b < 64; b++) ones[b] = 4 * four + b % 4 < q->kh;
            for (int u = 0; u < q->kw; u++, w += 64) {
                const quad_int x = quad_taken(q, four, i * q->step - q->left + u * q->dil);
                sum = quad_dot(sum, x, w);
                if (q->e->offset) bytes = quad_dot(bytes, x, ones);
            }
        }
        if (q->e->offset) sum -= *(const quad_int *)(q->e->offset + q->at) * bytes;
        quad_stored(&sum, 1, 1, q->count, q->e, q->at, q->r, q->y, q->to + (int64_t)i * q->c, q->c);
    }
}
#ifdef QUAD_MASKS
/* 64 channels side by side, rounded to bytes. Interleaving bytes of vectors puts channel 16 i + 4 k + m into lane 4 i + m of
   operand k; packing four vectors of results to bytes puts it back. Blocks of 16 bytes of weights and numbers are ordered alike. */
typedef struct {
    _Alignas(64) int8_t w[@WEIGHTS@ * 64];
    quad_int start[4];
    quad_vec by[4], plus[4];
} quad_block;
static void quad_transposed(void *to, const void *from, int64_t apart)
{
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) __builtin_memcpy((char *)to + 64 * k + 16 * i, (const char *)from + apart * i + 16 * k, 16);
}
static inline __attribute__((always_inline)) void quad_columns(const quad_row *q, int four, int at, quad_int *d)
{
    if (at < 0 || at >= q->wide) {
        for (int k = 0; k < 4; k++) d[k] = q->pad;
        return;
    }
    __m512i r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm512_xor_si512(_mm512_loadu_si512(q->lines[4 * four + i] + (int64_t)at * q->c), (__m512i)q->flip);
    const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
    const __m512i e = _mm512_unpacklo_epi8(r[2], r[3]), f = _mm512_unpackhi_epi8(r[2], r[3]);
    d[0] = (quad_int)_mm512_unpacklo_epi16(a, e), d[1] = (quad_int)_mm512_unpackhi_epi16(a, e);
    d[2] = (quad_int)_mm512_unpacklo_epi16(b, f), d[3] = (quad_int)_mm512_unpackhi_epi16(b, f);
}
static inline __attribute__((always_inline)) void quad_wide_pixels(int R, int S, int KW, const quad_row *q, const quad_block *block, int first)
{
    quad_int sum[4][4];
    QUAD_UNROLLED for (int i = 0; i < R; i++) QUAD_UNROLLED for (int k = 0; k < 4; k++) sum[i][k] = block->start[k];
    const int8_t *w = block->w;
    for (int four = 0; four < q->fours; four++, w += 256 * KW) {
        QUAD_UNROLLED for (int j = 0; j < (R - 1) * S + KW; j++) {
            quad_int d[4];
            quad_columns(q, four, first * S - q->left + j, d);
            QUAD_UNROLLED for (int u = 0; u < KW; u++)
                if (j >= u && (j - u) % S == 0 && (j - u) / S < R)
                    QUAD_UNROLLED for (int k = 0; k < 4; k++) sum[(j - u) / S][k] = quad_dot(sum[(j - u) / S][k], d[k], w + 256 * u + 64 * k);
        }
    }
    const quad_end e = *q->e;
    const int flip = e.flip;
    QUAD_UNROLLED for (int i = 0; i < R; i++) {
        __m512i v[4];
        QUAD_UNROLLED for (int k = 0; k < 4; k++) {
            const __m512 x = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum[i][k]), (__m512)block->by[k], (__m512)block->plus[k]);
            v[k] = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)quad_clipped((quad_vec)x, e.low, e.high)), _mm512_set1_epi32(e.zero + flip));
        }
        const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
        _mm512_storeu_si512((uint8_t *)q->y + q->to + (int64_t)(first + i) * q->c, _mm512_xor_si512(bytes, _mm512_set1_epi8((char)flip)));
    }
}
static inline __attribute__((always_inline)) void quad_wide_line(int S, int KW, const quad_row *q, int columns)
{
    quad_block block;
    for (int t = 0; t < q->fours * KW; t++) quad_transposed(block.w + 256 * t, q->w + 64 * t, 64ll * q->fours * KW);
    quad_transposed(block.start, q->e->start + q->at, 64);
    quad_transposed(block.by, q->e->by + q->at, 64);
    quad_transposed(block.plus, q->e->plus + q->at, 64);
    for (int i = 0; i < columns; i += 4) quad_wide_pixels(4, S, KW, q, &block, i + 4 <= columns ? i : columns - 4);
}
#define QUAD_LINE(R, S, KW) (wide64 ? quad_wide_line(S, KW, &q, ow) : ow < R ? quad_any_line(&q, ow) : quad_pixel_line(R, S, KW, &q, ow))
#elif defined(__AVX2__) /* sums of 16 channels take two registers of sixteen */
#define QUAD_LINE(R, S, KW) (ow < R / 2 ? quad_any_line(&q, ow) : quad_pixel_line(R / 2, S, KW, &q, ow))
#else
#define QUAD_LINE(R, S, KW) quad_any_line(&q, ow)
#endif
/* Depthwise convolution of bytes with packed weights (sums of each channel's, then chunks); x, y and the residual r are
   channels-last. Flags: as of quad_scales. room: four numbers a channel, then a line of zero points. */
void quad_depthwise(const void *x, const void *w, const void *x_zero, const void *w_zero, const void *x_scale, const void *m,
                    const void *b, const void *scale, const void *zero, const void *r, const void *mid_scale, const void *mid_zero,
                    const void *mid_factor, const void *r_scale, const void *r_zero, void *y, void *room, int n, int h, int wide, int c, int oh, int ow,
                    int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left, int kind, int flags,
                    int low, int high, int least, int most)
{
    const quad_scales scales = {x_zero, w_zero, zero, r_zero, mid_zero, x_scale, m, scale, mid_scale, mid_factor, r_scale, b};
    const int chunks = (c + 15) / 16, fours = (kh + 3) / 4;
    const quad_end e = quad_end_of(&scales, kind, flags, 1, c, w, (int64_t)kh * kw, of_bits((uint32_t)low), of_bits((uint32_t)high),
                                   of_bits((uint32_t)least), of_bits((uint32_t)most), room);
    const int8_t *const packed = (const int8_t *)w + 64 * chunks;
    uint8_t *const none = (uint8_t *)room + 256 * chunks;
    const int value = quad_value(x_zero, 0, flags & 1) & 255, flip = flags & 1 ? 128 : 0;
    __builtin_memset(none, value, (unsigned long)wide * (unsigned long)c);
    /* parts of 64 channels where they are rounded to bytes, then of 16 */
    int wides = 0;
#ifdef QUAD_MASKS
    if (kind == 2 && !e.offset && ow >= 4 && dil_w == 1 && step_w <= 2 && (kw == 3 || kw == 5) && 4 * fours * kw <= @WEIGHTS@) wides = c / 64;
#endif
    const int parts = wides + chunks - 4 * wides;
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < (int64_t)n * oh * parts; task++) {
        const int part = (int)(task % parts), row = (int)(task / parts % oh), wide64 = part < wides;
        const int chunk = wide64 ? 4 * part : part + 3 * wides, channel = 16 * chunk;
        const int64_t image = task / parts / oh;
        quad_row q = {
            {0}, packed + (int64_t)chunk * 64 * fours * kw, fours, kh, kw, wide, c, left, step_w, dil_w, c - channel < 16 ? c - channel : 16,
            *(const quad_int *)(e.start + channel), (flip * 0x01010101) - (quad_int){0}, ((value ^ flip) * 0x01010101) - (quad_int){0},
            &e, channel, (image * oh + row) * ow * c + channel, r, y,
        };
        for (int t = 0; t < 4 * fours; t++) {
            const int v = row * step_h - top + t * dil_h;
            q.lines[t] = (t < kh && v >= 0 && v < h ? (const uint8_t *)x + (image * h + v) * wide * c : none) + channel;
        }
        if (e.offset || dil_w != 1) quad_any_line(&q, ow);
        else if (step_w == 1 && kw == 3) QUAD_LINE(8, 1, 3);
        else if (step_w == 2 && kw == 3) QUAD_LINE(8, 2, 3);
        else if (step_w == 1 && kw == 5) QUAD_LINE(4, 1, 5);
        else if (step_w == 2 && kw == 5) QUAD_LINE(4, 2, 5);
        else quad_any_line(&q, ow);
    }
}
""".replace("@LINES@", str(MAX_TAPS + 3)).replace("@WEIGHTS@", str(WIDE_WEIGHTS))
