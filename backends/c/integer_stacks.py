"""C text of products of matrices of bytes, one or a stack of them, by the kernels of integer_tiles.py."""

from __future__ import annotations

INTEGER_STACKS = """/* Pack the bytes w[k][n], which have the distances `down` and `across`, as quad_conv reads weights: the sum of each column
   (int32), then [panel of 16 columns][quad of rows][16][4]. flip: 128 for bytes without sign. */
static void quad_packed(const uint8_t *w, int k, int n, int64_t down, int64_t across, int flip, void *to)
{
    const int panels = (n + 15) / 16, quads = (k + 3) / 4;
    const quad_int ones = 0x01010101 - (quad_int){0};
    #pragma omp parallel for schedule(static)
    for (int p = 0; p < panels; p++) {
        uint8_t *at = (uint8_t *)to + 64ll * panels + 64ll * quads * p;
        const int there = n - 16 * p < 16 ? n - 16 * p : 16;
        const uint8_t *from = w + 16 * p * across;
        quad_int sum = {0};
        for (int q = 0; q < quads; q++, at += 64, from += 4 * down) {
            const int rows = k - 4 * q < 4 ? k - 4 * q : 4;
            if (rows == 4 && there == 16 && across == 1)
                for (int j = 0; j < 16; j++)
                    for (int i = 0; i < 4; i++) at[4 * j + i] = from[i * down + j] ^ flip;
            else if (rows == 4 && there == 16 && down == 1)
                for (int j = 0; j < 16; j++) {
                    uint32_t four;
                    __builtin_memcpy(&four, from + j * across, 4);
                    four ^= (uint32_t)flip * 0x01010101u;
                    __builtin_memcpy(at + 4 * j, &four, 4);
                }
            else {
                __builtin_memset(at, 0, 64);
                for (int j = 0; j < there; j++)
                    for (int i = 0; i < rows; i++) at[4 * j + i] = from[i * down + j * across] ^ flip;
            }
            sum = quad_dot(sum, ones, at);
        }
        *(quad_int *)((int32_t *)to + 16 * p) = sum;
    }
}
/* outer x inner products of matrices x[m][k] and w[k][n] of bytes, whose elements have the distances x_* and w_*; y is row-major.
   Other arguments: as of quad_conv. room begins with a packed matrix. */
void quad_products(const void *x, const void *w, const void *x_zero, const void *w_zero, const void *x_scale, const void *m_scale,
                   const void *b, const void *scale, const void *zero, const void *r, const void *mid_scale, const void *mid_zero,
                   const void *mid_factor, const void *r_scale, const void *r_zero, void *y, void *room, int outer, int inner, int m, int k,
                   int n, int x_outer, int x_inner, int x_row, int x_column, int w_outer, int w_inner, int w_row, int w_column,
                   int kind, int flags, int low, int high, int least, int most)
{
    const int64_t size = 64ll * ((n + 15) / 16) * (1 + (k + 3) / 4), element = kind < 2 ? 4 : 1;
    for (int64_t i = 0; i < (int64_t)outer * inner; i++) {
        const int64_t own = i / inner, other = i % inner;
        quad_packed((const uint8_t *)w + own * w_outer + other * w_inner, k, n, w_row, w_column, flags & 2 ? 0 : 128, room);
        quad_conv((const uint8_t *)x + own * x_outer + other * x_inner, room, x_zero, w_zero, x_scale, m_scale, b, scale, zero, r, mid_scale,
                  mid_zero, mid_factor, r_scale, r_zero, (uint8_t *)y + i * m * n * element, (uint8_t *)room + size, 1, 1, m, k, 0, x_column, 0,
                  x_row, 1, m, n, 1, 1, 1, 1, 1, 1, 1, 0, 0, kind, flags, low, high, least, most);
    }
}
"""
