"""Declares library kernels in C for attention of many rows in float32: plain and masked, causal, windowed, with grouped
queries, whose result is row-major or has all heads of a position side by side.

Keys are packed as the transposed panels that the micro-kernel of tiled_products.py reads, values as panels of columns.
Six query rows at a time: scores of all visible positions, their softmax, the product with the values. Heads and rows
are divided over the threads.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

from ...extract.model.kernel import Call, Code, Operand
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import both, extents, filled, heads_fit, usable
from ..library.torch_cuda_attention import heads_inside
from .call_facts import few_elements
from .convolutions import SOURCE
from .emit.attention import ROWS
from .functions import c_function
from .linear_products import known_sizes

MAX_POSITIONS = 8192  # positions whose scores of six rows fit on a thread's stack
WIDEST = 512  # most elements of a head
#: Numbers of a head's keys and values that few rows may have: packing them takes a few microseconds.
FEW_NUMBERS = 1 << 12

ATTENTION = """/* Rows i and columns k of a 16 x 16 block change places. */
static inline __attribute__((always_inline)) void attention_turned(floats *x)
{
#if (defined(__GNUC__) && __GNUC__ >= 12) || defined(__clang__)
#define ATTENTION_PAIRS(i, k, low, high) { \\
        const floats a = x[i], b = x[k]; \\
        x[i] = __builtin_shufflevector(a, b, low); \\
        x[k] = __builtin_shufflevector(a, b, high); \\
    }
    TILE_UNROLLED for (int i = 0; i < 8; i++)
        ATTENTION_PAIRS(i, i + 8, ATTENTION_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                        ATTENTION_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    TILE_UNROLLED for (int j = 0; j < 8; j++)
        ATTENTION_PAIRS(j / 4 * 8 + j % 4, j / 4 * 8 + j % 4 + 4, ATTENTION_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                        ATTENTION_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    TILE_UNROLLED for (int j = 0; j < 8; j++)
        ATTENTION_PAIRS(j / 2 * 4 + j % 2, j / 2 * 4 + j % 2 + 2, ATTENTION_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                        ATTENTION_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    TILE_UNROLLED for (int j = 0; j < 8; j++)
        ATTENTION_PAIRS(2 * j, 2 * j + 1, ATTENTION_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                        ATTENTION_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef ATTENTION_PAIRS
#else
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < i; k++) {
            const float a = x[i][k];
            x[i][k] = x[k][i];
            x[k][i] = a;
        }
#endif
}
/* Keys [s][d] as panels of 16 positions [d][16], with zeros behind the last position. */
static void attention_keys(const float *k, int64_t row, int64_t column, int s, int d, float *to)
{
    for (int begin = 0; begin < s; begin += 16, to += 16 * (int64_t)d) {
        const float *const from = k + begin * row;
        const int there = s - begin < 16 ? s - begin : 16;
        int j = 0;
        for (; column == 1 && j + 16 <= d; j += 16) {
            floats x[16];
            for (int i = 0; i < 16; i++) x[i] = i < there ? lanes_f32(from + i * row + j) : lanes(0.0f);
            attention_turned(x);
            for (int i = 0; i < 16; i++) __builtin_memcpy(to + (int64_t)(j + i) * 16, &x[i], 64);
        }
        for (; j < d; j++)
            for (int i = 0; i < 16; i++) to[(int64_t)j * 16 + i] = i < there ? from[i * row + j * column] : 0.0f;
    }
}
/* Values [s][e] as panels of 16 columns [s][16], with zeros behind the last column. */
static void attention_values(const float *v, int64_t row, int64_t column, int s, int e, float *to)
{
    for (int begin = 0; begin < e; begin += 16, to += 16 * (int64_t)s) {
        const int there = e - begin < 16 ? e - begin : 16;
        for (int i = 0; i < s; i++) {
            const float *const from = v + i * row + begin * column;
            if (there == 16 && column == 1) __builtin_memcpy(to + (int64_t)i * 16, from, 64);
            else for (int j = 0; j < 16; j++) to[(int64_t)i * 16 + j] = j < there ? from[j * column] : 0.0f;
        }
    }
}
/* Exponentials below the maximum of a row of scores, of positions from `low` to before `high`; 0 for those of the whole
   vectors from `begin` to before `end` beside them. Returns their sum. m: what is added to the scaled scores, or 0. */
static inline __attribute__((always_inline)) float attention_softmax(float *x, const float *m, float scale, int begin, int end,
                                                                     int low, int high)
{
    const ints count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats most = lanes(-INFINITY), sums = lanes(0.0f);
    for (int j = begin; j < end; j += 16) {
        floats v = lanes_f32(x + j) * scale;
        if (m && j + 16 <= high) v += lanes_f32(m + j);
        else if (m && j < high) {
            floats some = lanes(0.0f);
            __builtin_memcpy(&some, m + j, sizeof(float) * (unsigned long)(high - j));
            v += some;
        }
        if (j < low || j + 16 > high) v = lanes_where((count + j >= low) & (count + j < high), v, lanes(-INFINITY));
        most = lanes_where(v > most, v, most);
        __builtin_memcpy(x + j, &v, 64);
    }
    float top = -INFINITY;
    for (int i = 0; i < 16; i++) top = most[i] > top ? most[i] : top;
    if (top == -INFINITY) top = 0.0f;
    for (int j = begin; j < end; j += 16) {
        const floats v = lanes_exp(lanes_f32(x + j) - top);
        sums += v;
        __builtin_memcpy(x + j, &v, 64);
    }
    return lanes_sum(sums);
}
/* y = softmax(scale * q k^T + m) v of n0 x n1 x n2 heads, t rows, s positions, heads of d and e elements. Operands have
   strides of the three axes of heads (0: shared), rows and columns. flags: 1 mask m, 2 causal; window: positions that a row
   sees at most, or 0. room: packed keys, then packed values. */
void tiled_attention(const float *q, const float *k, const float *v, const float *m, float *y, float *room,
                     int n0, int n1, int n2, int t, int s, int d, int e, int q0, int q1, int q2, int qr,
                     int k0, int k1, int k2, int kr, int kc, int v0, int v1, int v2, int vr, int vc,
                     int m0, int m1, int m2, int mr, int y0, int y1, int y2, int yr, int scaled_by, int flags, int window)
{
    const float scale = of_bits((uint32_t)scaled_by);
    const int blocks = (s + 15) / 16, columns = (e + 15) / 16, lines = (t + TILE_ROWS - 1) / TILE_ROWS, apart = s - t;
    const int ka = k0 ? n0 : 1, kb = k1 ? n1 : 1, kd = k2 ? n2 : 1, va = v0 ? n0 : 1, vb = v1 ? n1 : 1, vd = v2 ? n2 : 1;
    const int64_t own = 16ll * blocks * d, each = 16ll * columns * s, of_keys = (int64_t)ka * kb * kd, of_values = (int64_t)va * vb * vd;
    float *const keys = room, *const values = room + of_keys * own;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < of_keys + of_values; i++) {
        const int64_t j = i - of_keys;
        if (j < 0) attention_keys(k + i / kd / kb * k0 + i / kd % kb * k1 + i % kd * k2, kr, kc, s, d, keys + i * own);
        else attention_values(v + j / vd / vb * v0 + j / vd % vb * v1 + j % vd * v2, vr, vc, s, e, values + j * each);
    }
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < (int64_t)n0 * n1 * n2 * lines; task++) {
        const int row = (int)(task % lines) * TILE_ROWS, there = t - row < TILE_ROWS ? t - row : TILE_ROWS;
        const int64_t i2 = task / lines % n2, i1 = task / lines / n2 % n1, i0 = task / lines / n2 / n1;
        const float *const from = q + i0 * q0 + i1 * q1 + i2 * q2;
        const float *const own_keys = keys + (((k0 ? i0 : 0) * kb + (k1 ? i1 : 0)) * kd + (k2 ? i2 : 0)) * own;
        const float *const own_values = values + (((v0 ? i0 : 0) * vb + (v1 ? i1 : 0)) * vd + (v2 ? i2 : 0)) * each;
        float *const to = y + i0 * y0 + i1 * y1 + i2 * y2 + (int64_t)row * yr;
        const int seen = flags & 2 && row + there + apart < s ? row + there + apart : s; /* positions, by any row */
        const int first = window && row + apart - window + 1 > 0 ? (row + apart - window + 1) / 16 * 16 : 0;
        const int past = (seen + 15) / 16 * 16, panels = (past - first) / 16, groups = (panels + TILE_PANELS - 1) / TILE_PANELS;
        _Alignas(64) float scores[TILE_ROWS * @MAX_POSITIONS@];
        float sums[TILE_ROWS];
        const float *rows[TILE_ROWS];
        for (int i = 0; i < TILE_ROWS; i++) rows[i] = from + (int64_t)(row + (i < there ? i : there - 1)) * qr;
        for (int group = 0; group < groups; group++) {
            const int begin = group * panels / groups, count = (group + 1) * panels / groups - begin;
            const tile_end end = {0, 0, scores + begin * 16, past - first, 16, there, tile_act_of(0, 0, 0)};
            tile_kernel_of(there, count)(rows, 1, d, own_keys + (first + begin * 16ll) * d, 16ll * d, &end);
        }
        for (int i = 0; i < there; i++) {
            const int at = row + i + apart, high = flags & 2 && at + 1 < s ? at + 1 : s, low = window && at - window + 1 > 0 ? at - window + 1 : 0;
            const float *const mask = flags & 1 ? m + i0 * m0 + i1 * m1 + i2 * m2 + (int64_t)(row + i) * mr + first : 0;
            float *const line = scores + (int64_t)i * (past - first);
            sums[i] = attention_softmax(line, mask, scale, 0, past - first, low - first, high - first);
        }
        for (int i = 0; i < TILE_ROWS; i++) rows[i] = scores + (int64_t)(i < there ? i : there - 1) * (past - first);
        for (int group = 0, some = (columns + TILE_PANELS - 1) / TILE_PANELS; group < some; group++) {
            const int begin = group * columns / some, count = (group + 1) * columns / some - begin;
            const int left = e - (begin + count - 1) * 16 < 16 ? e - (begin + count - 1) * 16 : 16;
            const tile_end end = {0, 0, to + begin * 16, yr, left, there, tile_act_of(0, 0, 0)};
            tile_kernel_of(there, count)(rows, 1, seen - first, own_values + begin * 16ll * s + first * 16ll, 16ll * s, &end);
        }
        for (int i = 0; i < there; i++) {
            const float share = 1.0f / sums[i];
            #pragma omp simd
            for (int j = 0; j < e; j++) to[(int64_t)i * yr + j] *= share;
        }
    }
}
""".replace("@MAX_POSITIONS@", str(MAX_POSITIONS))
ATTENTION = "#define ATTENTION_LIST(...) __VA_ARGS__\n" + ATTENTION

#: (text of attention with an additive mask, its replacement for a mask of bytes, of which 1 hides a score).
_HIDING = (
    ("tiled_attention", "hiding_attention"),
    ("attention_softmax", "hiding_softmax"),
    ("const float *m,", "const unsigned char *m,"),
    ("const float *const mask", "const unsigned char *const mask"),
    ("m: what is added to the scaled scores, or 0.", "m: 1 for scores that do not count, or 0."),
    ("softmax(scale * q k^T + m) v", "softmax(scale * q k^T, -INFINITY where m) v"),
    ("""        if (m && j + 16 <= high) v += lanes_f32(m + j);
        else if (m && j < high) {
            floats some = lanes(0.0f);
            __builtin_memcpy(&some, m + j, sizeof(float) * (unsigned long)(high - j));
            v += some;
        }
