"""Writes the C text of channels-last windows without a sum over channels: depthwise convolutions, maximum and average
pooling.

Lines of output pixels are divided over the threads. Each pixel reads the taps of its window that are inside of the
image, several vectors of channels at a time. The text uses the vectors and activations of tiled_products.py.
"""

from __future__ import annotations

from .tile_vectors import contracted

WINDOWS = contracted("""/* P vectors of channels of one pixel from channel j on; `count` channels of the last one exist. */
static inline __attribute__((always_inline)) void tile_window_vectors(int P, int kind, int c, const float *const *from,
    const int *tap, int taps, int area, int j, int count, const float *w, const float *b, const float *r, float *y, tile_act a)
{
    tile_vec s[4];
    TILE_UNROLLED for (int p = 0; p < P; p++) s[p] = TILE_SPLAT(kind == 1 ? -__builtin_inff() : 0.0f);
    for (int t = 0; t < taps; t++) {
        TILE_UNROLLED for (int p = 0; p < P; p++) {
            const tile_vec v = tile_loaded(from[t] + j + p * TILE_LANES, count);
            if (kind == 0) s[p] += v * tile_loaded(w + (int64_t)tap[t] * c + j + p * TILE_LANES, count);
            else if (kind == 1) s[p] = tile_chosen((v > s[p]) | (v != v), v, s[p]); /* NaN wins */
            else s[p] += v;
        }
    }
    TILE_UNROLLED for (int p = 0; p < P; p++) {
        const int at = j + p * TILE_LANES;
        if (kind == 2) s[p] /= TILE_SPLAT((float)area);
        if (b) s[p] += tile_loaded(b + at, count);
        tile_stored(s[p], r ? r + at : 0, y + at, count, a);
    }
}
/* Depthwise convolution of neighbouring pixels by side x side weights, which stay in registers. x: the first pixel's
   window; line, tap, step: floats from one row of a window, tap or window to the next. */
static inline __attribute__((always_inline)) void tile_depthwise_square(int side, const float *x, int64_t line, int64_t tap,
    int64_t step, const float *w, tile_vec bias, const float *r, float *y, int c, int columns, tile_act a)
{
    tile_vec k[9];
    TILE_UNROLLED
    for (int t = 0; t < side * side; t++) k[t] = *(const tile_vec *)(w + (int64_t)t * c);
    for (int i = 0; i < columns; i++, x += step) {
        tile_vec s = bias;
        TILE_UNROLLED
        for (int t = 0; t < side * side; t++) s += k[t] * *(const tile_vec *)(x + t / side * line + t % side * tap);
        tile_stored(s, r ? r + (int64_t)i * c : 0, y + (int64_t)i * c, TILE_LANES, a);
    }
}
/* The same of R pixels by any window of `rows` x `kw` taps: the sums of all pixels stay in registers. */
static inline __attribute__((always_inline)) void tile_depthwise_pixels(int R, const float *x, int64_t line, int64_t tap,
    int64_t step, int rows, int kw, const float *w, tile_vec bias, const float *r, float *y, int c, int count, tile_act a)
{
    tile_vec s[8];
    TILE_UNROLLED for (int i = 0; i < R; i++) s[i] = bias;
    for (int t = 0; t < rows; t++, x += line) {
        const float *from = x;
        for (int u = 0; u < kw; u++, from += tap, w += c) {
            const tile_vec k = tile_loaded(w, count);
            TILE_UNROLLED for (int i = 0; i < R; i++) s[i] += k * tile_loaded(from + i * step, count);
        }
    }
    TILE_UNROLLED for (int i = 0; i < R; i++) tile_stored(s[i], r ? r + (int64_t)i * c : 0, y + (int64_t)i * c, count, a);
}
/* The window of a line of output pixels: its rows that are inside of the image, from `first` to before `end`, and the columns
   of pixels whose windows have all of their columns inside, from `before` to before `last`. */
typedef struct { int above, first, end, before, last; } tile_span;
static inline tile_span tile_span_of(int row, int h, int wide, int ow, int kh, int kw, int step_h, int step_w, int dil_h,
                                     int dil_w, int top, int left)
{
    const int width = (kw - 1) * dil_w + 1, after = wide + left >= width ? (wide + left - width) / step_w + 1 : 0;
    tile_span s = {row * step_h - top, 0, kh, (left + step_w - 1) / step_w, after < ow ? after : ow};
    while (s.first < kh && s.above + s.first * dil_h < 0) s.first++;
    while (s.end > s.first && s.above + (s.end - 1) * dil_h >= h) s.end--;
    return s;
}
/* Depthwise convolution of neighbouring pixels, `count` channels: the windows have `rows` rows and all kw columns. */
static inline __attribute__((always_inline)) void tile_depthwise_line(const float *x, int64_t line, int64_t tap, int64_t step,
    int rows, int kw, const float *w, tile_vec bias, const float *r, float *y, int c, int columns, int count, tile_act a)
{
    int i = 0;
#define TILE_PIXELS(R) \\
    for (; i + R <= columns; i += R) \\
        tile_depthwise_pixels(R, x + i * step, line, tap, step, rows, kw, w, bias, r ? r + (int64_t)i * c : 0, \\
                              y + (int64_t)i * c, c, count, a);
    TILE_PIXELS(8) TILE_PIXELS(4) TILE_PIXELS(2) TILE_PIXELS(1)
}
/* Channels j to before `end` of one pixel. */
static inline __attribute__((always_inline)) void tile_window_pixel(int kind, int c, const float *const *from,
    const int *tap, int taps, int area, int j, int end, const float *w, const float *b, const float *r, float *y, tile_act a)
{
    for (; j + 4 * TILE_LANES <= end; j += 4 * TILE_LANES)
        tile_window_vectors(4, kind, c, from, tap, taps, area, j, TILE_LANES, w, b, r, y, a);
    for (; j + TILE_LANES <= end; j += TILE_LANES)
        tile_window_vectors(1, kind, c, from, tap, taps, area, j, TILE_LANES, w, b, r, y, a);
    if (j < end) tile_window_vectors(1, kind, c, from, tap, taps, area, j, end - j, w, b, r, y, a);
}
#define TILE_LINES 640 /* vectors of input lines that stay in the first cache beside others */
/* kind: 0 depthwise convolution with weights w, [tap][c]; 1 maximum; 2 average. flags: 1 bias b, 2 residual r. */
void tiled_windows(const float *x, const float *w, const float *b, const float *r, float *y, int n, int h, int wide, int c,
                   int oh, int ow, int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left,
                   int kind, int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    /* depthwise: lines of output of which a vector of channels is computed one after another */
    const int fit = kind == 0 ? (TILE_LINES / wide - kh) / step_h : 1, group = fit < 1 ? 1 : fit > 8 ? 8 : fit;
    const int groups = (oh + group - 1) / group;
    const int chunk = kind == 0 ? 4 * TILE_LANES : c, chunks = (c + chunk - 1) / chunk; /* of channels */
    const float *const bias = flags & 1 ? b : 0;
    const int64_t below = (int64_t)dil_h * wide * c, beside = (int64_t)dil_w * c, step = (int64_t)step_w * c;
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < (int64_t)n * groups * chunks; task++) {
        const int begin = (int)(task % chunks) * chunk, end = begin + chunk < c ? begin + chunk : c;
        const int top_row = (int)(task / chunks % groups) * group, past = top_row + group < oh ? top_row + group : oh;
        const int64_t at = task / chunks / groups;
        const float *const image = x + at * h * wide * c;
        for (int j = begin; kind == 0 && j < end; j += TILE_LANES)
            for (int row = top_row; row < past; row++) {
                const tile_span s = tile_span_of(row, h, wide, ow, kh, kw, step_h, step_w, dil_h, dil_w, top, left);
                const int64_t to = ((at * oh + row) * ow + s.before) * c + j;
                const float *const from = image + ((int64_t)(s.above + s.first * dil_h) * wide + s.before * step_w - left) * c + j;
                const float *const taps = w + (int64_t)s.first * kw * c + j, *const residual = flags & 2 ? r + to : 0;
                const tile_vec start = bias ? tile_loaded(bias + j, end - j) : (tile_vec){0};
                if (end - j < TILE_LANES)
                    tile_depthwise_line(from, below, beside, step, s.end - s.first, kw, taps, start, residual, y + to, c,
                                        s.last - s.before, end - j, a);
                else if (s.end - s.first == 3 && kw == 3)
                    tile_depthwise_square(3, from, below, beside, step, taps, start, residual, y + to, c, s.last - s.before, a);
                else
                    tile_depthwise_line(from, below, beside, step, s.end - s.first, kw, taps, start, residual, y + to, c,
                                        s.last - s.before, TILE_LANES, a);
            }
        for (int row = top_row; row < past; row++) {
            const tile_span s = tile_span_of(row, h, wide, ow, kh, kw, step_h, step_w, dil_h, dil_w, top, left);
            for (int column = 0; column < ow; column++) {
                if (kind == 0 && column == s.before && s.before < s.last) column = s.last;
                if (column >= ow) break;
                const float *from[64]; /* MAX_TAPS */
                int tap[64], taps = 0;
                for (int t = s.first; t < s.end; t++) {
                    for (int u = 0; u < kw; u++) {
                        const int v = column * step_w - left + u * dil_w;
                        if (v < 0 || v >= wide) continue;
                        from[taps] = image + ((int64_t)(s.above + t * dil_h) * wide + v) * c;
                        tap[taps++] = t * kw + u;
                    }
                }
                const int64_t to = ((at * oh + row) * ow + column) * c;
                const float *const residual = flags & 2 ? r + to : 0;
                if (kind == 0) tile_window_pixel(0, c, from, tap, taps, 0, begin, end, w, bias, residual, y + to, a);
                else if (kind == 1) tile_window_pixel(1, c, from, tap, taps, 0, begin, end, w, bias, residual, y + to, a);
                else tile_window_pixel(2, c, from, tap, taps, kh * kw, begin, end, w, bias, residual, y + to, a);
            }
            if (a.act > 2)
                for (int column = 0; column < ow; column++)
                    tile_activated(y + ((at * oh + row) * ow + column) * c + begin, end - begin, a);
        }
    }
}
""")
