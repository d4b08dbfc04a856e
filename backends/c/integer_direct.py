"""C text of direct convolutions of bytes: padding, tiles of pixels, and the loops over panels of weights
(integer_tiles.py)."""

from __future__ import annotations

from .integer_wide import WIDE_PIXELS
from .tiled_products import MAX_TAPS, window_addresses

INTEGER_DIRECT = (
    """/* Three lines of bytes ^ flip side by side, in a loop that compilers vectorize. */
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
    const int8_t *packed = (const int8_t *)w + 4 * padded;
    uint8_t *more = (uint8_t *)room + 16 * padded; /* the padded copy, or a line of zero points */
    const int wide_values = QUAD_WIDE && !e.offset && (int64_t)n * oh * ow >= @WIDE@, size = wide_values ? 2 : 1; /* bytes of a value */
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
#if QUAD_WIDE
    if (wide_values) { /* weights, then values, then a line of zero points, behind the others in room */
        const int64_t bytes = panel * groups * panels, values = copied ? groups * n * ph * pw * own : (int64_t)n * h * wide * c;
        const uintptr_t behind = (uintptr_t)more + (uintptr_t)(copied ? values + 4 : own);
        int16_t *const wide_weights = (int16_t *)((behind + 63) / 64 * 64);
        uint16_t *const to = (uint16_t *)(wide_weights + bytes);
        quad_weights_widened(packed, bytes / 64, wide_weights);
        packed = (const int8_t *)wide_weights;
        if (copied || (sw == c && (h == 1 || sh == wide * c) && (n == 1 || sn == h * wide * c))) {
            quad_values_widened(copied ? more : x, values, to);
        } else {
            #pragma omp parallel for schedule(static)
            for (int64_t i = 0; i < (int64_t)n * h * wide; i++)
                for (int j = 0; j < c; j++)
                    to[i * c + j] = ((const uint8_t *)x)[i / (h * wide) * sn + i / wide % h * (int64_t)sh + i % wide * sw + j];
        }
        for (int i = 0; i < own; i++) to[values + i] = (uint16_t)x_byte;
        x = to, sw = 2 * c, sh = wide * sw, sn = h * sh;
        more = (uint8_t *)(copied ? to : to + values);
    }
#endif
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
                    rows[i] = (const uint8_t *)x + (pixel + (i < there ? i : there - 1)) * sw + group * own * size;
                    continue;
                }
                if (i >= there) { /* repeats the last pixel; not stored */
                    for (int t = 0; t < taps; t++) rows[t * QUAD_ROWS + i] = rows[t * QUAD_ROWS + i - 1];
                    continue;
                }
                if (copied) {
                    const uint8_t *const from = more + ((((int64_t)group * n + image) * ph + row * step_h) * pw + column * step_w) * own * size;
                    if (joined)
                        for (int t = 0; t < kh; t++) rows[t * QUAD_ROWS + i] = from + (int64_t)t * dil_h * pw * own * size;
                    else
                        for (int t = 0; t < taps; t++)
                            rows[t * QUAD_ROWS + i] = from + ((int64_t)(t / kw) * dil_h * pw + (int64_t)(t % kw) * dil_w) * own * size;
                } else {
                    const uint8_t *const from = (const uint8_t *)x + (int64_t)image * sn + (int64_t)group * own * size;
@WINDOW@
                }
                if (++column == ow) { column = 0; if (++row == oh) row = 0, image++; }
            }
            for (int block = begin; block < blocks && block < begin + inner; block++) { /* of panels, in equal parts */
                const int first = block * panels / blocks, count = (block + 1) * panels / blocks - first;
                const int behind = made - first * 16 - 16 * (count - 1), channel = group * made + first * 16;
                quad_kernel *kernel = quad_kernel_of(there, count);
#if QUAD_WIDE
                if (wide_values) kernel = behind > 8 ? quad_wide_6 : quad_wide_half;
#endif
                kernel(rows, taps, quads, run, packed + ((int64_t)group * panels + first) * panel * size, panel, &e, there,
                                             ((int64_t)group * panels + first) * 16, behind < 16 ? behind : 16, r, y, pixel * k + channel, k,
                                             at_once, (int64_t)QUAD_ROWS * sw);
            }
        }
    }
}
""".replace("@TAPS@", str(MAX_TAPS))
    .replace("@WIDE@", str(WIDE_PIXELS))
    .replace("@WINDOW@\n", window_addresses("QUAD_ROWS", "more", indent=20))
)
