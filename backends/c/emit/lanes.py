"""C text of expressions over `LANES` consecutive elements at once, in the compiler's vector types.

Vector types are used because compilers do not vectorize the conversion of packed bytes to floats well. Helpers in
`backends/ir/c_lanes.py` load and convert vectors, by instructions of AVX-512 or AVX2 where the processor has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...ir.c_expressions import position
from ...ir.expr import Expr
from ...ir.index import Axis, index
from ...ir.unfusable import Unfusable

#: dtype in memory -> helper that loads neighbours.
LOADS = {
    "float32": "lanes_f32",
    "bfloat16": "lanes_bf16",
    "float16": "lanes_f16",
    "uint8": "lanes_u8",
    "int8": "lanes_i8",
}
#: op -> text over vectors; comparisons give masks.
TEXTS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "and": "{0} & {1}", "or": "{0} | {1}",
    "xor": "{0} ^ {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
}  # fmt: skip


@dataclass
class LaneWriter:
    """Writer of C statements that compute values of `LANES` consecutive elements along the axis `lane`, in vectors.

    `scalar`: returns the C expression of a value that does not depend on the lane; `fresh`: an unused variable name
    that begins with its argument; `lines`: the statements; `known`: variables of the values computed so far.
    """

    lane: Axis
    scalar: Callable[[Expr], str]
    fresh: Callable[[str], str]
    lines: list[str] = field(default_factory=list)
    known: dict[Expr, str] = field(default_factory=dict)

    def value(self, e: Expr) -> str:
        """Name of a vector variable with the values of the expression `e`; writes the statements that compute it when
        first asked.

        Raises Unfusable for operations without C text on vectors.
        """
        if e not in self.known:
            text = self._text(e)
            kind = "floats" if e.kind == "float" else "ints"
            self.known[e] = self.fresh("l")
            self.lines.append(f"const {kind} {self.known[e]} = {text};")
        return self.known[e]

    def operand(self, e: Expr) -> str:
        """C expression of `e` as an operand of a vector operation: a vector, or a scalar (which C combines with each
        lane) if `e` does not depend on the lane."""
        return self.value(e) if self.lane in e.axes else self.scalar(e)

    def vector(self, e: Expr) -> str:
        """C expression of a vector with the value of `e` in each lane; a value that does not depend on the lane is
        broadcast."""
        return self.value(e) if self.lane in e.axes else f"lanes({self.scalar(e)})"

    def _text(self, e: Expr) -> str:
        if e.op == "load":
            return self._load(e)
        if e.op == "cast" and e.kind == "float" and e.args[0].kind == "int":
            return f"lanes_float({self.value(e.args[0])})"
        if e.op == "where" and e.kind == "float":
            c, x, y = e.args
            return f"lanes_where({self.vector(c)}, {self.vector(x)}, {self.vector(y)})"
        if e.op == "from_float8":
            return f"lanes_from_float8({self.value(e.args[0])})"
        if e.op == "sub" and e.args[0].op == "mul" and self.lane in e.args[0].axes:
            x, y = e.args[0].args
            return f"lanes_fma({self.vector(x)}, {self.vector(y)}, lanes(-({self.scalar(e.args[1])})))" if self.lane not in e.args[1].axes \
                else TEXTS["sub"].format(self.value(e.args[0]), self.value(e.args[1]))  # fmt: skip
        if e.op not in TEXTS:
            raise Unfusable(f"{e.op} has no SIMD form")
        return TEXTS[e.op].format(*(self.operand(a) for a in e.args))

    def _load(self, e: Expr) -> str:
        operand, at, steps, dtype = e.value
        if steps or e.args or at.coefficient(self.lane) != 1 or dtype not in LOADS:
            raise Unfusable("a vector load of non-contiguous elements")
        return f"{LOADS[dtype]}({operand} + {position(at - index(self.lane), str)})"


__all__ = ["LaneWriter"]
