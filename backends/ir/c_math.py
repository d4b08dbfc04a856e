"""Holds elementary float32 functions in C that compilers vectorize (no branches, tables or calls), and integer
division.

Polynomials are least-squares fits weighted towards minimal maximum relative error (Lawson's method) on a reduced range:
exp on |r| <= ln(2) / 2 after Cody-Waite reduction, log on a mantissa in [1/sqrt(2), sqrt(2)), tanh near 0 as x * P(x *
x), erf up to 3.92 (beyond, it rounds to 1) in the same form over a shifted x * x. Errors against float64, over all of
float32, are at most `ULPS` units in the last place. NaN, infinities, signed zeros and denormal results follow IEEE. In
float64 the C library's functions are called. Quotients of int64 are rounded down, as NumPy's are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .c_attention import FEW_ROW_SCORES, FEW_ROW_VALUES
from .c_dots import DOTS
from .c_lane_math import LANES_EXP, LANES_MAX, LANES_MIN, LANES_POWER, LANES_TANH
from .c_lanes import LANES

#: Maximum error in units in the last place of the float32 result.
ULPS = {"exp": 1.1, "exp2": 1.0, "tanh": 1.4, "erf": 4.5, "log": 0.9, "log1p": 2.5, "expm1": 3.7}


def _horner(variable: str, coefficients: str) -> str:
    """C statements that evaluate a polynomial into p by Horner's scheme; coefficients from the highest power down."""
    first, *rest = coefficients.split()
    steps = [f"p = FMA(p, {variable}, {c}f);" for c in rest]
    rows = [" ".join(steps[i : i + 3]) for i in range(0, len(steps), 3)]
    return "\n    ".join([f"float p = {first}f;", *rows])


HEAD = """#include <math.h>
#include <stdint.h>

#ifdef __FP_FAST_FMAF
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
"""

