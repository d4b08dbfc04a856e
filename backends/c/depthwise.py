"""Writes the C text of depthwise convolutions of channels-last images without dilation.

Lines of one vector of channels are copied, with their padding, to a ring of the lines that a window spans: in the image
the same channels of neighbouring pixels are far apart, so that they fall on few sets of the first cache. Strips of
columns keep the ring small. The text uses the vectors and activations of tiled_products.py.
"""

from __future__ import annotations

from .tile_vectors import contracted
from .tiled_products import MAX_TAPS

MOST_LINES = 16  # lines of a window
RING = 512  # vectors of a ring, which stays in the first cache
LEAST_COLUMNS = 8  # pixels of a strip

DEPTHWISE = contracted(
    """#define DEPTHWISE_RING @RING@
/* The sums of R neighbouring pixels. lines: the rows of their windows; w: weights of all taps, one vector each. */
static inline __attribute__((always_inline)) void depthwise_pixels(int R, int step, const float *const *lines, int rows, int kw,
    int at, const float *w, tile_vec bias, const float *r, float *y, int c, int count, tile_act a)
{
    tile_vec s[8];
    TILE_UNROLLED for (int i = 0; i < R; i++) s[i] = bias;
    for (int t = 0; t < rows; t++) {
        const float *from = lines[t] + at * TILE_LANES;
        for (int u = 0; u < kw; u++, from += TILE_LANES, w += TILE_LANES) {
            const tile_vec k = *(const tile_vec *)w;
            TILE_UNROLLED for (int i = 0; i < R; i++) s[i] += k * *(const tile_vec *)(from + i * step * TILE_LANES);
        }
    }
    TILE_UNROLLED for (int i = 0; i < R; i++) tile_stored(s[i], r ? r + (int64_t)i * c : 0, y + (int64_t)i * c, count, a);
}
/* `columns` pixels of a line, whose windows have `rows` rows. */
static inline __attribute__((always_inline)) void depthwise_line(int step, const float *const *lines, int rows, int kw, int columns,
    const float *w, tile_vec bias, const float *r, float *y, int c, int count, tile_act a)
{
    int i = 0;
#define DEPTHWISE_PIXELS(R, end) \\
    for (; i + R <= end; i += R) \\
        depthwise_pixels(R, step, lines, rows, kw, i * step, w, bias, r ? r + (int64_t)i * c : 0, y + (int64_t)i * c, c, count, a);
    const int sevens = (8 - columns % 8) % 8; /* so many times 7 leave a multiple of 8 */
    if (7 * sevens <= columns) DEPTHWISE_PIXELS(7, 7 * sevens)
    DEPTHWISE_PIXELS(8, columns) DEPTHWISE_PIXELS(4, columns) DEPTHWISE_PIXELS(2, columns) DEPTHWISE_PIXELS(1, columns)
}
/* x: n images of h x wide pixels and c channels; w: [tap][c]; y, r: oh x ow pixels. flags: 1 bias b, 2 residual r. */
void tiled_depthwise(const float *x, const float *w, const float *b, const float *r, float *y, int n, int h, int wide, int c,
                     int oh, int ow, int kh, int kw, int step_h, int step_w, int top, int left, int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    const int fit = (DEPTHWISE_RING / kh - kw) / step_w + 1, strips = (ow + fit - 1) / fit, strip = (ow + strips - 1) / strips;
    const int chunks = (c + TILE_LANES - 1) / TILE_LANES;
    const int64_t whole = (int64_t)n * strips * chunks;
    const int parts = whole >= 8 || oh < 8 * kh ? 1 : 4, part = (oh + parts - 1) / parts; /* of lines */
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < whole * parts; task++) {
        const int channel = (int)(task % chunks) * TILE_LANES, count = c - channel < TILE_LANES ? c - channel : TILE_LANES;
        const int begin = (int)(task / chunks % strips) * strip, columns = ow - begin < strip ? ow - begin : strip;
        const int first = (int)(task / chunks / strips % parts) * part, past = first + part < oh ? first + part : oh;
        const int64_t image = task / chunks / strips / parts;
        const float *const from = x + image * h * wide * c + channel;
        _Alignas(64) float ring[DEPTHWISE_RING * TILE_LANES], taps[@TAPS@ * TILE_LANES];
        const int start = begin * step_w - left, width = (columns - 1) * step_w + kw; /* columns of the image, with padding */
        const int before = start < 0 ? (-start < width ? -start : width) : 0, after = start + width > wide ? (wide > start ? wide - start : 0) : width;
        for (int t = 0; t < kh * kw; t++) *(tile_vec *)(taps + t * TILE_LANES) = tile_loaded(w + (int64_t)t * c + channel, count);
        const tile_vec bias = flags & 1 ? tile_loaded(b + channel, count) : (tile_vec){0};
        int copied = first * step_h - top > 0 ? first * step_h - top : 0; /* lines of the image before this one are in the ring, or not needed */
        for (int row = first; row < past; row++) {
            const int above = row * step_h - top, upper = above > 0 ? 0 : -above, lower = above + kh > h ? h - above : kh;
            const float *lines[@LINES@];
            if (above > copied) copied = above;
            for (; copied < above + lower; copied++) {
                float *const to = ring + copied % kh * width * TILE_LANES;
                const float *const line = from + ((int64_t)copied * wide + start) * c;
                int i = 0;
                for (; i < before; i++) *(tile_vec *)(to + i * TILE_LANES) = (tile_vec){0};
                for (; i < after; i++) *(tile_vec *)(to + i * TILE_LANES) = tile_loaded(line + (int64_t)i * c, count);
                for (; i < width; i++) *(tile_vec *)(to + i * TILE_LANES) = (tile_vec){0};
            }
            for (int t = upper; t < lower; t++) lines[t - upper] = ring + (above + t) % kh * width * TILE_LANES;
            const int64_t to = ((image * oh + row) * ow + begin) * c + channel;
            const float *const own = taps + upper * kw * TILE_LANES, *const residual = flags & 2 ? r + to : 0;
            const int rows = lower > upper ? lower - upper : 0;
#define DEPTHWISE_LINE(step, kw) depthwise_line(step, lines, rows, kw, columns, own, bias, residual, y + to, c, count, a)
            if (step_w == 1 && kw == 3) DEPTHWISE_LINE(1, 3); /* constants: offsets of pixels are known, taps unrolled */
            else if (step_w == 1) DEPTHWISE_LINE(1, kw);
            else DEPTHWISE_LINE(step_w, kw);
            for (int i = 0; i < columns && a.act > 2; i++) {
                float *const pixel = y + to + (int64_t)i * c;
                const tile_vec v = tile_loaded(pixel, count);
                tile_written(pixel, a.act == 3 ? tile_curve(3, v) : tile_curve(4, v), count);
            }
        }
    }
}
""".replace("@RING@", str(RING))
    .replace("@TAPS@", str(MAX_TAPS))
    .replace("@LINES@", str(MOST_LINES))
)


def by_ring(window: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], columns: int) -> bool:
    """Whether `tiled_depthwise` computes a convolution with lines of `columns` results, and faster than
    `tiled_windows`: there is no dilation, strips of columns fit into the ring, and copying takes less time than it
    saves. With nine taps and less it does for long lines without a stride only; with a stride each pixel is read about
    twice.
    """
    height, width = window
    fits = height <= MOST_LINES and RING // height - width >= LEAST_COLUMNS * strides[1] and height * width <= MAX_TAPS
    faster = height * width > 9 or (max(strides) == 1 and columns >= 2 * LEAST_COLUMNS - 2)
    return fits and dilations == (1, 1) and faster


__all__ = ["DEPTHWISE", "by_ring"]
