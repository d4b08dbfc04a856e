"""Writes the C text of dot products of bytes for processors with AVX2, but without an instruction for them.

The products of two bytes and two others do not fit into 16 bits together. So bytes are widened to numbers of 16 bits,
once for all products of a call: pairs of these have an instruction with a sum in 32 bits. Separating even and odd bytes
in registers instead takes a third more instructions.
"""

from __future__ import annotations

WIDE_PIXELS = 48  # from so many pixels on, bytes are widened

INTEGER_WIDE = """#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define QUAD_WIDE 1
/* 64 bytes of weights a quad to 16 bits: [pair of channels][16][2]. */
static void quad_weights_widened(const int8_t *w, int64_t quads, int16_t *to)
{
    #pragma omp parallel for schedule(static)
    for (int64_t q = 0; q < quads; q++)
        for (int half = 0; half < 2; half++) {
            const __m256i v = _mm256_loadu_si256((const __m256i *)(w + 64 * q) + half);
            const __m256 a = (__m256)_mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)), b = (__m256)_mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1));
            __m256i *const out = (__m256i *)(to + 64 * q) + half;
            _mm256_storeu_si256(out, _mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0x88), 0xd8));
            _mm256_storeu_si256(out + 2, _mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0xdd), 0xd8));
        }
}
static void quad_values_widened(const uint8_t *restrict x, int64_t count, uint16_t *restrict to)
{
    #pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = x[i];
}
/* The same sums as those of QUAD_KERNEL of 6 pixels and a panel, or the first half of one (H is 1), of widened numbers. */
#define QUAD_WIDE_KERNEL(name, H) \\
static __attribute__((noinline)) void name(const uint8_t *const *rows, int taps, int quads, int run, const int8_t *w, \\
    int64_t panel, const quad_end *e, int there, int64_t at, int left, const uint8_t *r, void *y, int64_t to, int64_t line, \\
    int tiles, int64_t step) \\
{ \\
  const int8_t *const begin = w; \\
  (void)run, (void)panel; \\
  for (int64_t tile = 0; tile < tiles; tile++, to += 6 * line) { \\
    quad_half s[6][H]; \\
    w = begin; \\
    QUAD_UNROLLED for (int i = 0; i < 6; i++) QUAD_UNROLLED for (int j = 0; j < H; j++) s[i][j] = quad_half_at(e->start + at, j); \\
    for (int t = 0; t < taps; t++) { \\
        const uint8_t *a[6]; \\
        QUAD_UNROLLED for (int i = 0; i < 6; i++) a[i] = rows[t * QUAD_ROWS + i] + tile * step; \\
        for (int64_t pair = 0; pair < 2 * quads; pair++, w += 64) \\
            QUAD_UNROLLED for (int i = 0; i < 6; i++) { \\
                int32_t two; \\
                __builtin_memcpy(&two, a[i] + 4 * pair, 4); \\
                const quad_half x = _mm256_set1_epi32(two); \\
                QUAD_UNROLLED for (int j = 0; j < H; j++) s[i][j] = _mm256_add_epi32(s[i][j], _mm256_madd_epi16(x, quad_half_at(w, j))); \\
            } \\
    } \\
    quad_half found[6][2]; \\
    QUAD_UNROLLED for (int i = 0; i < 6; i++) QUAD_UNROLLED for (int j = 0; j < 2; j++) found[i][j] = s[i][j < H ? j : 0]; \\
    quad_stored((const quad_int *)found, there < 6 ? there : 6, 1, left, e, at, r, y, to, line); \\
  } \\
}
QUAD_WIDE_KERNEL(quad_wide_6, 2)
QUAD_WIDE_KERNEL(quad_wide_half, 1)
#else
#define QUAD_WIDE 0
#endif
"""

__all__ = ["INTEGER_WIDE", "WIDE_PIXELS"]
