"""Writes the C text of what follows sums of products of bytes: scaling, limits, residuals, and rounding to bytes.

It stands behind the vectors and the struct `quad_end` of integer_tiles.py.
"""

from __future__ import annotations

from .tile_vectors import contracted

INTEGER_ENDS = contracted("""#ifndef QUAD_MASKS
/* 16 bytes, of which `count` exist. */
static inline __attribute__((always_inline)) quad_bytes quad_loaded(const uint8_t *p, int count)
{
    quad_bytes b = {0};
    if (count >= 16) __builtin_memcpy(&b, p, 16);
    else if (count >= 8) { /* in halves: a call of memcpy takes long */
        uint64_t low, high;
        __builtin_memcpy(&low, p, 8);
        __builtin_memcpy(&high, p + count - 8, 8);
        typedef uint64_t halves __attribute__((vector_size(16)));
        b = (quad_bytes)(halves){low, count == 8 ? 0 : high >> 8 * (16 - count)};
    } else __builtin_memcpy(&b, p, (unsigned long)count);
    return b;
}
#endif
/* The values of 16 bytes without sign, of which `count` exist. */
static inline __attribute__((always_inline)) quad_int quad_widened(const uint8_t *p, int count)
{
#ifdef QUAD_MASKS
    return (quad_int)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((uint16_t)((1u << count) - 1), p));
#else
    return __builtin_convertvector(quad_loaded(p, count), quad_int) & 255;
#endif
}
/* Write 16 bytes, of which `count` exist. */
static inline __attribute__((always_inline)) void quad_written(uint8_t *p, quad_bytes b, int count)
{
#ifdef QUAD_MASKS
    _mm_mask_storeu_epi8(p, (uint16_t)((1u << count) - 1), (__m128i)b);
#else
    if (count >= 16) __builtin_memcpy(p, &b, 16);
    else {
        uint64_t half[2];
        __builtin_memcpy(half, &b, 16);
        if (count & 8) { __builtin_memcpy(p, half, 8); p += 8; half[0] = half[1]; }
        if (count & 4) { __builtin_memcpy(p, half, 4); p += 4; half[0] >>= 32; }
        if (count & 2) { __builtin_memcpy(p, half, 2); p += 2; half[0] >>= 16; }
        if (count & 1) *p = (uint8_t)half[0];
    }
#endif
}
/* The lowest bytes of 16 numbers. */
static inline __attribute__((always_inline)) quad_bytes quad_narrowed(quad_int v)
{
#if defined(__AVX512F__)
    return (quad_bytes)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__) /* compilers narrow them one by one */
    __m256i parts[2];
    __builtin_memcpy(parts, &v, 64);
    for (int i = 0; i < 2; i++) parts[i] = _mm256_and_si256(parts[i], _mm256_set1_epi32(255));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(parts[0], parts[1]), 0xd8);
    return (quad_bytes)_mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#else
    return __builtin_convertvector(v, quad_bytes);
#endif
}
/* The bytes of whole numbers nearest to floats, ties to even, plus the zero point. */
static inline __attribute__((always_inline)) quad_bytes quad_whole(quad_vec v, const quad_end *e)
{
    const quad_int whole = (quad_int)(v + 12582912.0f) - (0x4b400000 - e->zero);
    return quad_narrowed(whole);
}
/* The bytes of the sum of a rounded value and a residual. */
static inline __attribute__((always_inline)) quad_bytes quad_added(quad_vec v, quad_int other, const quad_end *e)
{
    other = (other ^ e->r_flip) - e->r_zero;
    const quad_vec sum = quad_rounded(v) * e->own + __builtin_convertvector(other, quad_vec) * e->other;
    return quad_whole(quad_clipped(sum, e->least, e->most), e);
}
#if defined(__AVX2__) && !defined(__AVX512F__)
/* Write `count` bytes of each of `there` pixels, whose sums are `apart` vectors from one another. Other arguments: as of quad_stored. */
static __attribute__((noinline)) void quad_bytes_stored(const quad_int *sums, int apart, int there, int count, const quad_end *end,
                                                        int64_t at, const uint8_t *r, uint8_t *y, int64_t line)
{
    const quad_end e = *end;
    const __m256 low = _mm256_set1_ps(e.low), high = _mm256_set1_ps(e.high), least = _mm256_set1_ps(e.least), most = _mm256_set1_ps(e.most);
    const __m256 by[2] = {_mm256_loadu_ps(e.by + at), _mm256_loadu_ps(e.by + at + 8)};
    const __m256 plus[2] = {_mm256_loadu_ps(e.plus + at), _mm256_loadu_ps(e.plus + at + 8)};
    for (int i = 0; i < there; i++, sums += apart, y += line) {
        __m256i whole[2], other[2];
        if (r) {
            const __m128i bytes = (__m128i)quad_loaded(r, count);
            other[0] = _mm256_cvtepu8_epi32(bytes), other[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
            for (int j = 0; j < 2; j++)
                other[j] = _mm256_sub_epi32(_mm256_xor_si256(other[j], _mm256_set1_epi32(e.r_flip)), _mm256_set1_epi32(e.r_zero));
            r += line;
        }
        for (int j = 0; j < 2; j++) {
            __m256 v = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)sums + j)) * by[j] + plus[j];
            v = _mm256_min_ps(_mm256_max_ps(v, low), high);
            if (r) {
                v = _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) * e.own + _mm256_cvtepi32_ps(other[j]) * e.other;
                v = _mm256_min_ps(_mm256_max_ps(v, least), most);
            }
            whole[j] = _mm256_and_si256(_mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(e.zero)), _mm256_set1_epi32(255));
        }
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[0], whole[1]), 0xd8);
        quad_written(y, (quad_bytes)_mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)), count);
    }
}
#endif
/* Write `there` pixels of `vectors` vectors of sums, the last of which has `left` channels. at: number of the first channel
   among padded ones; to: number of the first element of results and residual; line: elements from one pixel to the next. */
static __attribute__((noinline)) void quad_stored(const quad_int *sums, int there, int vectors, int left, const quad_end *end, int64_t at,
                                                  const uint8_t *r, void *y, int64_t to, int64_t line)
{
    const quad_end e = *end; /* results may overlap with all else, as far as compilers know */
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (e.kind >= 2) {
        for (int j = 0; j < vectors; j++)
            quad_bytes_stored(sums + j, vectors, there, j < vectors - 1 ? 16 : left, end, at + 16 * j, e.kind == 3 ? r + to + 16 * j : 0,
                              (uint8_t *)y + to + 16 * j, line);
        return;
    }
#endif
#define QUAD_COPIED(kind) \\
    if (count >= 16) __builtin_memcpy((kind *)y + place, &found, 16 * sizeof(kind)); \\
    else __builtin_memcpy((kind *)y + place, &found, sizeof(kind) * (unsigned long)count);
#define QUAD_STORED(vector, value, written) \\
    for (int j = 0; j < vectors; j++, at += 16, to += 16, sums++) { \\
        const quad_vec by = *(const quad_vec *)(e.by + at), plus = *(const quad_vec *)(e.plus + at); \\
        const int count = j < vectors - 1 ? 16 : left; \\
        for (int i = 0; i < there; i++) { \\
            const int64_t place = to + i * line; \\
            const quad_int sum = sums[i * vectors]; \\
            const vector found = value; \\
            written \\
        } \\
    }
#define QUAD_SCALED quad_clipped(__builtin_convertvector(sum, quad_vec) * by + plus, e.low, e.high)
#define QUAD_BYTES quad_written((uint8_t *)y + place, found, count);
    if (e.kind == 0) QUAD_STORED(quad_int, ((void)by, (void)plus, sum), QUAD_COPIED(int32_t))
    else if (e.kind == 1) QUAD_STORED(quad_vec, QUAD_SCALED, QUAD_COPIED(float))
    else if (e.kind == 2) QUAD_STORED(quad_bytes, quad_whole(QUAD_SCALED, &e), QUAD_BYTES)
    else QUAD_STORED(quad_bytes, quad_added(QUAD_SCALED, quad_widened(r + place, count), &e), QUAD_BYTES)
}
""") + contracted("""#ifdef QUAD_MASKS
/* The bytes of a pixel's P vectors of sums, of which the channels `there` are written; by, plus: their factors and summands;
   r: a residual, or 0. Packing leaves four channels of each vector side by side, which a permutation sorts. */
static inline __attribute__((always_inline)) void quad_ended(int P, const quad_int *sums, const quad_end *e, const float *by, const float *plus,
                                                             const uint8_t *r, uint8_t *y, uint64_t there)
{
    __m512i v[4];
    QUAD_UNROLLED for (int j = 0; j < 4; j++) {
        if (j >= P) { v[j] = _mm512_setzero_si512(); continue; }
        quad_vec x = __builtin_convertvector(sums[j], quad_vec) * *(const quad_vec *)(by + 16 * j) + *(const quad_vec *)(plus + 16 * j);
        x = quad_clipped(x, e->low, e->high);
        if (r) {
            quad_int other = (quad_int)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((uint16_t)(there >> 16 * j), r + 16 * j));
            other = (other ^ e->r_flip) - e->r_zero;
            x = quad_clipped(quad_rounded(x) * e->own + __builtin_convertvector(other, quad_vec) * e->other, e->least, e->most);
        }
        v[j] = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), _mm512_set1_epi32(e->zero + e->flip));
    }
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    const __m512i sorted = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
    _mm512_mask_storeu_epi8(y, there, _mm512_xor_si512(sorted, _mm512_set1_epi8((char)e->flip)));
}
#endif
""")

__all__ = ["INTEGER_ENDS"]
