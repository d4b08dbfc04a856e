"""Writes the C text of register-tiled sums of products: the micro-kernel of convolutions, and direct convolutions made
from it.

A tile is `TILE_ROWS` output pixels by one or several panels of `PANEL` output channels. Its sums stay in registers over
all taps and input channels; pixels are given by their addresses, so padding is an address of zeros. Weights are packed
as [group][panel][tap][input channel][PANEL].
"""

from __future__ import annotations

import textwrap

from .tile_vectors import VECTORS, contracted

PANEL = 16  # output channels of a panel of packed weights
MAX_TAPS = 64  # most taps of a window: their addresses are on the stack
FEW_CHANNELS = 16  # below this number of channels of a group, whole rows of a window are one run of a padded copy

MICRO_KERNEL = (
    "/* Sums of products of TILE_ROWS pixels and up to TILE_PANELS panels of 16 output channels. */\n"
    + VECTORS
    + """/* Where the sums of a tile go: `there` pixels of `line` floats each, beginning at y. `left`: channels of the last panel.
   bias, residual: what is added (0: nothing), the residual behind an activation that is more than limits. */
typedef struct { const float *bias, *residual; float *y; int64_t line; int left, there; tile_act a; } tile_end;
/* Write `lines` pixels of `count` channels; sums have `apart` floats from one pixel to the next. */
static __attribute__((noinline)) void tile_ended(const float *sums, int64_t apart, int lines, int64_t count, const tile_end *end)
{
    const tile_end e = *end;
    if (e.a.act > 2) {
        tile_curved(sums, apart, e.bias, e.residual, e.y, e.line, lines, count, e.a);
        return;
    }
    for (int64_t i = 0; i < count; i += TILE_LANES) {
        const int some = count - i < TILE_LANES ? (int)(count - i) : TILE_LANES;
        const tile_vec bias = e.bias ? tile_loaded(e.bias + i, some) : (tile_vec){0};
        for (int row = 0; row < lines; row++) {
            const int64_t to = row * e.line + i;
            tile_stored(*(const tile_vec *)(sums + row * apart + i) + bias, e.residual ? e.residual + to : 0, e.y + to, some, e.a);
        }
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
    if (whole && e->left == 16 && e->a.act < 3 && !(e->residual && e->a.act)) { /* whole vectors: no comparisons of each one */ \\
        TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) \\
            bias[j] = e->bias ? *(const tile_vec *)(e->bias + j * TILE_LANES) : (tile_vec){0}; \\
        if (e->residual) TILE_WRITTEN(R, P, c[i][j] + bias[j] + *(const tile_vec *)(e->residual + i * e->line + j * TILE_LANES)) \\
        else if (e->a.act) TILE_WRITTEN(R, P, tile_clipped(c[i][j] + bias[j], TILE_SPLAT(e->a.low), TILE_SPLAT(e->a.high))) \\
        else TILE_WRITTEN(R, P, c[i][j] + bias[j]) \\
    } else { \\
        tile_vec sums[R][P * TILE_PARTS]; /* c stays in registers */ \\
        TILE_UNROLLED for (int i = 0; i < R; i++) \\
            TILE_UNROLLED for (int j = 0; j < P * TILE_PARTS; j++) { \\
                if (!whole) c[i][j] += kept[i][j]; \\
                sums[i][j] = c[i][j]; \\
            } \\
        tile_ended((const float *)sums, P * 16, e->there < R ? e->there : R, (P - 1) * 16 + e->left, e); \\
    } \\
}
/* The same of R pixels and the first V vectors of one panel, with two sums each: few sums would wait for each other. */
#define TILE_DEEP(name, R, V) \\
static __attribute__((noinline)) void name(const float *const *rows, int taps, int channels, const float *packed, \\
                                           int64_t panel, const tile_end *e) \\
{ \\
    tile_vec c[R][V], d[R][V], kept[R][V]; \\
    int terms = 0; \\
    (void)panel; \\
    TILE_UNROLLED for (int i = 0; i < R; i++) \\
        TILE_UNROLLED for (int j = 0; j < V; j++) c[i][j] = d[i][j] = kept[i][j] = (tile_vec){0}; \\
    for (int t = 0; t < taps; t++, rows += TILE_ROWS) { \\
        const float *a[R]; \\
        TILE_UNROLLED for (int i = 0; i < R; i++) a[i] = rows[i]; \\
        for (int64_t begin = 0; begin < channels; begin += TILE_TERMS) { \\
            const int64_t end = channels - begin < TILE_TERMS ? channels : begin + TILE_TERMS; \\
            int64_t k = begin; \\
            if (terms + end - begin > TILE_TERMS) { \\
                TILE_UNROLLED for (int i = 0; i < R; i++) \\
                    TILE_UNROLLED for (int j = 0; j < V; j++) { \\
                        kept[i][j] += c[i][j] + d[i][j]; \\
                        c[i][j] = d[i][j] = (tile_vec){0}; \\
                    } \\
                terms = 0; \\
            } \\
            terms += (int)(end - begin); \\
            for (; k + 2 <= end; k += 2, packed += 32) { \\
                TILE_UNROLLED for (int i = 0; i < R; i++) { \\
                    const tile_vec x = TILE_SPLAT(a[i][k]), z = TILE_SPLAT(a[i][k + 1]); \\
                    TILE_UNROLLED for (int j = 0; j < V; j++) { \\
                        c[i][j] += x * *(const tile_vec *)(packed + j * TILE_LANES); \\
                        d[i][j] += z * *(const tile_vec *)(packed + 16 + j * TILE_LANES); \\
                    } \\
                } \\
            } \\
            if (k < end) { \\
                TILE_UNROLLED for (int i = 0; i < R; i++) \\
                    TILE_UNROLLED for (int j = 0; j < V; j++) \\
                        c[i][j] += TILE_SPLAT(a[i][k]) * *(const tile_vec *)(packed + j * TILE_LANES); \\
                packed += 16; \\
            } \\
        } \\
    } \\
    tile_vec sums[R][V]; /* c stays in registers */ \\
    TILE_UNROLLED for (int i = 0; i < R; i++) \\
        TILE_UNROLLED for (int j = 0; j < V; j++) sums[i][j] = c[i][j] + d[i][j] + kept[i][j]; \\
    tile_ended((const float *)sums, V * TILE_LANES, e->there < R ? e->there : R, e->left, e); \\
}
"""
    + contracted("""#define TILE_KERNELS(P) TILE_KERNEL(2, P) TILE_KERNEL(6, P)
TILE_KERNELS(1)
#if TILE_PANELS > 1
TILE_KERNELS(2)
TILE_KERNELS(3)
TILE_KERNELS(4)
#endif
#if TILE_LANES == 8
TILE_DEEP(tile_6_half, 6, 1)
#endif
""")
    + """typedef void tile_kernel(const float *const *rows, int taps, int channels, const float *packed, int64_t panel, const tile_end *e);
/* The kernel for a number of pixels and of panels, of which the last one has `left` channels. */
static inline tile_kernel *tile_kernel_for(int there, int panels, int left)
{
#if TILE_LANES == 8
    if (left <= 8 && there > 2) return tile_6_half;
#endif
    (void)left;
#define TILE_ROW(P) {tile_2_##P, tile_6_##P}
    static tile_kernel *const all[TILE_PANELS][2] = {
        TILE_ROW(1),
#if TILE_PANELS > 1
        TILE_ROW(2), TILE_ROW(3), TILE_ROW(4),
#endif
    };
    return all[panels - 1][there > 2];
}
static inline tile_kernel *tile_kernel_of(int there, int panels) { return tile_kernel_for(there, panels, 16); }
"""
)


