"""C and CUDA C++ spelling of scalar IR expressions.

The operands `{0}`, `{1}`, `{2}` are atomic: names, numbers (also negative), or parenthesized expressions. A `Spelling`
holds the differences between languages and precisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .index import Axis, Index
from .op_texts import op_text
from .unfusable import Unfusable


@dataclass(frozen=True)
class Spelling:
    """How scalar operations are written in one language and precision.

    `floats`, `wholes` and `truths` name the texts (fields of `TargetText`) of operations on floats, integers and bools.
    `suffix` follows float literals; `infinity` and `nan` are the texts of these numbers.
    """

    floats: str
    wholes: str
    truths: str
    suffix: str = "f"  # suffix of float literals
    infinity: str = "INFINITY"
    nan: str = "NAN"

    def number(self, value: float) -> str:
        """Source text of the float constant `value`, NaN and infinities included."""
        if math.isnan(value):
            return self.nan
        if math.isinf(value):
            return self.infinity if value > 0 else f"-{self.infinity}"
        return f"{float(value)!r}{self.suffix}"

    def text(self, op: str, kind: str) -> str:
        """Format string, with `{0}`, `{1}`, … for the operands, of the operation `op` on operands of a kind ("float",
        "int" or "bool").

        Raises Unfusable for an operation without text.
        """
        text = op_text(op, {"float": self.floats, "int": self.wholes, "bool": self.truths}[kind])
        if not text:
            raise Unfusable(f"{op} of {kind}s has no spelling in C")
        return text

    def operation(self, op: str, kind: str, args: list[str]) -> str:
        """Source text of the operation `op` on the operand texts `args`, of a kind ("float", "int" or "bool")."""
        return self.text(op, kind).format(*args)


def position(at: Index, name: Callable[[Axis], str]) -> str:
    """C expression of the value of the index `at`; `name` returns the C variable of an axis.

    C's `/` and `%` are used, since dividends are nonnegative wherever the value is used.
    """
    parts = []
    for atom, factor in at.terms:
        inner = (
            name(atom)
            if isinstance(atom, Axis)
            else f"({position(atom.index, name)}) {'%' if atom.rest else '/'} {atom.by}"
        )
        if not isinstance(atom, Axis) and factor != 1:
            inner = f"({inner})"
        parts.append(inner if factor == 1 else f"{inner} * {factor}")
    if at.const or not parts:
        parts.append(str(at.const))
    return " + ".join(parts).replace("+ -", "- ")


__all__ = ["Spelling", "position"]