""", """        if (m && j < high) {
            hiding_bytes some = {0};
            if (j + 16 <= high) __builtin_memcpy(&some, m + j, 16);
            else __builtin_memcpy(&some, m + j, (unsigned long)(high - j));
            v = lanes_where(-__builtin_convertvector(some, ints), lanes(-INFINITY), v);
        }
"""),
)  # fmt: skip


def _hiding_text() -> str:
    """Text of `hiding_attention`, which needs that of `tiled_attention` before it."""
    text = ATTENTION[ATTENTION.index("/* Exponentials below") :]
    for old, new in _HIDING:
        assert old in text, f"no {old!r} in the text of tiled attention"
        text = text.replace(old, new)
    return "typedef unsigned char hiding_bytes __attribute__((vector_size(16)));\n" + text


HIDING = _hiding_text()

_OPTIONS = "scale=scale, causal=causal, window=window, softcap=softcap"


def _rows(operand: Operand, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the three axes of heads, whose sizes are `sizes` (0 where the operand has one for all), and of
    rows."""
    shape, strides = extents(operand)[:-2], operand.strides[:-2]
    found = [step if size != 1 else 0 for size, step in zip(shape, strides)]
    return (*(0,) * (len(sizes) - len(found)), *found, operand.strides[-2])


def _fits(call: Call) -> bool:
    """Condition on calls: more rows than attention of few rows takes, or few keys and values, which are packed in each
    call; all rows see some position; sizes that fit on the stack; contiguous rows of q and of a mask."""
    a, q, v = call.attrs, call.operands["q"], call.operands["v"]
    (t, d), (s, e) = extents(q)[-2:], extents(v)[-2:]
    plain = not a["softcap"] and q.type.rank in (3, 4, 5) and (not (a["causal"] or a["window"]) or t <= s)
    return (
        plain
        and heads_fit(call)
        and (t > ROWS or s * (d + e) <= FEW_NUMBERS)
        and s <= MAX_POSITIONS
        and max(d, e) <= WIDEST
        and q.strides[-1] == 1
        and _mask(call)
    )


