"""Writes the C text of channels-last windows without a sum over channels: depthwise convolutions, maximum and average
pooling.

Lines of output pixels are divided over the threads. Each pixel reads the taps of its window that are inside of the
image, several vectors of channels at a time. The text uses the vectors and activations of tiled_products.py.
"""

from __future__ import annotations

WINDOWS = """#if defined(__clang__)
#define TILE_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLLED _Pragma("GCC unroll 49")
#endif
static inline __attribute__((always_inline)) tile_vec tile_loaded(const float *p, int count)
{
    if (count >= TILE_LANES) return *(const tile_vec *)p;
    tile_vec v = {0};
    __builtin_memcpy(&v, p, sizeof(float) * (unsigned long)count);
    return v;
}
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
/* P vectors of channels of one pixel from channel j on; `count` of them exist in the last one. */
static inline __attribute__((always_inline)) void tile_window_sums(int P, int kind, int c, const float *const *from,
    const int *tap, int taps, int area, int j, int count, const float *w, float *sums)
{
    tile_vec a[4];
    for (int p = 0; p < P; p++) a[p] = TILE_SPLAT(kind == 1 ? -__builtin_inff() : 0.0f);
    for (int t = 0; t < taps; t++) {
        for (int p = 0; p < P; p++) {
            const tile_vec v = tile_loaded(from[t] + j + p * TILE_LANES, count);
            if (kind == 0) a[p] += v * tile_loaded(w + (int64_t)tap[t] * c + j + p * TILE_LANES, count);
            else if (kind == 1) a[p] = tile_chosen((v > a[p]) | (v != v), v, a[p]); /* NaN wins */
            else a[p] += v;
        }
    }
    for (int p = 0; p < P; p++) *(tile_vec *)(sums + p * TILE_LANES) = a[p] / TILE_SPLAT(kind == 2 ? (float)area : 1.0f);
}
/* Depthwise convolution by side x side of pixels whose windows are inside of the image, TILE_LANES channels at a time:
   weights stay in registers. x: the first pixel's window; step: floats from one window to the next. */
static inline __attribute__((always_inline)) void tile_depthwise_line(int side, const float *x, int64_t line, int64_t tap,
    int64_t step, const float *w, const float *b, const float *r, float *y, int c, int columns, tile_act a)
{
    for (int j = 0; j + TILE_LANES <= c; j += TILE_LANES) {
        tile_vec k[49];
        TILE_UNROLLED
        for (int t = 0; t < side * side; t++) k[t] = *(const tile_vec *)(w + (int64_t)t * c + j);
        const tile_vec bias = b ? *(const tile_vec *)(b + j) : (tile_vec){0};
        const float *from = x + j;
        for (int i = 0; i < columns; i++, from += step) {
            tile_vec s = bias;
            TILE_UNROLLED
            for (int t = 0; t < side * side; t++) s += k[t] * *(const tile_vec *)(from + t / side * line + t % side * tap);
            if (r) s += *(const tile_vec *)(r + (int64_t)i * c + j);
            *(tile_vec *)(y + (int64_t)i * c + j) = tile_activated(s, a);
        }
    }
}
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC pop_options
#endif
static inline __attribute__((always_inline)) void tile_window_pixel(int kind, int c, const float *const *from,
    const int *tap, int taps, int area, const float *w, const float *b, const float *r, float *y, tile_act a)
{
    float sums[4 * TILE_LANES] __attribute__((aligned(64)));
    int j = 0;
    for (; j + 4 * TILE_LANES <= c; j += 4 * TILE_LANES) {
        tile_window_sums(4, kind, c, from, tap, taps, area, j, TILE_LANES, w, sums);
        tile_stored(sums, b ? b + j : 0, r ? r + j : 0, y + j, 4 * TILE_LANES, a);
    }
    for (; j + TILE_LANES <= c; j += TILE_LANES) {
        tile_window_sums(1, kind, c, from, tap, taps, area, j, TILE_LANES, w, sums);
        tile_stored(sums, b ? b + j : 0, r ? r + j : 0, y + j, TILE_LANES, a);
    }
    if (j < c) {
        tile_window_sums(1, kind, c, from, tap, taps, area, j, c - j, w, sums);
        tile_stored(sums, b ? b + j : 0, r ? r + j : 0, y + j, c - j, a);
    }
}
/* kind: 0 depthwise convolution with weights w, [tap][c]; 1 maximum; 2 average. flags: 1 bias b, 2 residual r. */
void tiled_windows(const float *x, const float *w, const float *b, const float *r, float *y, int n, int h, int wide, int c,
                   int oh, int ow, int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left,
                   int kind, int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    #pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < (int64_t)n * oh; line++) {
        const int row = (int)(line % oh);
        const float *const image = x + line / oh * h * wide * c;
        const int above = row * step_h - top, before = (left + step_w - 1) / step_w;
        const int span = (kw - 1) * dil_w + 1, after = wide + left >= span ? (wide + left - span) / step_w + 1 : 0;
        const int last = after < ow ? after : ow; /* columns from `before` to `last` have whole windows */
        const int whole = kind == 0 && kh == kw && (kh == 3 || kh == 5 || kh == 7) && c % TILE_LANES == 0 && above >= 0
            && above + (kh - 1) * dil_h < h;
        if (whole && before < last) {
            const int64_t to = (line * ow + before) * c;
            const float *const from = image + ((int64_t)above * wide + before * step_w - left) * c;
            const float *const bias = flags & 1 ? b : 0, *const residual = flags & 2 ? r + to : 0;
            const int64_t below = (int64_t)dil_h * wide * c, beside = (int64_t)dil_w * c, step = (int64_t)step_w * c;
            if (kh == 3) tile_depthwise_line(3, from, below, beside, step, w, bias, residual, y + to, c, last - before, a);
            else if (kh == 5) tile_depthwise_line(5, from, below, beside, step, w, bias, residual, y + to, c, last - before, a);
            else tile_depthwise_line(7, from, below, beside, step, w, bias, residual, y + to, c, last - before, a);
        }
        for (int column = 0; column < ow; column++) {
            if (whole && column == before && before < last) column = last;
            if (column >= ow) break;
            const float *from[64]; /* MAX_TAPS */
            int tap[64], taps = 0;
            for (int t = 0; t < kh; t++) {
                const int v = row * step_h - top + t * dil_h;
                if (v < 0 || v >= h) continue;
                for (int u = 0; u < kw; u++) {
                    const int s = column * step_w - left + u * dil_w;
                    if (s < 0 || s >= wide) continue;
                    from[taps] = image + ((int64_t)v * wide + s) * c;
                    tap[taps++] = t * kw + u;
                }
            }
            const int64_t to = (line * ow + column) * c;
            const float *const bias = flags & 1 ? b : 0, *const residual = flags & 2 ? r + to : 0;
            if (kind == 0) tile_window_pixel(0, c, from, tap, taps, 0, w, bias, residual, y + to, a);
            else if (kind == 1) tile_window_pixel(1, c, from, tap, taps, 0, w, bias, residual, y + to, a);
            else tile_window_pixel(2, c, from, tap, taps, kh * kw, w, bias, residual, y + to, a);
        }
    }
}
"""
