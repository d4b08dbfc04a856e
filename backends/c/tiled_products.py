"""Writes the C text of register-tiled sums of products: the micro-kernel of convolutions, and direct convolutions made
from it.

A tile is `TILE_ROWS` output pixels by one or several panels of `PANEL` output channels. Its sums stay in registers over
all taps and input channels; pixels are given by their addresses, so padding is an address of zeros. Weights are packed
as [group][panel][tap][input channel][PANEL].
"""

from __future__ import annotations

import textwrap

PANEL = 16  # output channels of a panel of packed weights
MAX_TAPS = 64  # most taps of a window: their addresses are on the stack
FEW_CHANNELS = 16  # below this number of channels of a group, whole rows of a window are one run of a padded copy

_CONTRACT = """#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
"""
_END = """#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC pop_options
#endif
"""


def contracted(text: str) -> str:
    """C text in which the compiler may compute a product and a sum as one multiply-add."""
    return _CONTRACT + text + _END


MICRO_KERNEL = (
    """/* Sums of products of TILE_ROWS pixels and up to TILE_PANELS panels of 16 output channels. */
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
#if defined(__clang__)
#define TILE_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLLED _Pragma("GCC unroll 49")
#endif
/* `count` floats (at least one), or TILE_LANES if there are more; lanes behind them are 0. */
static inline __attribute__((always_inline)) tile_vec tile_loaded(const float *p, int count)
{
    if (count >= TILE_LANES) return *(const tile_vec *)p;
#if defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_loadups512_mask(p, (tile_vec){0}, (uint16_t)((1u << count) - 1));
#else
    tile_vec v = {0};
    __builtin_memcpy(&v, p, sizeof(float) * (unsigned long)count);
    return v;
#endif
}
static inline __attribute__((always_inline)) void tile_written(float *p, tile_vec v, int count)
{
    if (count >= TILE_LANES) *(tile_vec *)p = v;
#if defined(__AVX512F__) && !defined(__clang__)
    else __builtin_ia32_storeups512_mask(p, v, (uint16_t)((1u << count) - 1));
#else
    else __builtin_memcpy(p, &v, sizeof(float) * (unsigned long)count);
#endif
}
/* What follows a convolution: 0 nothing, 1 relu, 2 clip between numbers (given by their bits), 3 hard_swish, 4 silu, 5 gelu,
   6 gelu by tanh. */
typedef struct { int act; float low, high; } tile_act;
static inline tile_act tile_act_of(int act, int low, int high)
{
    if (act == 2) return (tile_act){act, of_bits((uint32_t)low), of_bits((uint32_t)high)};
    return (tile_act){act, act == 1 ? 0.0f : -__builtin_inff(), __builtin_inff()};
}
static inline tile_vec tile_chosen(tile_int mask, tile_vec yes, tile_vec no)
{
    return (tile_vec)((mask & (tile_int)yes) | (~mask & (tile_int)no));
}
static inline __attribute__((always_inline)) tile_vec tile_clipped(tile_vec v, tile_vec low, tile_vec high) /* NaN stays */
{
#if defined(__AVX512F__) && !defined(__clang__)
    v = __builtin_ia32_maxps512_mask(low, v, (tile_vec){0}, (uint16_t)-1, 4); /* of a NaN, and of two zeros, the second */
    return __builtin_ia32_minps512_mask(high, v, (tile_vec){0}, (uint16_t)-1, 4);
#elif defined(__AVX__) && !defined(__clang__)
    return __builtin_ia32_minps256(high, __builtin_ia32_maxps256(low, v));
#else
    v = tile_chosen(v < low, low, v);
    return tile_chosen(v > high, high, v);
#endif
}
/* Write `count` channels of a pixel: v, a residual (0: none), and limits. */
static inline __attribute__((always_inline)) void tile_stored(tile_vec v, const float *r, float *y, int count, tile_act a)
{
    if (r) v += tile_loaded(r, count);
    tile_written(y, tile_clipped(v, TILE_SPLAT(a.low), TILE_SPLAT(a.high)), count);
}
"""
    + contracted("""/* 1 / x for x in [1, 2**127]; NaN stays. Error: 1.1 units in the last place. Zen 5 divides faster than it approximates. */
static inline __attribute__((always_inline)) tile_vec tile_inverse(tile_vec x)
{
#if defined(__AVX512F__) && !defined(__clang__) && !defined(__znver5__) && !(defined(__znver3__) && defined(__AVX512VP2INTERSECT__))
    const tile_vec r = __builtin_ia32_rcp14ps512_mask(x, (tile_vec){0}, (uint16_t)-1);
    return r + r * (1.0f - x * r);
#else
    return 1.0f / x;
#endif
}
/* exp(x) for x in [-87, 88], beyond as at the nearer end; NaN stays. Error: 1.1 units in the last place. */
static inline __attribute__((always_inline)) tile_vec tile_exp(tile_vec x)
{
    x = tile_clipped(x, TILE_SPLAT(-87.0f), TILE_SPLAT(88.0f));
    const tile_vec shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const tile_vec r = x - n * 0.693145752f - n * 1.42860677e-6f;
    tile_vec p = r * 1.395171466e-03f + 8.369598665e-03f;
    p = p * r + 4.166618732e-02f;
    p = p * r + 1.666651289e-01f;
    p = p * r + 5.000000101e-01f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_scalefps512_mask(p, n, (tile_vec){0}, (uint16_t)-1, 4);
#else
    const tile_int power = ((tile_int)shifted - (0x4b400000 - 127)) << 23;
    return p * (tile_vec)power;
#endif
}
static inline __attribute__((always_inline)) tile_vec tile_sigmoid(tile_vec x) { return tile_inverse(1.0f + tile_exp(-x)); }
static inline __attribute__((always_inline)) tile_vec tile_tanh(tile_vec x)
{
    const tile_int sign = (tile_int)x & (tile_int)TILE_SPLAT(-0.0f);
    const tile_vec size = (tile_vec)((tile_int)x ^ sign), z = x * x;
    tile_vec p = z * -5.717025823e-03f + 2.065056849e-02f;
    p = p * z - 5.374349168e-02f;
    p = p * z + 1.333149120e-01f;
    p = p * z - 3.333328392e-01f;
    const tile_vec near = p * z * size + size, far = 1.0f - 2.0f * tile_inverse(tile_exp(2.0f * size) + 1.0f);
    return (tile_vec)((tile_int)tile_chosen(size < TILE_SPLAT(0.625f), near, far) | sign);
}
/* The activation of a vector, if it is more than limits. */
static inline __attribute__((always_inline)) tile_vec tile_curve(int act, tile_vec v)
{
    if (act == 3) return v * tile_clipped(v * (1.0f / 6.0f) + 0.5f, TILE_SPLAT(0.0f), TILE_SPLAT(1.0f));
    if (act == 4) return v * tile_sigmoid(v);
    return 0.5f * v * (1.0f + tile_tanh(0.797884561f * (v + 0.044715f * v * v * v)));
}
/* The activations that are more than limits, in place: `lines` lines of `count` floats, `line` floats from one to the next. */
static __attribute__((noinline)) void tile_curved(float *y, int64_t line, int lines, int64_t count, tile_act a)
{
#define TILE_CURVE(act) \\
    for (int row = 0; row < lines; row++, y += line) \\
        for (int64_t i = 0; i < count; i += TILE_LANES) { \\
            const int some = count - i < TILE_LANES ? (int)(count - i) : TILE_LANES; \\
            tile_written(y + i, tile_curve(act, tile_loaded(y + i, some)), some); \\
        }
    if (a.act == 3) TILE_CURVE(3)
    else if (a.act == 4) TILE_CURVE(4)
    else if (a.act == 6) TILE_CURVE(6)
    else
        for (int row = 0; row < lines; row++, y += line) {
            #pragma omp simd
            for (int64_t i = 0; i < count; i++) y[i] = 0.5f * y[i] * (1.0f + erf_f(y[i] * 0.707106781f));
        }
}
static inline void tile_activated(float *y, int64_t count, tile_act a) { tile_curved(y, 0, 1, count, a); }
""")
    + """/* Where the sums of a tile go: `there` pixels of `line` floats each, beginning at y. `left`: channels of the last panel.
   bias, residual: what is added before the activation (0: nothing). */
typedef struct { const float *bias, *residual; float *y; int64_t line; int left, there; tile_act a; } tile_end;
/* The channels of a line of a tile that vector j of `vectors` has. */
static inline __attribute__((always_inline)) int tile_count(int vectors, int j, int left)
{
    return j < vectors - TILE_PARTS ? TILE_LANES : left - (j - (vectors - TILE_PARTS)) * TILE_LANES;
}
/* Write pixel i of a tile: `vectors` vectors of sums, with bias, residual and limits. */
static inline __attribute__((always_inline)) void tile_ended(int vectors, const tile_vec *sums, const tile_vec *bias, int i,
                                                             const tile_end *e)
{
    float *const y = e->y + i * e->line;
    const float *const r = e->residual ? e->residual + i * e->line : 0;
    TILE_UNROLLED
    for (int j = 0; j < vectors; j++) {
        const int count = tile_count(vectors, j, e->left), at = j * TILE_LANES;
        if (count > 0) tile_stored(sums[j] + bias[j], r ? r + at : 0, y + at, count, e->a);
    }
}
/* Write `value` of all pixels of a tile. */
#define TILE_WRITTEN(R, P, value) { \\
        TILE_UNROLLED for (int i = 0; i < R; i++) { \\
            if (i >= e->there) break; \\
            TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) *(tile_vec *)(e->y + i * e->line + j * TILE_LANES) = value; \\
        } \\
    }
#define TILE_TERMS 256 /* terms of a partial sum, at which it is added to the whole one: rounding grows with their number */
/* Sums of products of R pixels and P panels. rows: TILE_ROWS addresses for each tap. `panel`: floats from one panel of
   weights to the next. */
#define TILE_KERNEL(R, P) \\
static __attribute__((noinline)) void tile_##R##_##P(const float *const *rows, int taps, int channels, const float *packed, \\
                                                     int64_t panel, const tile_end *e) \\
{ \\
    tile_vec c[R][P * TILE_PARTS], kept[R][P * TILE_PARTS], bias[P * TILE_PARTS]; \\
    int terms = 0, whole = 1; \\
    TILE_UNROLLED for (int i = 0; i < R; i++) TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) c[i][j] = (tile_vec){0}; \\
    for (int t = 0; t < taps; t++, rows += TILE_ROWS) { \\
        const float *a[R]; \\
        TILE_UNROLLED for (int i = 0; i < R; i++) a[i] = rows[i]; \\
        for (int64_t begin = 0; begin < channels; begin += TILE_TERMS) { \\
            const int64_t end = channels - begin < TILE_TERMS ? channels : begin + TILE_TERMS; \\
            if (terms + end - begin > TILE_TERMS) { \\
                TILE_UNROLLED for (int i = 0; i < R; i++) \\
                    TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) { \\
                        if (whole) kept[i][j] = c[i][j]; else kept[i][j] += c[i][j]; \\
                        c[i][j] = (tile_vec){0}; \\
                    } \\
                terms = whole = 0; \\
            } \\
            terms += (int)(end - begin); \\
            for (int64_t k = begin; k < end; k++, packed += 16) { \\
                tile_vec w[P * TILE_PARTS]; \\
                TILE_UNROLLED for (int p = 0; p < P; p++) \\
                    TILE_UNROLLED for (int j = 0; j < TILE_PARTS; j++) \\
                        w[p * TILE_PARTS + j] = *(const tile_vec *)(packed + p * panel + j * TILE_LANES); \\
                TILE_UNROLLED for (int i = 0; i < R; i++) { \\
                    const tile_vec x = TILE_SPLAT(a[i][k]); \\
                    TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) c[i][j] += x * w[j]; \\
                } \\
            } \\
        } \\
    } \\
    TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) { \\
        const int count = tile_count(P * TILE_PARTS, j, e->left); \\
        bias[j] = e->bias && count > 0 ? tile_loaded(e->bias + j * TILE_LANES, count) : (tile_vec){0}; \\
    } \\
    if (whole && e->left == 16 && !(e->residual && e->a.act)) { /* whole vectors: no comparisons of each one */ \\
        if (e->residual) TILE_WRITTEN(R, P, c[i][j] + bias[j] + *(const tile_vec *)(e->residual + i * e->line + j * TILE_LANES)) \\
        else if (e->a.act && e->a.act < 3) TILE_WRITTEN(R, P, tile_clipped(c[i][j] + bias[j], TILE_SPLAT(e->a.low), TILE_SPLAT(e->a.high))) \\
        else TILE_WRITTEN(R, P, c[i][j] + bias[j]) \\
    } else { \\
        TILE_UNROLLED for (int i = 0; i < R; i++) { \\
            if (i >= e->there) break; \\
            if (!whole) TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) c[i][j] += kept[i][j]; \\
            tile_ended(P * TILE_PARTS, c[i], bias, i, e); \\
        } \\
    } \\
    if (e->a.act > 2) tile_curved(e->y, e->line, e->there < R ? e->there : R, (P - 1) * 16 + e->left, e->a); \\
}
"""
    + contracted("""#define TILE_KERNELS(P) TILE_KERNEL(2, P) TILE_KERNEL(6, P)
TILE_KERNELS(1)
#if TILE_PANELS > 1
TILE_KERNELS(2)
TILE_KERNELS(3)
TILE_KERNELS(4)
#endif
""")
    + """typedef void tile_kernel(const float *const *rows, int taps, int channels, const float *packed, int64_t panel, const tile_end *e);
/* The kernel for a number of pixels and of panels. */
static inline tile_kernel *tile_kernel_of(int there, int panels)
{
#define TILE_ROW(P) {tile_2_##P, tile_6_##P}
    static tile_kernel *const all[TILE_PANELS][2] = {
        TILE_ROW(1),
#if TILE_PANELS > 1
        TILE_ROW(2), TILE_ROW(3), TILE_ROW(4),
#endif
    };
    return all[panels - 1][there > 2];
}
"""
)