#: Function name -> C definition. Definitions may call earlier ones.
DEFINITIONS: dict[str, str] = {
    "of_bits": "static inline float of_bits(uint32_t i) { float f; __builtin_memcpy(&f, &i, 4); return f; }",
    "bits_of": "static inline uint32_t bits_of(float f) { uint32_t i; __builtin_memcpy(&i, &f, 4); return i; }",
    "widened": "static inline float widened(uint16_t half) { return of_bits((uint32_t)half << 16); }",
    "narrowed": """/* To bfloat16: nearest, ties to even. */
static inline uint16_t narrowed(float x)
{
    uint32_t i = bits_of(x), rounded = (i + 0x7fff + (i >> 16 & 1)) >> 16;
    return x != x ? 0x7fc0 : rounded;
}""",
    "floor_div": """/* Rounded down; 0 for a divisor of 0; the smallest number by -1 wraps. */
static inline int64_t floor_div(int64_t x, int64_t y)
{
    if (y == 0 || y == -1) return y ? (int64_t)(0 - (uint64_t)x) : 0;
    return x / y - (x % y != 0 && (x % y ^ y) < 0);
}""",
    "floor_mod": """/* x - y * floor_div(x, y); 0 for a divisor of 0. */
static inline int64_t floor_mod(int64_t x, int64_t y)
{
    if (y == 0 || y == -1) return 0;
    int64_t rest = x % y;
    return rest != 0 && (rest ^ y) < 0 ? rest + y : rest;
}""",
    "from_float8": """/* The value of an 8-bit float e4m3fn. */
static inline float from_float8(uint32_t i)
{
    float x = of_bits(((i & 127) << 20) + 0x3c000000); /* of exponents above 0; arithmetic with denormals is slow */
    x = (i & 120) == 0 ? x + x - 0x1p-6f : x;
    return of_bits(bits_of(x) | (i & 128) << 24 | ((i & 127) == 127 ? 0x7fc00000 : 0));
}""",
    "lanes": LANES,
    "lanes_power": LANES_POWER,
    "lanes_exp": LANES_EXP,
    "lanes_tanh": LANES_TANH,
    "lanes_max": LANES_MAX,
    "lanes_min": LANES_MIN,
    "dots_split": DOTS,
    "few_row_scores": FEW_ROW_SCORES,
    "few_row_values": FEW_ROW_VALUES,
    "scaled": """/* x * 2**n, in two steps: results may be denormal. */
static inline float scaled(float x, int32_t n)
{
    int32_t half = n >> 1;
    return x * of_bits((uint32_t)(half + 127) << 23) * of_bits((uint32_t)(n - half + 127) << 23);
}""",
    "exp_f": f"""static inline float exp_f(float x)
{{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = FMA(x, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
    float r = FMA(n, -1.42860677e-6f, FMA(n, -0.693145752f, x));
    {_horner("r", "1.395171466e-03 8.369598665e-03 4.166618732e-02 1.666651289e-01 5.000000101e-01")}
    return scaled(FMA(p * r, r, r) + 1.0f, (int32_t)(bits_of(shifted) - bits_of(12582912.0f)));
}}""",
    "exp2_f": f"""static inline float exp2_f(float x)
{{
    x = x > 129.0f ? 129.0f : x;
    x = x < -151.0f ? -151.0f : x;
    float shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
    {_horner("r", "1.547656074e-04 1.340165403e-03 9.618003445e-03 5.550324264e-02 2.402265134e-01 6.931472080e-01")}
    return scaled(FMA(p, r, 1.0f), (int32_t)(bits_of(shifted) - bits_of(12582912.0f)));
}}""",
    "expm1_f": f"""static inline float expm1_f(float x)
{{
    {_horner("x", "1.395098731e-03 8.369208642e-03 4.166621904e-02 1.666652271e-01 5.000000078e-01")}
    return __builtin_copysignf(__builtin_fabsf(x) < 0.36f ? FMA(p * x, x, x) : exp_f(x) - 1.0f, x);
}}""",
    "tanh_f": f"""static inline float tanh_f(float x)
{{
    float z = x * x, size = __builtin_fabsf(x);
    {_horner("z", "-5.717025823e-03 2.065056849e-02 -5.374349168e-02 1.333149120e-01 -3.333328392e-01")}
    return __builtin_copysignf(size < 0.625f ? FMA(p * z, size, size) : 1.0f - 2.0f / (exp_f(2.0f * size) + 1.0f), x);
}}""",
    "erf_f": f"""static inline float erf_f(float x)
{{
    float z = FMA(x * x, 0.1301541f, -1.0f);
    {_horner("z", "-8.439246234e-04 2.098755710e-03 -1.394548579e-03 1.919981060e-03 -7.660516278e-03 1.420993878e-02 -1.999503510e-02 2.969757509e-02 -4.343686006e-02 5.839599349e-02 -7.401981794e-02 9.059697230e-02 -1.091792251e-01 1.340845550e-01 -1.801086282e-01 3.607368113e-01")}
    return __builtin_fabsf(x) > 3.92f ? __builtin_copysignf(1.0f, x) : p * x;
}}""",
    "log_f": f"""static inline float log_f(float x)
{{
    float up = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int32_t i = (int32_t)bits_of(up) - 0x3f3504f3;
    float e = (float)(i >> 23) - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float m = of_bits((uint32_t)((i & 0x7fffff) + 0x3f3504f3)) - 1.0f, z = m * m;
    {_horner("m", "-7.634344286e-02 1.276151598e-01 -1.316021128e-01 1.420176822e-01 -1.662335537e-01 2.000122640e-01 -2.500082108e-01 3.333333171e-01")}
    float y = FMA(e, 0.693145752f, FMA(z, -0.5f, FMA(p * z, m, e * 1.42860677e-6f)) + m);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x;
}}""",
    "log1p_f": f"""static inline float log1p_f(float x)
{{
    {_horner("x", "-9.591171912e-02 1.270869140e-01 -1.267631116e-01 1.419259192e-01 -1.665677895e-01 2.000217167e-01 -2.500017463e-01 3.333331708e-01 -4.999999929e-01")}
    return x > -0.25f && x < 0.3f ? FMA(p * x, x, x) : log_f(1.0f + x);
}}""",
}  # fmt: skip


def needed(text: str) -> Iterator[str]:
    """Yields the C definitions of those elementary functions that `text` calls, directly or through others, each after
    the functions that it calls."""
    called = _called([text])
    return (definition for name, definition in DEFINITIONS.items() if name in called)


def _called(texts: Iterable[str]) -> set[str]:
    found: set[str] = set()
    todo = list(texts)
    while todo:
        fresh = {name for name in re.findall(r"\b([a-z_0-9]+)\(", todo.pop()) if name in DEFINITIONS} - found
        found |= fresh
        todo += [DEFINITIONS[name] for name in fresh]
    return found


__all__ = ["DEFINITIONS", "HEAD", "ULPS", "needed"]
