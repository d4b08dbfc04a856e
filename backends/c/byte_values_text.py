"""Holds the C text of kernels on values of bytes: rounding, sums, tables of functions, softmax and layer norm."""

from __future__ import annotations

LONGEST_ROW = 8192  # elements of a row of softmax and layer norm, which is on the stack as floats

_HEAD = """#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif
/* Values of bytes: scale * (byte - zero). Flags: 1 x has a sign, 2 the second value r has one, 4 results have one; 8 x is float,
   16 results are. Bytes with sign are read and written as value + 128. */
typedef struct { float scale, zero; uint8_t flip; } byte_kind;
static inline byte_kind byte_kind_of(const float *scale, const uint8_t *zero, int sign)
{
    const uint8_t flip = sign ? 128 : 0;
    return (byte_kind){*scale, (float)(*zero ^ flip), flip};
}
static inline __attribute__((always_inline)) float byte_value(uint8_t x, byte_kind k)
{
    return ((float)(x ^ k.flip) - k.zero) * k.scale;
}
/* Rounded to even; NaN becomes the smallest byte. */
static inline __attribute__((always_inline)) uint8_t byte_of(float v, byte_kind k)
{
    v = __builtin_rintf(v / k.scale) + k.zero;
    v = v > 0.0f ? v : 0.0f;
    v = v < 255.0f ? v : 255.0f;
    return (uint8_t)(int32_t)v ^ k.flip;
}
"""

_FLAT = """/* Floats to bytes, or bytes to floats. */
void bytes_flat(const void *x, const float *a, const uint8_t *z, const float *s, const uint8_t *o, void *y, int count, int flags)
{
    if (flags & 8) {
        const byte_kind to = byte_kind_of(s, o, flags & 4);
        const float *restrict const from = x;
        uint8_t *restrict const out = y;
        #pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < count; i++) out[i] = byte_of(from[i], to);
    } else {
        const byte_kind own = byte_kind_of(a, z, flags & 1);
        const uint8_t *restrict const from = x;
        float *restrict const out = y;
        #pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < count; i++) out[i] = byte_value(from[i], own);
    }
}
"""

_TO_LAST = """/* n row-major images of floats, of c channels and s pixels, to channels-last images of bytes. */
void bytes_to_last(const float *restrict x, const float *s_, const uint8_t *o, uint8_t *restrict y, int n, int c, int s, int flags)
{
    const byte_kind to = byte_kind_of(s_, o, flags & 4);
    const int64_t blocks = (s + 63) / 64;
    #pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < n * blocks; part++) {
        const int begin = (int)(part % blocks) * 64, pixels = s - begin < 64 ? s - begin : 64;
        for (int first = 0; first < c; first += 32) {
            const int there = c - first < 32 ? c - first : 32;
            const float *const from = x + (part / blocks * c + first) * s + begin;
            uint8_t *const out = y + (part / blocks * s + begin) * (int64_t)c + first;
            uint8_t rows[32][64];
            for (int k = 0; k < there; k++)
                for (int i = 0; i < pixels; i++) rows[k][i] = byte_of(from[(int64_t)k * s + i], to);
            if (c == 3)
                for (int i = 0; i < pixels; i++) out[3 * i] = rows[0][i], out[3 * i + 1] = rows[1][i], out[3 * i + 2] = rows[2][i];
            else
                for (int i = 0; i < pixels; i++)
                    for (int k = 0; k < there; k++) out[(int64_t)i * c + k] = rows[k][i];
        }
    }
}
"""

_TWO = """/* Sum or product of two values. */
void bytes_two(const uint8_t *restrict x, const float *a, const uint8_t *z, const uint8_t *restrict r, const float *u, const uint8_t *v,
               const float *s, const uint8_t *o, uint8_t *restrict y, int count, int times, int flags)
{
    const byte_kind own = byte_kind_of(a, z, flags & 1), other = byte_kind_of(u, v, flags & 2), to = byte_kind_of(s, o, flags & 4);
    if (times) {
        #pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < count; i++) y[i] = byte_of(byte_value(x[i], own) * byte_value(r[i], other), to);
    } else {
        #pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < count; i++) y[i] = byte_of(byte_value(x[i], own) + byte_value(r[i], other), to);
    }
}
"""

