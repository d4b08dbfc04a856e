"""Writes the Triton text of tiles, operations and dtypes, and defines the record of an emitted kernel with its launch
(`TritonLaunch`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....egraph.ops.ops import OPS
from ...generate.emitter import LaunchBase
from ...ir.tensor_maps import Box


@dataclass(frozen=True)
class Tile:
    """Value in emitted Triton source: its expression (`text`), the dimensions along which it varies (`dims`, in the
    emitter's order), its dtype."""

    text: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def atom(self) -> str:
        """The value's expression, in parentheses unless it is a name, number or call."""
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
class TritonLaunch(LaunchBase):
    """One emitted Triton kernel and its launch: name of the function, its source, number of programs (`grid`), names of
    the buffers that are passed (`args`), warps and pipeline stages. `boxes`: operands read through tensor maps (TMA
    descriptors), which follow the arguments. `early`: programmatic dependent launch."""

    name: str
    source: str
    grid: int
    args: tuple[str, ...]
    warps: int
    stages: int
    boxes: tuple[tuple[str, Box], ...] = ()  # operands with tensor maps, which follow the arguments
    early: bool = False  # programmatic dependent launch

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that launches the kernel; `names` maps its buffers to Python variables."""
        described = [
            f"described({names[o]}, {b.shape}, {b.block}{f', strides={b.strides}' if b.strides else ''})"
            for o, b in self.boxes
        ]
        given = ", ".join([*(names[a] for a in self.args), *described])
        early = ", launch_pdl=True" if self.early else ""
        return f"{self.name}[({self.grid},)]({given}, num_warps={self.warps}, num_stages={self.stages}{early})"


#: monoid -> text that combines two values. Square roots and quotients of elementwise ops are exact to one or two ulp:
#: correct rounding would take a branch and ten instructions.
COMBINE = {monoid: OPS[OPS[monoid].monoid].text.triton for monoid in ("sum", "max", "min", "prod")}
#: tl.max and tl.min would lose NaN; `larger` and `smaller` are helpers of the backend (triton/backend.py).
ACROSS = {"sum": "tl.sum({0}, {1})", "max": "tl.reduce({0}, {1}, larger)", "min": "tl.reduce({0}, {1}, smaller)"}
NEUTRAL = {"sum": "0.0", "max": "float('-inf')", "min": "float('inf')", "prod": "1.0"}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}  # dtypes that TMA boxes support
TRITON = {
    "float32": "tl.float32", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float64": "tl.float64", "bool": "tl.int1",
    "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32", "int64": "tl.int64", "uint8": "tl.uint8",
    "uint16": "tl.uint16", "uint32": "tl.uint32", "uint64": "tl.uint64",
}  # fmt: skip


def widest(kinds: Iterable[str]) -> str:
    """Dtype in which integer arithmetic on operands of the dtypes `kinds` is done: int64 if one is, else that of the
    first operand with an integer dtype; int32 if all are constants or bools."""
    found = [k for k in kinds if k not in ("const", "bool")]
    return "int64" if "int64" in found else found[0] if found else "int32"
