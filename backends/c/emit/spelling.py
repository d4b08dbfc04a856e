"""C spelling of IR operations for the CPU: float and double arithmetic, types in memory."""

from __future__ import annotations

from ...ir.c_expressions import CALLS, Spelling

SINGLE = Spelling({
    **{op: f"{op}_f({{0}})" for op in ("exp", "exp2", "log", "log1p", "expm1", "tanh", "erf")},
    **{op: f"__builtin_{f}f({{0}})" for op, f in {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "sin": "sin", "cos": "cos", "atan": "atan"}.items()},
    "pow": "__builtin_powf({0}, {1})", "rsqrt": "1.0f / __builtin_sqrtf({0})", "recip": "1.0f / {0}",
    "is_inf": "__builtin_fabsf({0}) == INFINITY",
})  # fmt: skip
DOUBLE = Spelling({
    **{op: f"{ {'abs': 'fabs', 'round': 'rint'}.get(op, op) }({{0}})" for op in CALLS if op != "pow"},
    "pow": "pow({0}, {1})", "rsqrt": "1.0 / sqrt({0})", "recip": "1.0 / {0}", "is_inf": "fabs({0}) == INFINITY",
}, suffix="")  # fmt: skip

#: dtype -> C type in memory.
TYPES = {
    "float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


def stored(value: str, dtype: str) -> str:
    """A computed value converted to its storage dtype."""
    if dtype == "bfloat16":
        return f"narrowed({value})"
    return f"({TYPES[dtype]})({value})" if dtype not in ("float32", "float64") else value
