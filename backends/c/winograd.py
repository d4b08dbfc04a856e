"""Writes the C text of Winograd's convolution F(2x2, 3x3): 16 instead of 36 products for each four output pixels.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015). Inputs of 4 x 4 pixels are transformed channel
by channel, multiplied by transformed weights in 16 matrix products of the micro-kernel (tiled_products.py), and
transformed back. The three steps are done block by block of output tiles, so that the intermediate values stay in the
cache.
"""

from __future__ import annotations

BLOCK_BYTES = (
    1 << 19
)  # bytes between the steps, or half of those of the weights: a block has as many output tiles as fit
LEAST_TILES, MOST_TILES = 24, 256  # output tiles of a block; each block reads all weights

WINOGRAD = """/* Convolution of 3 x 3 with stride 1, channels-last; c and k are multiples of 16. w: transformed and packed weights,
   [16][panel][c][16]. room: 16 * most * (c + k) floats: of at most `most`
   tiles. flags: 1 bias, 2 residual r. */
void tiled_winograd(const float *x, const float *w, const float *b, const float *r, float *y, float *room,
                    int n, int h, int wide, int c, int oh, int ow, int k, int top, int left, int most,
                    int flags, int act, int low, int high)
{
    const tile_act a = tile_act_of(act, low, high);
    const int th = (oh + 1) / 2, tw = (ow + 1) / 2, panels = k / 16, blocks = (panels + TILE_PANELS - 1) / TILE_PANELS;
    const int64_t all = (int64_t)n * th * tw, panel = 16ll * c, parts = (all + most - 1) / most;
    const int block = (int)((all + parts - 1) / parts);
    float *const in = room, *const out = room + (int64_t)16 * block * c;
    for (int64_t begin = 0; begin < all; begin += block) {
        const int count = all - begin < block ? (int)(all - begin) : block;
        const int lines = (count + TILE_ROWS - 1) / TILE_ROWS;
        #pragma omp parallel for schedule(static)
        for (int t = 0; t < count; t++) {
            const int64_t image = (begin + t) / (th * tw);
            const int at = (int)((begin + t) % (th * tw)), row = at / tw * 2 - top, column = at % tw * 2 - left;
            const float *from[16];
            int inside = 0;
            for (int i = 0; i < 16; i++) {
                const int v = row + i / 4, u = column + i % 4, there = v >= 0 && v < h && u >= 0 && u < wide;
                from[i] = there ? x + ((image * h + v) * wide + u) * c : 0;
                inside |= there << i;
            }
            for (int j = 0; j < c; j += TILE_LANES) {
                tile_vec d[16], e[16];
                for (int i = 0; i < 16; i++) d[i] = inside >> i & 1 ? *(const tile_vec *)(from[i] + j) : (tile_vec){0};
                for (int i = 0; i < 4; i++) {
                    e[i] = d[i] - d[8 + i];
                    e[4 + i] = d[4 + i] + d[8 + i];
                    e[8 + i] = d[8 + i] - d[4 + i];
                    e[12 + i] = d[4 + i] - d[12 + i];
                }
                float *const to = in + (int64_t)t * c + j;
                for (int i = 0; i < 16; i += 4) {
                    *(tile_vec *)(to + (int64_t)(i + 0) * block * c) = e[i] - e[i + 2];
                    *(tile_vec *)(to + (int64_t)(i + 1) * block * c) = e[i + 1] + e[i + 2];
                    *(tile_vec *)(to + (int64_t)(i + 2) * block * c) = e[i + 2] - e[i + 1];
                    *(tile_vec *)(to + (int64_t)(i + 3) * block * c) = e[i + 1] - e[i + 3];
                }
            }
        }
        #pragma omp parallel for schedule(static)
        for (int task = 0; task < 16 * blocks * lines; task++) {
            const int line = task % lines, place = task / lines / blocks, at = task / lines % blocks;
            const int first = at * panels / blocks, some = (at + 1) * panels / blocks - first, begun = line * TILE_ROWS;
            const int there = count - begun < TILE_ROWS ? count - begun : TILE_ROWS;
            const float *rows[TILE_ROWS];
            for (int i = 0; i < TILE_ROWS; i++) {
                const int t = begun + (i < there ? i : there - 1);
                rows[i] = in + ((int64_t)place * block + t) * c;
            }
            float *const to = out + ((int64_t)place * block + begun) * k + first * 16;
            const tile_end e = {0, 0, to, k, 16, there, tile_act_of(0, 0, 0)};
            tile_kernel_of(there, some)(rows, 1, c, w + ((int64_t)place * panels + first) * panel, panel, &e);
        }
        #pragma omp parallel for schedule(static)
        for (int t = 0; t < count; t++) {
            const int64_t image = (begin + t) / (th * tw);
            const int at = (int)((begin + t) % (th * tw)), row = at / tw * 2, column = at % tw * 2;
            for (int j = 0; j < k; j += TILE_LANES) {
                tile_vec m[16], e[8], made[4];
                for (int i = 0; i < 16; i++) m[i] = *(const tile_vec *)(out + ((int64_t)i * block + t) * k + j);
                for (int i = 0; i < 4; i++) {
                    e[i] = m[i] + m[4 + i] + m[8 + i];
                    e[4 + i] = m[4 + i] - m[8 + i] - m[12 + i];
                }
                for (int i = 0; i < 2; i++) {
                    made[2 * i] = e[4 * i] + e[4 * i + 1] + e[4 * i + 2];
                    made[2 * i + 1] = e[4 * i + 1] - e[4 * i + 2] - e[4 * i + 3];
                }
                const tile_vec bias = flags & 1 ? *(const tile_vec *)(b + j) : (tile_vec){0};
                for (int i = 0; i < 4; i++) {
                    const int v = row + i / 2, u = column + i % 2;
                    if (v >= oh || u >= ow) continue;
                    const int64_t to = ((image * oh + v) * ow + u) * k + j;
                    const float *const beside = flags & 2 ? r + to : 0;
                    made[i] += bias;
                    if (a.act > 2) tile_curved((const float *)&made[i], 0, 0, beside, y + to, 0, 1, TILE_LANES, a);
                    else tile_stored(made[i], beside, y + to, TILE_LANES, a);
                }
            }
        }
    }
}
"""
