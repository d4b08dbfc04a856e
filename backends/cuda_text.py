"""Pieces of CUDA C++: the spelling of dtypes, operations and conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .index import WIDE, Index


@dataclass(frozen=True)
class CudaLaunch:
    """One kernel call: name, CUDA text, blocks, threads of each, argument names, whether it may start early."""

    name: str
    text: str
    grid: int
    block: int
    args: tuple[str, ...]
    early: bool = False

    @property
    def source(self) -> str:
        """The definition in Python."""
        early = ", early=True" if self.early else ""
        return f'{self.name} = CudaKernel("{self.name}", {self.grid}, {self.block}{early}, text=r"""\n{self.text}""")\n'

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches it."""
        return f"{self.name}({', '.join(names[a] for a in self.args)})"


CTYPES = {
    "float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16", "bool": "bool", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned",
    "int64": "long long", "uint64": "unsigned long long",
}  # fmt: skip
#: pointwise op -> text over operands
CALLS = {
    "neg": "-{0}", "abs": "op::abs({0})", "exp": "op::exp({0})", "exp2": "op::exp2({0})", "log": "op::log({0})",
    "sqrt": "op::sqrt({0})", "rsqrt": "op::rsqrt({0})", "recip": "op::recip({0})", "erf": "op::erf({0})",
    "sin": "op::sin({0})", "cos": "op::cos({0})", "floor": "op::floor({0})", "ceil": "op::ceil({0})",
    "tanh": "op::tanh({0})", "log1p": "op::log1p({0})", "expm1": "op::expm1({0})", "sign": "op::sign({0})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "op::div({0}, {1})",
    "maximum": "op::max({0}, {1})", "minimum": "op::min({0}, {1})", "pow": "op::pow({0}, {1})",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "is_nan": "{0} != {0}", "is_inf": "op::is_inf({0})",
    "where": "{0} ? {1} : {2}",
}  # fmt: skip
LOGIC = {"and": ("{0} && {1}", "{0} & {1}"), "or": ("{0} || {1}", "{0} | {1}"), "xor": ("{0} != {1}", "{0} ^ {1}"),
          "not": ("!{0}", "{0} == 0")}  # fmt: skip
COMBINE = {"sum": "Sum", "max": "Max", "min": "Min", "prod": "Prod"}


def span(at: Index, steps: Sequence[int]) -> int:
    return max(abs(at.range[0]), at.range[1]) + sum(abs(s) for s in steps) * WIDE * bool(steps)


def integer(value: int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}LL" if abs(value) >= WIDE else str(value)


def all_of(conditions: Sequence[str]) -> str:
    found = list(dict.fromkeys(conditions))
    return found[0] if len(found) == 1 else " && ".join(enclosed(c) if "||" in c or "?" in c else c for c in found)


def plus(text: str) -> str:
    return f" + {text}" if text else ""


def spelled(ctype: str) -> str:
    return f"({ctype})" if " " in ctype else ctype


def enclosed(text: str) -> str:
    """The text, in parentheses unless it is one word, element, number or call."""
    if re.fullmatch(r"[\d.]+e[-+]\d+f?|[\w.]+(\[[^\[\]]*\])?(\.at\[\w+\])?", text):
        return text
    head = re.match(r"[\w:<>]+\(", text)
    if head and text.endswith(")"):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0 and i >= head.end() - 1:
                return text if i == len(text) - 1 else f"({text})"
    if text.startswith("("):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                return text if i == len(text) - 1 else f"({text})"
    return f"({text})"
