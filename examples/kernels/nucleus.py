"""A C kernel: cumulative probabilities of sorted logits, as nucleus (top-p) sampling needs them.

Built-in kernels need two passes over memory, a softmax and a cumulative sum; this one keeps a row in the cache.

    tensor-graphs kernels check examples/kernels/nucleus.py
    python examples/kernels/run_nucleus.py
"""

from math import prod

import tensor_graphs as tg


@tg.kernel(
    "c",
    reference=lambda logits: tg.cumsum(tg.softmax(logits, axis=-1), axis=-1),
    inputs={"logits": "float32[*B, V]"},
    choices={"PARTS": (8, 16)},
)
def nucleus(B: tuple[int, ...], V: int, PARTS: int) -> str:
    """The source for `B` rows of `V` logits, each summed in `PARTS` parts."""
    return f"""
#include <math.h>
#include <string.h>

/* exp(x) for x <= 0: 2^k times a polynomial of degree 6, relative error below 2e-7; NaN stays NaN. */
static inline float fast_exp(float x) {{
    float held = x < -87.0f ? -87.0f : x;
    float k = rintf(held * 1.44269504f), r = held - k * 0.693145752f - k * 1.42860677e-6f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    int bits = ((int)k + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : x != x ? x : p * power;
}}

void nucleus(const float *restrict logits, float *restrict out) {{
#pragma omp parallel for if ({int(prod(B) * V > 100_000)})
    for (long row = 0; row < {prod(B)}; ++row) {{
        const float *x = logits + row * {V};
        float *y = out + row * {V};
        float top = -INFINITY;
#pragma omp simd reduction(max : top)
        for (long i = 0; i < {V}; ++i) top = x[i] > top ? x[i] : top;

        /* {PARTS} parts of a row are summed side by side: a single running sum waits for every addition. */
        double total[{PARTS} + 1] = {{0}};
        for (long part = 0; part <= {PARTS}; ++part) {{
            long begin = part * {V // PARTS}, end = part < {PARTS} ? begin + {V // PARTS} : {V};
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (long i = begin; i < end; ++i) {{
                y[i] = fast_exp(x[i] - top);
                sum += y[i];
            }}
            total[part] = sum;
        }}
        double before = 0.0;
        for (long part = 0; part <= {PARTS}; ++part) {{
            double sum = total[part];
            total[part] = before;
            before += sum;
        }}
        const double scale = 1.0 / before;
        for (long i = 0; i < {V // PARTS}; ++i)
            for (long part = 0; part < {PARTS}; ++part) {{
                total[part] += y[part * {V // PARTS} + i];
                y[part * {V // PARTS} + i] = (float)(total[part] * scale);
            }}
        for (long i = {V // PARTS * PARTS}; i < {V}; ++i) {{
            total[{PARTS}] += y[i];
            y[i] = (float)(total[{PARTS}] * scale);
        }}
    }}
}}
"""
