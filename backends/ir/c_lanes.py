"""C source of helper functions for kernels that work on vectors of 16 numbers: loads, conversions, sums."""

from __future__ import annotations

LANES = """/* 16 numbers side by side. */
#ifdef __AVX2__
#include <immintrin.h>
#endif
typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
static inline floats lanes(float x) { return x - (floats){0}; }
static inline floats lanes_f32(const float *p) { floats r; __builtin_memcpy(&r, p, 64); return r; }
static inline floats lanes_float(ints x) { return __builtin_convertvector(x, floats); }
static inline floats lanes_where(ints c, floats x, floats y) { return (floats)((c & (ints)x) | (~c & (ints)y)); }
static inline floats lanes_from_float8(ints i)
{
    floats x = (floats)(((i & 127) << 20) + 0x3c000000); /* of exponents above 0; arithmetic with denormals is slow */
    x = lanes_where((i & 120) == 0, x + x - 0x1p-6f, x);
    return (floats)((ints)x | (i & 128) << 24 | (((i & 127) == 127) & 0x7fc00000));
}
#if defined(__AVX512F__)
static inline ints lanes_u8(const uint8_t *p) { return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline ints lanes_i8(const int8_t *p) { return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline floats lanes_bf16(const uint16_t *p)
{
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
static inline floats lanes_f16(const _Float16 *p) { return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline floats lanes_fma(floats x, floats y, floats z) { return (floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z); }
static inline float lanes_sum(floats x) { return _mm512_reduce_add_ps((__m512)x); }
#else
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
static inline ints lanes_u8(const uint8_t *p)
{
    __m256i r[2];
    for (int i = 0; i < 2; i++) r[i] = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * i)));
    ints x; __builtin_memcpy(&x, r, 64); return x;
}
static inline ints lanes_i8(const int8_t *p)
{
    __m256i r[2];
    for (int i = 0; i < 2; i++) r[i] = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * i)));
    ints x; __builtin_memcpy(&x, r, 64); return x;
}
static inline floats lanes_bf16(const uint16_t *p)
{
    __m256i r[2];
    for (int i = 0; i < 2; i++) r[i] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8 * i))), 16);
    floats x; __builtin_memcpy(&x, r, 64); return x;
}
static inline floats lanes_f16(const _Float16 *p)
{
    __m256 r[2];
    for (int i = 0; i < 2; i++) r[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8 * i)));
    floats x; __builtin_memcpy(&x, r, 64); return x;
}
static inline floats lanes_fma(floats x, floats y, floats z)
{
    __m256 a[2], b[2], c[2];
    __builtin_memcpy(a, &x, 64); __builtin_memcpy(b, &y, 64); __builtin_memcpy(c, &z, 64);
    for (int i = 0; i < 2; i++) c[i] = _mm256_fmadd_ps(a[i], b[i], c[i]);
    __builtin_memcpy(&z, c, 64); return z;
}
#else
static inline ints lanes_u8(const uint8_t *p) { ints r; for (int i = 0; i < 16; i++) r[i] = p[i]; return r; }
static inline ints lanes_i8(const int8_t *p) { ints r; for (int i = 0; i < 16; i++) r[i] = p[i]; return r; }
static inline floats lanes_bf16(const uint16_t *p) { ints r; for (int i = 0; i < 16; i++) r[i] = (int32_t)((uint32_t)p[i] << 16); return (floats)r; }
static inline floats lanes_f16(const _Float16 *p) { floats r; for (int i = 0; i < 16; i++) r[i] = (float)p[i]; return r; }
static inline floats lanes_fma(floats x, floats y, floats z) { return x * y + z; }
#endif
static inline float lanes_sum(floats x)
{
    for (int n = 8; n; n /= 2) for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}
#endif"""

__all__ = ["LANES"]
