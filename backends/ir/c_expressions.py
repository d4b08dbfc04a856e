"""C and CUDA C++ spelling of scalar IR expressions.

The operands `{0}`, `{1}`, `{2}` are atomic: names, numbers (also negative), or parenthesized expressions. A `Spelling`
holds what differs between languages and precisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .index import Axis, Index
from .kernel import Unfusable

#: Float operations spelled alike in every precision. NaN propagates in maximum and minimum.
FLOATS: Mapping[str, str] = {
    "neg": "- {0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "recip": "1 / {0}",
    "maximum": "(({0} > {1}) | ({0} != {0})) ? {0} : {1}", "minimum": "(({0} < {1}) | ({0} != {0})) ? {0} : {1}",
    "where": "{0} ? {1} : {2}", "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "not": "!{0}", "is_nan": "{0} != {0}",
    "sign": "{0} != {0} ? {0} : ({0} > 0) - ({0} < 0)",
}  # fmt: skip

#: Operations on integers and bools.
WHOLES: Mapping[str, str] = {
    "neg": "- {0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "abs": "{0} < 0 ? - {0} : {0}",
    "maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}", "where": "{0} ? {1} : {2}",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "not": "!{0}",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
}  # fmt: skip

#: Float operations that are function calls.
CALLS = ("abs", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "tanh", "erf", "sin", "cos", "atan", "floor", "ceil", "round", "pow")  # fmt: skip


@dataclass(frozen=True)
class Spelling:
    """Spelling of one language and precision. `floats`, `wholes` and `truths` map ops on floats, integers and bools to
    format strings that override the tables above."""

    floats: Mapping[str, str]
    wholes: Mapping[str, str] = field(default_factory=dict)
    truths: Mapping[str, str] = field(default_factory=dict)
    suffix: str = "f"  # suffix of float literals
    infinity: str = "INFINITY"
    nan: str = "NAN"

    def number(self, value: float) -> str:
        """A float literal."""
        if math.isnan(value):
            return self.nan
        if math.isinf(value):
            return self.infinity if value > 0 else f"-{self.infinity}"
        return f"{float(value)!r}{self.suffix}"

    def text(self, op: str, kind: str) -> str:
        """The format string of an op for operands of a kind ("float", "int" or "bool"). Unfusable if there is none."""
        own = {"float": self.floats, "int": self.wholes, "bool": self.truths}[kind]
        text = own.get(op) or (FLOATS if kind == "float" else WHOLES).get(op)
        if text is None:
            raise Unfusable(f"{op} of {kind}s has no spelling in C")
        return text

    def operation(self, op: str, kind: str, args: list[str]) -> str:
        """An operation as C text."""
        return self.text(op, kind).format(*args)


def position(at: Index, name: Callable[[Axis], str]) -> str:
    """An index as C text; dividends are nonnegative wherever the value is used."""
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
