"""Holds elementary float32 functions in C over vectors of 16 numbers: those of c_math.py with the instructions of
AVX-512 for limits and powers of two, which compilers do not choose by themselves.

Results are those of the scalar functions in c_math.py, bit by bit, where both use multiply-adds.
"""

from __future__ import annotations

LANES_POWER = """/* exp(x) without limits on x. */
static inline __attribute__((always_inline)) floats lanes_power(floats x)
{
    const floats shifted = lanes_fma(x, lanes(1.44269504f), lanes(12582912.0f)), n = shifted - 12582912.0f;
    const floats r = lanes_fma(n, lanes(-1.42860677e-6f), lanes_fma(n, lanes(-0.693145752f), x));
    floats p = lanes(1.395171466e-03f);
    p = lanes_fma(p, r, lanes(8.369598665e-03f));
    p = lanes_fma(p, r, lanes(4.166618732e-02f));
    p = lanes_fma(p, r, lanes(1.666651289e-01f));
    p = lanes_fma(p, r, lanes(5.000000101e-01f));
    p = lanes_fma(p * r, r, r) + 1.0f;
#if defined(__AVX512F__)
    return (floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const ints whole = (ints)shifted - 0x4b400000, half = whole >> 1; /* two steps: results may be denormal */
    return p * (floats)((half + 127) << 23) * (floats)((whole - half + 127) << 23);
#endif
}
/* Limits of x; NaN stays. */
static inline __attribute__((always_inline)) floats lanes_most(floats x, float most)
{
#if defined(__AVX512F__)
    return (floats)_mm512_min_ps((__m512)lanes(most), (__m512)x); /* of a NaN, the second */
#else
    return lanes_where(x > most, lanes(most), x);
#endif
}
static inline __attribute__((always_inline)) floats lanes_least(floats x, float least)
{
#if defined(__AVX512F__)
    return (floats)_mm512_max_ps((__m512)lanes(least), (__m512)x);
#else
    return lanes_where(x < least, lanes(least), x);
#endif
}"""

LANES_EXP = """static inline __attribute__((always_inline)) floats lanes_exp(floats x)
{
    return lanes_power(lanes_least(lanes_most(x, 89.0f), -104.0f));
}"""

LANES_TANH = """static inline __attribute__((always_inline)) floats lanes_tanh(floats x)
{
    const ints sign = (ints)x & (int32_t)0x80000000;
    const floats z = x * x, size = (floats)((ints)x ^ sign);
    floats p = lanes(-5.717025823e-03f);
    p = lanes_fma(p, z, lanes(2.065056849e-02f));
    p = lanes_fma(p, z, lanes(-5.374349168e-02f));
    p = lanes_fma(p, z, lanes(1.333149120e-01f));
    p = lanes_fma(p, z, lanes(-3.333328392e-01f));
    const floats near = lanes_fma(p * z, size, size);
    const floats far = 1.0f - 2.0f / (lanes_power(lanes_most(2.0f * size, 89.0f)) + 1.0f);
    return (floats)((ints)lanes_where(size < 0.625f, near, far) | sign);
}"""

LANES_MAX = """/* The largest of 16 numbers; NaN if one is NaN. */
static inline float lanes_max(floats x)
{
#if defined(__AVX512F__)
    const __m512 v = (__m512)x;
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) ? NAN : _mm512_reduce_max_ps(v);
#else
    for (int n = 8; n; n /= 2) for (int i = 0; i < n; i++) x[i] = x[i + n] > x[i] || x[i + n] != x[i + n] ? x[i + n] : x[i];
    return x[0];
#endif
}"""
LANES_MIN = "static inline float lanes_min(floats x) { return -lanes_max(-x); }"

__all__ = ["LANES_EXP", "LANES_MAX", "LANES_MIN", "LANES_POWER", "LANES_TANH"]
