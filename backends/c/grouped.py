"""Writes the C text of convolutions in groups of at most 16 output channels.

A group has one panel of weights, so that a tile of six pixels has six sums at a time: too few for the latency of
multiply-adds. Twelve pixels are one tile here (with 32 registers), whose addresses all groups share.
"""

from __future__ import annotations

from .tile_vectors import contracted
from .tiled_products import MAX_TAPS, window_addresses

GROUPED = (
    """#pragma push_macro("TILE_ROWS")
#if defined(__AVX512F__)
#undef TILE_ROWS
#define TILE_ROWS 12
"""
    + contracted("""TILE_KERNEL(12, 1)
""")
    + """#define GROUPED_KERNEL tile_12_1
#else
#define GROUPED_KERNEL tile_6_1
#endif
/* Convolution in groups of at most 16 output channels; x, y and the residual r are channels-last. Arguments: as of tiled_conv.
   room: a zero for each channel, which padding reads. */
void grouped_conv(const float *x, const float *w, const float *b, const float *r, float *y, float *room,
                  int n, int h, int wide, int c, int sn, int sc, int sh, int sw, int oh, int ow, int k,
                  int groups, int kh, int kw, int step_h, int step_w, int dil_h, int dil_w, int top, int left,
                  int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    const int own = c / groups, made = k / groups, taps = kh * kw;
    const int64_t all = (int64_t)n * oh * ow, tiles = (all + TILE_ROWS - 1) / TILE_ROWS, panel = 16ll * taps * own;
    for (int i = 0; i < c; i++) room[i] = 0.0f;
    #pragma omp parallel for schedule(static)
    for (int64_t tile = 0; tile < tiles; tile++) {
        const float *rows[@TAPS@ * TILE_ROWS], *shifted[@TAPS@ * TILE_ROWS];
        const int64_t pixel = tile * TILE_ROWS;
        const int there = all - pixel < TILE_ROWS ? (int)(all - pixel) : TILE_ROWS;
        int image = (int)(pixel / ((int64_t)oh * ow)), at = (int)(pixel % ((int64_t)oh * ow)), row = at / ow, column = at % ow;
        for (int i = 0; i < TILE_ROWS; i++) {
            if (i >= there) { /* repeats the last pixel; not stored */
                for (int t = 0; t < taps; t++) rows[t * TILE_ROWS + i] = rows[t * TILE_ROWS + i - 1];
                continue;
            }
            const float *const from = x + (int64_t)image * sn;
@WINDOW@
            if (++column == ow) { column = 0; if (++row == oh) row = 0, image++; }
        }
        for (int group = 0; group < groups; group++) {
            for (int i = 0; i < taps * TILE_ROWS; i++) shifted[i] = rows[i] + group * own;
            const int channel = group * made;
            const int64_t to = pixel * k + channel;
            const tile_end e = {flags & 1 ? b + channel : 0, flags & 2 ? r + to : 0, y + to, k, made, there, a};
            GROUPED_KERNEL(shifted, taps, own, w + group * panel, panel, &e);
        }
    }
}
#pragma pop_macro("TILE_ROWS")
""".replace("@TAPS@", str(MAX_TAPS)).replace("@WINDOW@\n", window_addresses("TILE_ROWS", "room", indent=12))
)

__all__ = ["GROUPED"]