_LINE = """/* Sum or product of each row with a line of floats. */
void bytes_line(const uint8_t *restrict x, const float *a, const uint8_t *z, const float *restrict b, const float *s, const uint8_t *o,
                uint8_t *restrict y, int rows, int n, int times, int flags)
{
    const byte_kind own = byte_kind_of(a, z, flags & 1), to = byte_kind_of(s, o, flags & 4);
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *restrict const from = x + row * n;
        uint8_t *restrict const out = y + row * n;
        if (times)
            for (int i = 0; i < n; i++) out[i] = byte_of(byte_value(from[i], own) * b[i], to);
        else
            for (int i = 0; i < n; i++) out[i] = byte_of(byte_value(from[i], own) + b[i], to);
    }
}
"""

_MAPPED = """/* A function of each byte, by a table. function: 0 none, 1 product with *m, 2 relu, 3 clip to numbers of these bits, 4 gelu,
   5 gelu by tanh, 6 silu, 7 sigmoid, 8 tanh, 9 hard_swish. */
void bytes_mapped(const uint8_t *restrict x, const float *a, const uint8_t *z, const float *m, const float *s, const uint8_t *o,
                  uint8_t *restrict y, int count, int function, int low, int high, int flags)
{
    const byte_kind own = byte_kind_of(a, z, flags & 1), to = byte_kind_of(s, o, flags & 4);
    const float least = of_bits((uint32_t)low), most = of_bits((uint32_t)high), factor = function == 1 ? *m : 1.0f;
    uint8_t table[256];
#define BYTES_MAPPED(value) \\
    for (int i = 0; i < 256; i++) { \\
        const float v = byte_value((uint8_t)i, own); \\
        table[i] = byte_of(value, to); \\
    }
    if (function == 1) BYTES_MAPPED(v * factor)
    else if (function == 2) BYTES_MAPPED(v < 0.0f ? 0.0f : v)
    else if (function == 3) BYTES_MAPPED(v < least ? least : v > most ? most : v)
    else if (function == 4) BYTES_MAPPED(v * 0.5f * (1.0f + erf_f(v * 0.70710678118654752f)))
    else if (function == 5) BYTES_MAPPED(v * 0.5f * (1.0f + tanh_f(0.79788456080286536f * (v + 0.044715f * v * v * v))))
    else if (function == 6) BYTES_MAPPED(v / (1.0f + exp_f(-v)))
    else if (function == 7) BYTES_MAPPED(1.0f / (1.0f + exp_f(-v)))
    else if (function == 8) BYTES_MAPPED(tanh_f(v))
    else if (function == 9) BYTES_MAPPED(v * (v + 3.0f < 0.0f ? 0.0f : v + 3.0f > 6.0f ? 6.0f : v + 3.0f) / 6.0f)
    else BYTES_MAPPED(v)
    const int64_t blocks = (count + 4095) / 4096;
    #pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t i = block * 4096;
        const int64_t end = i + 4096 < count ? i + 4096 : count;
#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
        __m512i t[4];
        for (int k = 0; k < 4; k++) t[k] = _mm512_loadu_si512(table + 64 * k);
        for (; i + 64 <= end; i += 64) {
            const __m512i at = _mm512_loadu_si512(x + i);
            const __m512i below = _mm512_permutex2var_epi8(t[0], at, t[1]), above = _mm512_permutex2var_epi8(t[2], at, t[3]);
            _mm512_storeu_si512(y + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), below, above));
        }
#endif
        for (; i < end; i++) y[i] = table[x[i]];
    }
}
"""

