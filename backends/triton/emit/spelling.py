"""Spelling of tiles, operations and dtypes in Triton, and the description of a launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...generate.template import LaunchBase
from ...ir.tensor_maps import Box


@dataclass(frozen=True)
class Tile:
    """A value in the source: its text, the dimensions it spans (names in the emitter's order), its dtype."""

    text: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def atom(self) -> str:
        """The text in parentheses, unless it is one word or call."""
        plain = self.text.replace("_", "").replace(".", "").replace("e-", "e").isalnum()
        return self.text if plain or _is_call(self.text) else f"({self.text})"


def _is_call(text: str) -> bool:
    """Whether a text is `name(...)` whose only top-level parentheses are at the end."""
    head, _, rest = text.partition("(")
    if not head.replace(".", "").replace("_", "").isalnum() or not rest.endswith(")"):
        return False
    depth = 1
    for i, c in enumerate(rest):
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            return i == len(rest) - 1
    return False


@dataclass(frozen=True)
class Launch(LaunchBase):
    """One kernel launch: the function's name and text, programs in the grid, argument names, launch options."""

    name: str
    source: str
    grid: int
    args: tuple[str, ...]
    warps: int
    stages: int
    boxes: tuple[tuple[str, Box], ...] = ()  # operands with tensor maps, which follow the arguments
    early: bool = False  # programmatic dependent launch

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches the kernel; `names` maps arguments to variables."""
        described = [
            f"described({names[o]}, {b.shape}, {b.block}{f', strides={b.strides}' if b.strides else ''})"
            for o, b in self.boxes
        ]
        given = ", ".join([*(names[a] for a in self.args), *described])
        early = ", launch_pdl=True" if self.early else ""
        return f"{self.name}[({self.grid},)]({given}, num_warps={self.warps}, num_stages={self.stages}{early})"


#: propagates NaN
_MAXIMUM, _MINIMUM = (f"tl.{name}({{0}}, {{1}}, tl.PropagateNan.ALL)" for name in ("maximum", "minimum"))
#: elementwise op -> text over float32 operands. Square roots, like quotients, are exact to one or two ulp: correct
#: rounding would take a branch and ten instructions.
CALLS = {
    "neg": "-{0}", "abs": "tl.abs({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})", "recip": "1.0 / {0}", "erf": "tl.erf({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "div": "{0} / {1}", "maximum": _MAXIMUM, "minimum": _MINIMUM,
    "tanh": "2.0 / (1.0 + tl.exp(-2.0 * {0})) - 1.0", "log1p": "tl.log(1.0 + {0})", "expm1": "tl.exp({0}) - 1.0",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "not": "{0} == 0", "is_nan": "{0} != {0}",
    "is_inf": "tl.abs({0}) == float('inf')", "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
    "where": "tl.where({0}, {1}, {2})", "pow": "tl.exp2({1} * tl.log2(tl.abs({0})))",  # base >= 0: see `_power`
}  # fmt: skip
COMBINE = {"sum": "{0} + {1}", "max": _MAXIMUM, "min": _MINIMUM, "prod": "{0} * {1}"}
#: tl.max and tl.min would lose NaN; `larger` and `smaller` are helpers of the backend (triton/backend.py).
ACROSS = {"sum": "tl.sum({0}, {1})", "max": "tl.reduce({0}, {1}, larger)", "min": "tl.reduce({0}, {1}, smaller)"}
NEUTRAL = {"sum": "0.0", "max": "float('-inf')", "min": "float('inf')", "prod": "1.0"}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}  # dtypes that TMA boxes support
TRITON = {
    "float32": "tl.float32", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float64": "tl.float64", "bool": "tl.int1",
    "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32", "int64": "tl.int64", "uint8": "tl.uint8",
}  # fmt: skip


def widest(kinds: Iterable[str]) -> str:
    """The compute dtype of integers of some dtypes."""
    found = [k for k in kinds if k not in ("const", "bool")]
    return "int64" if "int64" in found else found[0] if found else "int32"


def names_it(line: str, name: str) -> bool:
    """Whether a line contains a variable."""
    return re.search(rf"\b{name}\b", line) is not None
