"""C text of register-tiled sums of products: the micro-kernel of convolutions, and direct convolutions made from it.

A tile is `TILE_ROWS` output pixels by one or several panels of `PANEL` output channels. Its sums stay in registers over
all taps and input channels; pixels are given by their addresses, so padding is an address of zeros. Weights are packed
as [group][panel][tap][input channel][PANEL].
"""

from __future__ import annotations

PANEL = 16  # output channels of a panel of packed weights
MAX_TAPS = 64  # most taps of a window: their addresses are on the stack
FEW_CHANNELS = 16  # below this number of channels of a group, whole rows of a window are one run of a padded copy

MICRO_KERNEL = """/* Sums of products of TILE_ROWS pixels and up to TILE_PANELS panels of 16 output channels. */
#if defined(__AVX512F__)
#define TILE_LANES 16
#define TILE_PANELS 4
#elif defined(__AVX__)
#define TILE_LANES 8
#define TILE_PANELS 1
#else
#define TILE_LANES 4
#define TILE_PANELS 1
#endif
#define TILE_ROWS 6
#ifndef TILE_CACHE
#define TILE_CACHE (1 << 18) /* bytes of weights that stay in the second cache beside inputs and results */
#endif
#define TILE_PARTS (16 / TILE_LANES)
typedef float tile_vec __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));
typedef int32_t tile_int __attribute__((vector_size(4 * TILE_LANES)));
#define TILE_SPLAT(x) ((x) - (tile_vec){0})
#define TILE_STEP(i) x = TILE_SPLAT(a##i[k]); for (int j = 0; j < P * TILE_PARTS; j++) c[i][j] += x * w[j]
#define TILE_TERMS 256 /* terms of a partial sum, at which it is added to the whole one: rounding grows with their number */
#define TILE_KERNEL(P) \\
static __attribute__((noinline)) void tile_##P(const float *const *rows, int taps, int channels, const float *packed, \\
                                               int64_t panel, float *sums) \\
{ \\
    tile_vec c[TILE_ROWS][P * TILE_PARTS]; \\
    int terms = 0, whole = 1; \\
    for (int i = 0; i < TILE_ROWS; i++) for (int j = 0; j < P * TILE_PARTS; j++) c[i][j] = (tile_vec){0}; \\
    for (int t = 0; t < taps; t++, rows += TILE_ROWS) { \\
        const float *a0 = rows[0], *a1 = rows[1], *a2 = rows[2], *a3 = rows[3], *a4 = rows[4], *a5 = rows[5]; \\
        for (int64_t begin = 0; begin < channels; begin += TILE_TERMS) { \\
            const int64_t end = channels - begin < TILE_TERMS ? channels : begin + TILE_TERMS; \\
            if (terms + end - begin > TILE_TERMS) { \\
                for (int i = 0; i < TILE_ROWS; i++) \\
                    for (int j = 0; j < P * TILE_PARTS; j++) { \\
                        tile_vec *const to = (tile_vec *)(sums + 16 * P * i + j * TILE_LANES); \\
                        if (whole) *to = c[i][j]; else *to += c[i][j]; \\
                        c[i][j] = (tile_vec){0}; \\
                    } \\
                terms = whole = 0; \\
            } \\
            terms += (int)(end - begin); \\
            for (int64_t k = begin; k < end; k++, packed += 16) { \\
                tile_vec x, w[P * TILE_PARTS]; \\
                for (int p = 0; p < P; p++) \\
                    for (int j = 0; j < TILE_PARTS; j++) \\
                        w[p * TILE_PARTS + j] = *(const tile_vec *)(packed + p * panel + j * TILE_LANES); \\
                TILE_STEP(0); TILE_STEP(1); TILE_STEP(2); TILE_STEP(3); TILE_STEP(4); TILE_STEP(5); \\
            } \\
        } \\
    } \\
    for (int i = 0; i < TILE_ROWS; i++) \\
        for (int j = 0; j < P * TILE_PARTS; j++) { \\
            tile_vec *const to = (tile_vec *)(sums + 16 * P * i + j * TILE_LANES); \\
            if (whole) *to = c[i][j]; else *to += c[i][j]; \\
        } \\
}
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
#define P 1
TILE_KERNEL(1)
#undef P
#if TILE_PANELS > 1
#define P 2
TILE_KERNEL(2)
#undef P
#define P 3
TILE_KERNEL(3)
#undef P
#define P 4
TILE_KERNEL(4)
#undef P
#endif
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC pop_options
#endif
/* `sums`: TILE_ROWS lines of 16 * panels. `panel`: floats from one panel of weights to the next. */
static inline void tile_sums(const float *const *rows, int taps, int channels, const float *packed, int64_t panel,
                             int panels, float *sums)
{
#if TILE_PANELS > 1
    if (panels == 4) tile_4(rows, taps, channels, packed, panel, sums);
    else if (panels == 3) tile_3(rows, taps, channels, packed, panel, sums);
    else if (panels == 2) tile_2(rows, taps, channels, packed, panel, sums);
    else
#endif
    tile_1(rows, taps, channels, packed, panel, sums);
}
/* What follows a convolution: 0 nothing, 1 relu, 2 clip between numbers (given by their bits), 3 hard_swish, 4 silu. */
typedef struct { int act; float low, high; } tile_act;
static inline tile_act tile_act_of(int act, int low, int high)
{
    return (tile_act){act, of_bits((uint32_t)low), of_bits((uint32_t)high)};
}
static inline tile_vec tile_chosen(tile_int mask, tile_vec yes, tile_vec no)
{
    return (tile_vec)((mask & (tile_int)yes) | (~mask & (tile_int)no));
}
static inline tile_vec tile_clipped(tile_vec v, float low, float high) /* NaN stays */
{
    v = tile_chosen(v < low, TILE_SPLAT(low), v);
    return tile_chosen(v > high, TILE_SPLAT(high), v);
}
static inline tile_vec tile_activated(tile_vec v, tile_act a)
{
    switch (a.act) {
    case 1: return (tile_vec)((tile_int)v & ~(v <= 0.0f)); /* NaN stays */
    case 2: return tile_clipped(v, a.low, a.high);
    case 3: return v * tile_clipped(v * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f);
    case 4: {
        float f[TILE_LANES];
        __builtin_memcpy(f, &v, sizeof f);
        for (int i = 0; i < TILE_LANES; i++) f[i] = f[i] / (1.0f + exp_f(-f[i]));
        __builtin_memcpy(&v, f, sizeof f);
        return v;
    }
    default: return v;
    }
}
/* Write `count` channels of a pixel: sums, bias and residual (0: none), activation. */
static inline void tile_stored(const float *sums, const float *bias, const float *residual, float *y, int count, tile_act a)
{
    for (int j = 0; j < count; j += TILE_LANES) {
        tile_vec v = *(const tile_vec *)(sums + j);
        if (count - j >= TILE_LANES) {
            if (bias) v += *(const tile_vec *)(bias + j);
            if (residual) v += *(const tile_vec *)(residual + j);
            *(tile_vec *)(y + j) = tile_activated(v, a);
        } else { /* the end of a line of channels */
            const unsigned long left = sizeof(float) * (unsigned long)(count - j);
            tile_vec more = {0};
            if (bias) { __builtin_memcpy(&more, bias + j, left); v += more; }
            more = (tile_vec){0};
            if (residual) { __builtin_memcpy(&more, residual + j, left); v += more; }
            v = tile_activated(v, a);
            __builtin_memcpy(y + j, &v, left);
        }
    }
}
"""