def window_addresses(tile: str, zeros: str, indent: int) -> str:
    """C text of the loop that sets the addresses `rows` of a pixel's window, of which `zeros` is that of padding.
    `tile`: the pixels of a tile."""
    text = f"""for (int t = 0; t < kh; t++) {{
    const int v = row * step_h - top + t * dil_h;
    for (int u = 0; u < kw; u++) {{
        const int s = column * step_w - left + u * dil_w;
        const int inside = v >= 0 && v < h && s >= 0 && s < wide;
        rows[(t * kw + u) * {tile} + i] = inside ? from + (int64_t)v * sh + (int64_t)s * sw : {zeros};
    }}
}}
"""
    return textwrap.indent(text, " " * indent)


DIRECT = """/* Convolution of x with packed weights; y and the residual r are channels-last. x has the strides sn, sc, sh, sw in elements.
   flags: 1 bias b, 2 residual r, 4 x is copied to `room` with its padding, in which the pixels of a line of a window are one
   run. Without a copy the channels of x are neighbours (sc is 1), and room has a line of zeros, which padding reads (of 1 x 1 with stride 1: unused). */
void tiled_conv(const float *x, const float *w, const float *b, const float *r, float *y, float *room,
                int n, int h, int wide, int c, int sn, int sc, int sh, int sw, int oh, int ow, int k,
                int groups, int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left,
                int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    const int own = c / groups, made = k / groups, panels = (made + 15) / 16, blocks = (panels + TILE_PANELS - 1) / TILE_PANELS;
    const int copied = flags & 4, ph = (oh - 1) * step_h + (kh - 1) * dil_h + 1, pw = (ow - 1) * step_w + kw;
    const int taps = copied ? kh : kh * kw; /* runs of neighbouring values that a window reads */
    const int flat = !copied && taps == 1 && step_h == 1 && step_w == 1 && !top && !left && oh == h && ow == wide
        && (h == 1 || sh == wide * sw) && (n == 1 || sn == h * wide * sw); /* pixels follow each other at equal distances */
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
    } else if (!flat) {
        for (int i = 0; i < own; i++) room[i] = 0.0f;
    }
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t tile = task % tiles;
        const int begin = (int)(task / tiles % outer) * inner, group = (int)(task / tiles / outer);
        const float *rows[64 * TILE_ROWS] /* MAX_TAPS */;
        const int64_t pixel = tile * TILE_ROWS;
        const int there = all - pixel < TILE_ROWS ? (int)(all - pixel) : TILE_ROWS;
        if (flat) {
            for (int i = 0; i < TILE_ROWS; i++) rows[i] = x + (pixel + (i < there ? i : there - 1)) * sw + group * own;
        } else {
            int image = (int)(pixel / ((int64_t)oh * ow)), at = (int)(pixel % ((int64_t)oh * ow)), row = at / ow, column = at % ow;
            for (int i = 0; i < TILE_ROWS; i++) {
                if (i >= there) { /* repeats the last pixel; not stored */
                    for (int t = 0; t < taps; t++) rows[t * TILE_ROWS + i] = rows[t * TILE_ROWS + i - 1];
                    continue;
                }
                if (copied) {
                    const float *const from = room + (((int64_t)image * ph + row * step_h) * pw + column * step_w) * c;
                    for (int t = 0; t < kh; t++) rows[t * TILE_ROWS + i] = from + (int64_t)t * dil_h * pw * c;
                } else {
                    const float *const from = x + (int64_t)image * sn + (int64_t)group * own;
@WINDOW@
                }
                if (++column == ow) { column = 0; if (++row == oh) row = 0, image++; }
            }
        }
        for (int block = begin; block < blocks && block < begin + inner; block++) { /* of panels, in equal parts */
            const int first = block * panels / blocks, count = (block + 1) * panels / blocks - first;
            const int channel = group * made + first * 16, width = made - first * 16 < 16 * count ? made - first * 16 : 16 * count;
            const int64_t to = pixel * k + channel;
            const tile_end e = {flags & 1 ? b + channel : 0, flags & 2 ? r + to : 0, y + to, k, width - 16 * (count - 1), there, a};
            tile_kernel_of(there, count)(rows, taps, copied ? kw * own : own,
                                         w + ((int64_t)group * panels + first) * panel, panel, &e);
        }
    }
}
""".replace("@WINDOW@\n", window_addresses("TILE_ROWS", "room", indent=20))
