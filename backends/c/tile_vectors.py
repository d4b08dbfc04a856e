"""Holds C text that the kernels of tiled_products.py, windows.py, depthwise.py, winograd.py and recurrent_text.py
share: loads and stores of vectors of floats (of all lanes, or of the first ones only), and activation functions on
vectors."""

from __future__ import annotations

_CONTRACT = """#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
"""
_END = """#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC pop_options
#endif
"""


def contracted(text: str) -> str:
    """C text in which the compiler may compute a product and a sum as one multiply-add."""
    return _CONTRACT + text + _END


VECTORS = """#if defined(__AVX512F__)
#define TILE_LANES 16
#define TILE_PANELS 4
#elif defined(__AVX__)
#define TILE_LANES 8
#define TILE_PANELS 1
#else
#define TILE_LANES 4
#define TILE_PANELS 1
#endif
#define TILE_ROWS 6
#ifndef TILE_CACHE
#define TILE_CACHE (1 << 18) /* bytes of weights that stay in the second cache beside inputs and results */
#endif
#define TILE_PARTS (16 / TILE_LANES)
typedef float tile_vec __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));
typedef int32_t tile_int __attribute__((vector_size(4 * TILE_LANES)));
#define TILE_SPLAT(x) ((x) - (tile_vec){0})
#if defined(__clang__)
#define TILE_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLLED _Pragma("GCC unroll 49")
#endif
#if defined(__AVX__) && !defined(__AVX512F__)
static const int32_t tile_masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
#endif
/* `count` floats (at least one), or TILE_LANES if there are more; lanes behind them are 0. */
static inline __attribute__((always_inline)) tile_vec tile_loaded(const float *p, int count)
{
    if (count >= TILE_LANES) return *(const tile_vec *)p;
#if defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_loadups512_mask(p, (tile_vec){0}, (uint16_t)((1u << count) - 1));
#elif defined(__AVX__) && !defined(__AVX512F__)
    typedef float whole __attribute__((vector_size(32)));
    tile_int mask;
    __builtin_memcpy(&mask, tile_masks + 8 - count, 32);
    return (tile_vec)__builtin_ia32_maskloadps256((const whole *)p, mask);
#else
    tile_vec v = {0};
    __builtin_memcpy(&v, p, sizeof(float) * (unsigned long)count);
    return v;
#endif
}
#if !defined(__AVX512F__) || defined(__clang__)
/* Fewer than TILE_LANES floats, in halves: a call of memcpy takes longer than a tile. */
static __attribute__((noinline)) void tile_part(float *p, tile_vec v, int count)
{
    float part[TILE_LANES];
    const float *from = part;
    __builtin_memcpy(part, &v, sizeof v);
#if TILE_LANES > 8
    if (count & 8) { __builtin_memcpy(p, from, 32); p += 8; from += 8; }
#endif
#if TILE_LANES > 4
    if (count & 4) { __builtin_memcpy(p, from, 16); p += 4; from += 4; }
#endif
    if (count & 2) { __builtin_memcpy(p, from, 8); p += 2; from += 2; }
    if (count & 1) *p = *from;
}
#endif
static inline __attribute__((always_inline)) void tile_written(float *p, tile_vec v, int count)
{
    if (count >= TILE_LANES) *(tile_vec *)p = v;
#if defined(__AVX512F__) && !defined(__clang__)
    else __builtin_ia32_storeups512_mask(p, v, (uint16_t)((1u << count) - 1));
#else
    else tile_part(p, v, count);
#endif
}
/* What follows a convolution: 0 nothing, 1 relu, 2 clip between numbers (given by their bits), 3 hard_swish, 4 silu, 5 gelu,
   6 gelu by tanh. */
typedef struct { int act; float low, high; } tile_act;
static inline tile_act tile_act_of(int act, int low, int high)
{
    if (act == 2) return (tile_act){act, of_bits((uint32_t)low), of_bits((uint32_t)high)};
    return (tile_act){act, act == 1 ? 0.0f : -__builtin_inff(), __builtin_inff()};
}
static inline tile_vec tile_chosen(tile_int mask, tile_vec yes, tile_vec no)
{
    return (tile_vec)((mask & (tile_int)yes) | (~mask & (tile_int)no));
}
static inline __attribute__((always_inline)) tile_vec tile_clipped(tile_vec v, tile_vec low, tile_vec high) /* NaN stays */
{
#if defined(__AVX512F__) && !defined(__clang__)
    v = __builtin_ia32_maxps512_mask(low, v, (tile_vec){0}, (uint16_t)-1, 4); /* of a NaN, and of two zeros, the second */
    return __builtin_ia32_minps512_mask(high, v, (tile_vec){0}, (uint16_t)-1, 4);
#elif defined(__AVX__) && !defined(__clang__)
    return __builtin_ia32_minps256(high, __builtin_ia32_maxps256(low, v));
#else
    v = tile_chosen(v < low, low, v);
    return tile_chosen(v > high, high, v);
#endif
}
/* Write `count` channels of a pixel: v, a residual (0: none), and limits. */
static inline __attribute__((always_inline)) void tile_stored(tile_vec v, const float *r, float *y, int count, tile_act a)
{
    if (r) v += tile_loaded(r, count);
    tile_written(y, tile_clipped(v, TILE_SPLAT(a.low), TILE_SPLAT(a.high)), count);
}
""" + contracted("""/* 1 / x for x in [1, 2**127]; NaN stays. Error: 1.1 units in the last place. Zen 5 divides faster than it approximates. */
static inline __attribute__((always_inline)) tile_vec tile_inverse(tile_vec x)
{
#if defined(__AVX512F__) && !defined(__clang__) && !defined(__znver5__) && !(defined(__znver3__) && defined(__AVX512VP2INTERSECT__))
    const tile_vec r = __builtin_ia32_rcp14ps512_mask(x, (tile_vec){0}, (uint16_t)-1);
    return r + r * (1.0f - x * r);
#else
    return 1.0f / x;
#endif
}
/* exp(x) for x in [-87, 88], beyond as at the nearer end; NaN stays. Error: 1.1 units in the last place. */
static inline __attribute__((always_inline)) tile_vec tile_exp(tile_vec x)
{
    x = tile_clipped(x, TILE_SPLAT(-87.0f), TILE_SPLAT(88.0f));
    const tile_vec shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const tile_vec r = x - n * 0.693145752f - n * 1.42860677e-6f;
    tile_vec p = r * 1.395171466e-03f + 8.369598665e-03f;
    p = p * r + 4.166618732e-02f;
    p = p * r + 1.666651289e-01f;
    p = p * r + 5.000000101e-01f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_scalefps512_mask(p, n, (tile_vec){0}, (uint16_t)-1, 4);
#else
    const tile_int power = ((tile_int)shifted - (0x4b400000 - 127)) << 23;
    return p * (tile_vec)power;
#endif
}
static inline __attribute__((always_inline)) tile_vec tile_sigmoid(tile_vec x) { return tile_inverse(1.0f + tile_exp(-x)); }
static inline __attribute__((always_inline)) tile_vec tile_tanh(tile_vec x)
{
    const tile_int sign = (tile_int)x & (tile_int)TILE_SPLAT(-0.0f);
    const tile_vec size = (tile_vec)((tile_int)x ^ sign), z = x * x;
    tile_vec p = z * -5.717025823e-03f + 2.065056849e-02f;
    p = p * z - 5.374349168e-02f;
    p = p * z + 1.333149120e-01f;
    p = p * z - 3.333328392e-01f;
    const tile_vec near = p * z * size + size, far = 1.0f - 2.0f * tile_inverse(tile_exp(2.0f * size) + 1.0f);
    return (tile_vec)((tile_int)tile_chosen(size < TILE_SPLAT(0.625f), near, far) | sign);
}
/* The activation of a vector, if it is more than limits. */
static inline __attribute__((always_inline)) tile_vec tile_curve(int act, tile_vec v)
{
    if (act == 3) return v * tile_clipped(v * (1.0f / 6.0f) + 0.5f, TILE_SPLAT(0.0f), TILE_SPLAT(1.0f));
    if (act == 4) return v * tile_sigmoid(v);
    return 0.5f * v * (1.0f + tile_tanh(0.797884561f * (v + 0.044715f * v * v * v)));
}
/* The activations that are more than limits, of `lines` lines of `count` floats plus bias, `apart` floats from one to the next;
   behind them a residual is added. Bias and residual are none if 0; results may take the residual's place. */
static __attribute__((noinline)) void tile_curved(const float *from, int64_t apart, const float *bias, const float *r, float *y,
                                                  int64_t line, int lines, int64_t count, tile_act a)
{
#define TILE_CURVE(act) \\
    for (int row = 0; row < lines; row++, from += apart, y += line) { \\
        for (int64_t i = 0; i < count; i += TILE_LANES) { \\
            const int some = count - i < TILE_LANES ? (int)(count - i) : TILE_LANES; \\
            tile_vec v = tile_loaded(from + i, some); \\
            if (bias) v += tile_loaded(bias + i, some); \\
            v = tile_curve(act, v); \\
            if (r) v += tile_loaded(r + i, some); \\
            tile_written(y + i, v, some); \\
        } \\
        if (r) r += line; \\
    }
    if (a.act == 3) TILE_CURVE(3)
    else if (a.act == 4) TILE_CURVE(4)
    else if (a.act == 6) TILE_CURVE(6)
    else
        for (int row = 0; row < lines; row++, from += apart, y += line) {
            #pragma omp simd
            for (int64_t i = 0; i < count; i++) {
                const float v = bias ? from[i] + bias[i] : from[i];
                y[i] = 0.5f * v * (1.0f + erf_f(v * 0.707106781f));
            }
        }
}
static inline void tile_activated(float *y, int64_t count, tile_act a) { tile_curved(y, 0, 0, 0, y, 0, 1, count, a); }
""")

__all__ = ["VECTORS", "contracted"]