DIRECT = """/* Convolution of x with packed weights; y and the residual r are channels-last. x has the strides sn, sc, sh, sw in elements.
   flags: 1 bias b, 2 residual r, 4 x is copied to `room` with its padding, in which the pixels of a line of a window are one
   run. Without a copy x is channels-last, and room has a line of zeros, which padding reads. */
void tiled_conv(const float *x, const float *w, const float *b, const float *r, float *y, float *room,
                int n, int h, int wide, int c, int sn, int sc, int sh, int sw, int oh, int ow, int k,
                int groups, int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left,
                int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    const int own = c / groups, made = k / groups, panels = (made + 15) / 16, blocks = (panels + TILE_PANELS - 1) / TILE_PANELS;
    const int copied = flags & 4, ph = (oh - 1) * step_h + (kh - 1) * dil_h + 1, pw = (ow - 1) * step_w + kw;
    const int64_t all = (int64_t)n * oh * ow, tiles = (all + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t panel = 16ll * kh * kw * own;
    /* weights that stay in a cache are read for each tile, whose pixels are then written whole; others once for all tiles */
    const int inner = 4 * panel * panels <= TILE_CACHE ? blocks : 1, outer = blocks / inner;
    const int64_t tasks = tiles * groups * outer;
    if (copied) {
        #pragma omp parallel for schedule(static)
        for (int64_t line = 0; line < (int64_t)n * ph; line++) {
            const int at = (int)(line % ph) - top, last = pw - left < wide ? pw - left : wide;
            float *const to = room + line * pw * c;
            __builtin_memset(to, 0, sizeof(float) * (unsigned long)pw * (unsigned long)c);
            if (at < 0 || at >= h) continue;
            const float *const from = x + line / ph * sn + (int64_t)at * sh;
            for (int i = 0; i < c; i++)
                for (int j = 0; j < last; j++) to[(int64_t)(left + j) * c + i] = from[(int64_t)j * sw + (int64_t)i * sc];
        }
    } else {
        for (int i = 0; i < own; i++) room[i] = 0.0f;
    }
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t tile = task % tiles;
        const int begin = (int)(task / tiles % outer) * inner, group = (int)(task / tiles / outer);
        const float *rows[64 * TILE_ROWS] /* MAX_TAPS */;
        float sums[TILE_ROWS * TILE_PANELS * 16] __attribute__((aligned(64)));
        int64_t pixel = tile * TILE_ROWS;
        int image = (int)(pixel / ((int64_t)oh * ow)), at = (int)(pixel % ((int64_t)oh * ow)), row = at / ow, column = at % ow;
        const int there = all - pixel < TILE_ROWS ? (int)(all - pixel) : TILE_ROWS;
        for (int i = 0; i < TILE_ROWS; i++) {
            if (i >= there) { /* repeats the last pixel; not stored */
                for (int t = 0; t < (copied ? kh : kh * kw); t++) rows[t * TILE_ROWS + i] = rows[t * TILE_ROWS + i - 1];
                continue;
            }
            if (copied) {
                const float *const from = room + (((int64_t)image * ph + row * step_h) * pw + column * step_w) * c;
                for (int t = 0; t < kh; t++) rows[t * TILE_ROWS + i] = from + (int64_t)t * dil_h * pw * c;
            } else {
                const float *const from = x + (int64_t)image * sn + (int64_t)group * own;
                for (int t = 0; t < kh; t++) {
                    const int v = row * step_h - top + t * dil_h;
                    for (int u = 0; u < kw; u++) {
                        const int s = column * step_w - left + u * dil_w;
                        const int inside = v >= 0 && v < h && s >= 0 && s < wide;
                        rows[(t * kw + u) * TILE_ROWS + i] = inside ? from + (int64_t)v * sh + (int64_t)s * sw : room;
                    }
                }
            }
            if (++column == ow) { column = 0; if (++row == oh) row = 0, image++; }
        }
        for (int first = begin * TILE_PANELS; first < panels && first < (begin + inner) * TILE_PANELS; first += TILE_PANELS) {
            const int count = panels - first < TILE_PANELS ? panels - first : TILE_PANELS, width = 16 * count;
            const int channel = group * made + first * 16, left_over = made - first * 16 < width ? made - first * 16 : width;
            for (int i = TILE_ROWS; i < TILE_ROWS + there; i++) /* of the next tile */
                for (int j = 0; j < left_over; j += 16) {
                    __builtin_prefetch(y + (pixel + i) * k + channel + j, 1);
                    if (flags & 2) __builtin_prefetch(r + (pixel + i) * k + channel + j);
                }
            tile_sums(rows, copied ? kh : kh * kw, copied ? kw * own : own, w + ((int64_t)group * panels + first) * panel,
                      panel, count, sums);
            for (int i = 0; i < there; i++) {
                const int64_t to = (pixel + i) * k + channel;
                tile_stored(sums + i * width, flags & 1 ? b + channel : 0, flags & 2 ? r + to : 0, y + to, left_over, a);
            }
        }
    }
}
"""
