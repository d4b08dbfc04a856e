"""Writes the C text of depthwise convolutions of bytes by integer dot products.

Four rows of a window are one operand: the bytes of 16 channels in four lines at one column, transposed so that each
lane of a vector holds the four bytes of a channel. Such a column is made once for all the neighbouring results that
read it. Weights are packed as [chunk of 16 channels][four rows][column of the window][16][4]. The text uses the sums
and the requantization of integer_tiles.py.
"""

from __future__ import annotations

from .tiled_products import MAX_TAPS

INTEGER_DEPTHWISE = """#ifdef QUAD_MASKS /* columns are made in few instructions */
#define QUAD_WIDE 8
#else
#define QUAD_WIDE 4
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
/* R neighbouring results from column `first` on, with a window of KW columns and a step of S. */
static inline __attribute__((always_inline)) void quad_pixels(int R, int S, int KW, const quad_row *q, int first)
{
    quad_int sum[QUAD_WIDE];
    QUAD_UNROLLED for (int i = 0; i < R; i++) sum[i] = q->start;
    const int8_t *w = q->w;
    for (int four = 0; four < q->fours; four++, w += 64 * KW) {
        QUAD_UNROLLED for (int j = 0; j < (R - 1) * S + KW; j++) {
            const quad_int x = quad_taken(q, four, first * S - q->left + j);
            QUAD_UNROLLED for (int u = 0; u < KW; u++)
                if (j >= u && (j - u) % S == 0 && (j - u) / S < R) sum[(j - u) / S] = quad_dot(sum[(j - u) / S], x, w + 64 * u);
        }
    }
    if (q->e->kind == 2) {
        quad_rounded_line(R, sum, q->e, q->at, (uint8_t *)q->y + q->to + (int64_t)first * q->c, q->c, q->count);
        return;
    }
    quad_int found[QUAD_WIDE];
    QUAD_UNROLLED for (int i = 0; i < R; i++) found[i] = sum[i];
    quad_stored(found, R, 1, q->count, q->e, q->at, q->r, q->y, q->to + (int64_t)first * q->c, q->c);
}
static inline __attribute__((always_inline)) void quad_pixel_line(int S, int KW, const quad_row *q, int columns)
{
    int i = 0;
    for (; i + QUAD_WIDE <= columns; i += QUAD_WIDE) quad_pixels(QUAD_WIDE, S, KW, q, i);
    for (; i + QUAD_WIDE / 2 <= columns; i += QUAD_WIDE / 2) quad_pixels(QUAD_WIDE / 2, S, KW, q, i);
    for (; i < columns; i++) quad_pixels(1, S, KW, q, i);
}
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
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < (int64_t)n * oh * chunks; task++) {
        const int chunk = (int)(task % chunks), row = (int)(task / chunks % oh), channel = 16 * chunk;
        const int64_t image = task / chunks / oh;
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
        else if (step_w == 1 && kw == 3) quad_pixel_line(1, 3, &q, ow);
        else if (step_w == 2 && kw == 3) quad_pixel_line(2, 3, &q, ow);
        else if (step_w == 1 && kw == 5) quad_pixel_line(1, 5, &q, ow);
        else if (step_w == 2 && kw == 5) quad_pixel_line(2, 5, &q, ow);
        else quad_any_line(&q, ow);
    }
}
""".replace("@LINES@", str(MAX_TAPS + 3))
