"""C text of IR operations for the CPU: float and double arithmetic, types in memory."""

from __future__ import annotations

from ...ir.c_expressions import Spelling

SINGLE = Spelling("c", "c_whole", "c_whole")
DOUBLE = Spelling("c_double", "c_whole", "c_whole", suffix="")

#: dtype -> C type in memory.
TYPES = {
    "float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


def stored(value: str, dtype: str) -> str:
    """C expression that converts `value`, the expression of a computed value, to the storage dtype `dtype`."""
    if dtype == "bfloat16":
        return f"narrowed({value})"
    return f"({TYPES[dtype]})({value})" if dtype not in ("float32", "float64") else value