def window_addresses(tile: str, zeros: str, indent: int) -> str:
    """C text of the loop that sets the addresses `rows` of a pixel's window, of which `zeros` is that of padding.
    `tile`: the pixels of a tile."""
    text = f"""for (int t = 0; t < kh; t++) {{
    const int v = row * step_h - top + t * dil_h, row_inside = v >= 0 && v < h;
    for (int u = 0; u < kw; u++) {{
        const int s = column * step_w - left + u * dil_w;
        const int inside = row_inside & (s >= 0) & (s < wide);
        rows[(t * kw + u) * {tile} + i] = inside ? from + (int64_t)v * sh + (int64_t)s * sw : {zeros};
    }}
}}
"""
    return textwrap.indent(text, " " * indent)


def inner_addresses(tile: str, indent: int) -> str:
    """C text that sets the addresses `rows` of a whole tile of pixels of one line whose windows are inside of the image
    (as `window_addresses`), or is false: then `i` is 0, else the pixels of the tile."""
    text = f"""const int v0 = row * step_h - top, s0 = column * step_w - left;
if (there == {tile} && column + {tile} <= ow && v0 >= 0 && v0 + (kh - 1) * dil_h < h && s0 >= 0
    && s0 + ({tile} - 1) * step_w + (kw - 1) * dil_w < wide) {{
    const int64_t beside = (int64_t)step_w * sw;
    for (int t = 0, at = 0; t < kh; t++)
        for (int u = 0; u < kw; u++, at += {tile})
            for (i = 0; i < {tile}; i++)
                rows[at + i] = from + (int64_t)(v0 + t * dil_h) * sh + (int64_t)(s0 + u * dil_w) * sw + i * beside;
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
            if (c == 3 && sw == 1) /* whose values compilers interleave in vectors */
                for (int j = 0; j < last; j++)
                    for (int i = 0; i < 3; i++) to[(int64_t)(left + j) * 3 + i] = from[j + (int64_t)i * sc];
            else
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
            int image = (int)(pixel / ((int64_t)oh * ow)), at = (int)(pixel % ((int64_t)oh * ow)), row = at / ow, column = at % ow, i = 0;
            if (!copied) {
                const float *const from = x + (int64_t)image * sn + (int64_t)group * own;
@INNER@
            }
            for (; i < TILE_ROWS; i++) {
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
            tile_kernel_for(there, count, e.left)(rows, taps, copied ? kw * own : own,
                                                  w + ((int64_t)group * panels + first) * panel, panel, &e);
        }
    }
}
""".replace("@WINDOW@\n", window_addresses("TILE_ROWS", "room", indent=20)).replace(
    "@INNER@\n", inner_addresses("TILE_ROWS", indent=16)
)