_SOFTMAX = """/* Softmax of each row. */
void bytes_softmax(const uint8_t *restrict x, const float *a, const uint8_t *z, const float *s, const uint8_t *o, uint8_t *restrict y,
                   int rows, int n, int flags)
{
    const byte_kind own = byte_kind_of(a, z, flags & 1), to = byte_kind_of(s, o, flags & 4);
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *restrict const from = x + row * n;
        uint8_t *restrict const out = y + row * n;
        float e[@ROW@], most = -INFINITY, sum = 0.0f;
        #pragma omp simd reduction(max : most)
        for (int i = 0; i < n; i++) {
            e[i] = byte_value(from[i], own);
            most = e[i] > most ? e[i] : most;
        }
        #pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) {
            e[i] = exp_f(e[i] - most);
            sum += e[i];
        }
        const float by = 1.0f / sum;
        for (int i = 0; i < n; i++) out[i] = byte_of(e[i] * by, to);
    }
}
"""

_LAYER_NORM = """/* Layer norm of each row: of bytes or floats, to bytes or floats. */
void bytes_layer_norm(const void *x, const float *a, const uint8_t *z, const float *restrict gain, const float *restrict shift,
                      const float *s, const uint8_t *o, void *y, int rows, int n, int eps, int flags)
{
    const byte_kind none = {0.0f, 0.0f, 0};
    const byte_kind own = flags & 8 ? none : byte_kind_of(a, z, flags & 1), to = flags & 16 ? none : byte_kind_of(s, o, flags & 4);
    const float epsilon = of_bits((uint32_t)eps);
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float v[@ROW@], sum = 0.0f, squares = 0.0f;
        if (flags & 8) {
            __builtin_memcpy(v, (const float *)x + row * n, sizeof(float) * (unsigned long)n);
            #pragma omp simd reduction(+ : sum)
            for (int i = 0; i < n; i++) sum += v[i];
        } else {
            const uint8_t *restrict const from = (const uint8_t *)x + row * n;
            #pragma omp simd reduction(+ : sum)
            for (int i = 0; i < n; i++) {
                v[i] = byte_value(from[i], own);
                sum += v[i];
            }
        }
        const float mean = sum / (float)n;
        #pragma omp simd reduction(+ : squares)
        for (int i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
        const float by = 1.0f / __builtin_sqrtf(squares / (float)n + epsilon);
        if (flags & 16) {
            float *restrict const out = (float *)y + row * n;
            for (int i = 0; i < n; i++) out[i] = (v[i] - mean) * by * gain[i] + shift[i];
        } else {
            uint8_t *restrict const out = (uint8_t *)y + row * n;
            for (int i = 0; i < n; i++) out[i] = byte_of((v[i] - mean) * by * gain[i] + shift[i], to);
        }
    }
}
"""

_RANGE = """/* Scale and zero point of bytes without sign for the values of x and 0. NaN in x: no scale, so that no result is a number. */
void bytes_range(const float *restrict x, float *scale, uint8_t *zero, int count)
{
    float low = 0.0f, high = 0.0f;
    int strange = 0;
    #pragma omp parallel for simd schedule(static) reduction(min : low) reduction(max : high) reduction(| : strange)
    for (int64_t i = 0; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        strange |= x[i] != x[i];
    }
    const float found = (high - low) / 255.0f, by = found == 0.0f ? @LEAST@f : found;
    const float point = __builtin_rintf(-low / by);
    *scale = strange ? NAN : by;
    *zero = (uint8_t)(int)(point > 255.0f ? 255.0f : point > 0.0f ? point : 0.0f);
}
""".replace("@LEAST@", repr(1.0 / 255.0))

BYTE_VALUES = {
    "byte_values": _HEAD,
    "bytes_flat": _FLAT,
    "bytes_range": _RANGE,
    "bytes_to_last": _TO_LAST,
    "bytes_two": _TWO,
    "bytes_line": _LINE,
    "bytes_mapped": _MAPPED,
    "bytes_softmax": _SOFTMAX.replace("@ROW@", str(LONGEST_ROW)),
    "bytes_layer_norm": _LAYER_NORM.replace("@ROW@", str(LONGEST_ROW)),
}
"""C functions and their text, after what they share."""


__all__ = ["BYTE_VALUES", "LONGEST_ROW"]
