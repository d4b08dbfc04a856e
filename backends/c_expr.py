"""Scalar expressions of the kernel IR in C.

`{0}`, `{1}`, `{2}` are operands that can stand in any place of an expression: names, numbers (negative ones too), and what is in
parentheses. How functions are called depends on the precision (`Spelling.functions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .index import Axis, Index
from .kir import Unfusable

#: Operations on floats that are spelled the same in every precision. NaN wins in maximum and minimum.
FLOATS: Mapping[str, str] = {
    "neg": "- {0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "recip": "1 / {0}",
    "maximum": "(({0} > {1}) | ({0} != {0})) ? {0} : {1}", "minimum": "(({0} < {1}) | ({0} != {0})) ? {0} : {1}",
    "where": "{0} ? {1} : {2}", "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "is_nan": "{0} != {0}",
    "sign": "{0} != {0} ? {0} : ({0} > 0) - ({0} < 0)",
}  # fmt: skip

#: Operations on whole numbers and truth values.
WHOLES: Mapping[str, str] = {
    "neg": "- {0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "abs": "{0} < 0 ? - {0} : {0}",
    "maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}", "where": "{0} ? {1} : {2}",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
}  # fmt: skip

#: Operations on floats that are calls of functions.
CALLS = ("abs", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "tanh", "erf", "sin", "cos", "atan", "floor", "ceil", "round", "pow")  # fmt: skip


@dataclass(frozen=True)
class Spelling:
    """How one precision spells numbers and calls: `functions` maps an op to its format string."""

    functions: Mapping[str, str]
    suffix: str = "f"  # of literals

    def number(self, value: float) -> str:
        """A float literal."""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        return f"{float(value)!r}{self.suffix}"

    def operation(self, op: str, kind: str, args: list[str]) -> str:
        """An operation on operands of a kind ("float", "int" or "bool"). Unfusable if C has no such operation."""
        text = self.functions.get(op) or FLOATS.get(op) if kind == "float" else WHOLES.get(op)
        if op == "not":
            text = "!{0}"
        if text is None:
            raise Unfusable(f"{op} of {kind}s has no spelling in C")
        return text.format(*args)


def position(at: Index, name: Callable[[Axis], str]) -> str:
    """An index as C: no part that is divided is negative where its value is used."""
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


__all__ = ["CALLS", "FLOATS", "WHOLES", "Spelling", "position"]