def _mask(call: Call) -> bool:
    m = call.operands.get("m", call.operands.get("h"))
    if m is None:
        return True
    s = extents(call.operands["k"])[-2]
    return extents(m)[-1] == s and (m.strides[-1] == 1 or s == 1)


def _scratch(call: Call) -> int:
    """Bytes of the packed keys and values."""
    (*of_keys, s, d), (*of_values, _, e) = (extents(call.operands[n]) for n in "kv")
    return 4 * 16 * (prod(of_keys) * -(-s // 16) * d + prod(of_values) * -(-e // 16) * s)


def _code(mask_name: str, inside: bool) -> Code:
    """Code of a call; `mask_name`: the operand with the mask, or "". `inside`: whether the result has all heads of a
    position side by side."""
    masked, function = bool(mask_name), "hiding_attention" if mask_name == "h" else "tiled_attention"

    def code(call: Call) -> str:
        o, (*heads, t, e) = call.operands, extents(call.output)
        sizes = (1,) * (3 - len(heads)) + tuple(heads)
        s, d = extents(o["k"])[-2:]
        mask = _rows(o[mask_name], sizes) if masked else (0,) * 4
        if masked and extents(o[mask_name])[-2] == 1:
            mask = (*mask[:3], 0)
        (scale,) = struct.unpack("<i", struct.pack("<f", call.attrs["scale"]))
        numbers = (
            *sizes, t, s, d, e, *_rows(o["q"], sizes), *_rows(o["k"], sizes), o["k"].strides[-1], *_rows(o["v"], sizes),
            o["v"].strides[-1], *mask, *_rows(call.output, sizes), scale, masked + 2 * bool(call.attrs["causal"]), call.attrs["window"],
        )  # fmt: skip
        names = ", ".join(call.names[n] for n in ("q", "k", "v", mask_name or "q", "out", "scratch"))
        return f"{function}({names}, {', '.join(map(str, numbers))})"

    identify(code, f"c.{function}[{masked},{inside}]")
    return code


def _floats(call: Call) -> bool:
    """Condition on calls: float32, with a bool mask in the place of `h`."""
    return {o.type.dtype for n, o in (*call.operands.items(), ("out", call.output)) if n != "h"} == {"float32"}


_TEXTS = {**SOURCE, "tiled_attention": ATTENTION}
_FUNCTION: dict[str, Any] = {**c_function("tiled_attention", ATTENTION), "source": lambda call: _TEXTS}
_HIDING_FUNCTION: dict[str, Any] = {
    **c_function("hiding_attention", ATTENTION + HIDING),
    "source": lambda call: {**_TEXTS, "hiding_attention": HIDING},
}


def attention_rows() -> list[LibraryKernel]:
    """Library kernels for attention, each with a row-major result and with one whose heads are side by side."""
    found: list[LibraryKernel] = []
    for suffix, pattern, mask in (
        ("", f"attention(q, k, v, {_OPTIONS})", ""), ("_masked", f"masked_attention(q, k, v, m, {_OPTIONS})", "m"),
        ("_hiding", f"hiding_attention(q, k, v, h, {_OPTIONS})", "h"),
    ):  # fmt: skip
        more = _HIDING_FUNCTION if mask == "h" else _FUNCTION
        row: dict[str, Any] = {"family": "attention", "scratch": _scratch, "rate": 2.0, **more}
        fits = both(usable, _floats, filled, known_sizes, few_elements, _fits)
        shaped = both(fits, lambda call: call.output.type.rank in (4, 5))
        found += [
            LibraryKernel(f"c.attention{suffix}", "c", pattern, _code(mask, False), applies=fits, **row),
            LibraryKernel(f"c.attention{suffix}_rows", "c", pattern, _code(mask, True), applies=shaped,
                          layout=heads_inside, **row),
        ]  # fmt: skip
    return found


__all__ = ["attention_rows"]
