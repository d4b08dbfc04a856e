"""Writes the CUDA C++ text of dtypes, operations and conditions, and defines the record of an emitted kernel with its
launch (`CudaLaunch`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ....egraph.types.dtypes import HALVES
from ...ir.c_expressions import Spelling
from ...ir.expr import Expr
from ...ir.index import WIDE, Index
from ...ir.short_erf import gelu_of


@dataclass(frozen=True)
class CudaLaunch:
    """One emitted kernel and its launch.

    `text` is the CUDA source, `grid` and `block` are the numbers of blocks and of threads per block, `args` the names
    of the buffers that are passed. `early` enables programmatic dependent launch; `shared_bytes` is the dynamic shared
    memory in bytes. `boxes` describes the tensor maps that are passed after the arguments: (operand, matrix shape, box
    shape, row stride in elements or 0 if contiguous). `beside` maps names to further library texts that the source
    needs.
    """

    name: str
    text: str
    grid: int
    block: int
    args: tuple[str, ...]
    early: bool = False
    shared_bytes: int = 0
    boxes: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int], ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The Python statement that defines the object to launch the kernel with; it contains the CUDA source."""
        options = (", early=True" if self.early else "") + (f", room={self.shared_bytes}" if self.shared_bytes else "")
        options += f", beside=({', '.join(self.beside)},)" if self.beside else ""
        return (
            f'{self.name} = CudaKernel("{self.name}", {self.grid}, {self.block}{options}, text=r"""\n{self.text}""")\n'
        )

    @property
    def definitions(self) -> dict[str, str]:
        """All Python statements that define what the launch needs, by the name defined: library texts, and last the
        kernel."""
        return {name: f'{name} = r"""{text}"""\n' for name, text in self.beside.items()} | {self.name: self.source}

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that launches the kernel; `names` maps its buffers to Python variables."""
        described = ", ".join(
            f"({names[o]}, {shape}, {block}{f', {apart}' if apart else ''})" for o, shape, block, apart in self.boxes
        )
        boxes = [f"boxes=[{described}]"] if self.boxes else []
        return f"{self.name}({', '.join([*(names[a] for a in self.args), *boxes])})"


CTYPES = {
    "float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16", "bool": "bool", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned",
    "int64": "long long", "uint64": "unsigned long long",
}  # fmt: skip
#: compute dtype -> spelling of operations; the functions are in cuda_library.cuh
SPELLINGS = {
    "float32": Spelling(
        "cuda", "cuda_whole", "cuda_bool", infinity="infinity()", nan="(infinity() - infinity())"
    ),
    "float64": Spelling(
        "cuda_double", "cuda_whole", "cuda_bool", suffix="", infinity="double(infinity())",
        nan="(double(infinity()) - double(infinity()))",
    ),
}  # fmt: skip
COMBINE = {"sum": "Sum", "max": "Max", "min": "Min", "prod": "Prod"}


def operation(e: Expr, text: Callable[[Expr], str], wide: str, results: frozenset[str]) -> str:
    """CUDA expression of the elementwise operation `e` in the compute dtype `wide`; `text` returns the expression of an
    operand.

    `results` are the storage dtypes of the kernel's results: where all are 16-bit, erf and GELU use polynomials of
    matching accuracy (short_erf.py).
    """
    short = ("coarse" if results == {"bfloat16"} else "short") if results <= {*HALVES} else ""
    if short and wide == "float32" and e.op == "mul" and (x := gelu_of(e)) is not None:
        return f"op::{short}_gelu({text(x)})"
    args = [text(a) for a in e.args]
    if e.op == "erf" and short:
        return f"op::{short}_erf({args[0]})"
    if e.op == "cast":
        if e.value == "bool":
            return f"{enclosed(args[0])} != 0"
        if e.kind == "float" and wide == "float32" and (byte := byte_dtype(e.args[0])):
            return f"{'from_byte' if byte == 'uint8' else 'from_signed_byte'}({args[0]})"
        return f"{spelled(CTYPES[wide if e.kind == 'float' else e.value])}({args[0]})"
    found = SPELLINGS[wide].text(e.op, e.args[-1].kind)
    return found.format(*(args if found.startswith("op::") else map(enclosed, args)))


def byte_dtype(e: Expr) -> str:
    """The dtype "uint8" or "int8" if the IR shows that all values of the integer expression `e` fit it; "" if it does
    not."""
    if e.op == "load":
        return str(e.value[3]) if e.value[3] in ("uint8", "int8") else ""
    return "uint8" if e.op == "and" and e.kind == "int" and any(byte_dtype(a) == "uint8" for a in e.args) else ""


def span(at: Index, steps: Sequence[int]) -> int:
    """Largest absolute value of the index `at`, which decides between 32-bit and 64-bit arithmetic.

    `steps`: strides of data-dependent terms of the position. If there are any, the result exceeds 32 bits, since their
    values are unknown.
    """
    return max(abs(at.range[0]), at.range[1]) + sum(abs(s) for s in steps) * WIDE * bool(steps)


def integer(value: int | bool) -> str:
    """CUDA literal of an integer or boolean constant; with the suffix LL if 32 bits do not hold it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}LL" if abs(value) >= WIDE else str(value)


def all_of(conditions: Sequence[str]) -> str:
    """CUDA expression that is true if all `conditions` (at least one) are; equal ones are written once."""
    found = list(dict.fromkeys(conditions))
    return found[0] if len(found) == 1 else " && ".join(enclosed(c) if "||" in c or "?" in c else c for c in found)


def plus(text: str) -> str:
    """CUDA text that adds the expression `text` to what precedes it: " + text"; "" if `text` is ""."""
    return f" + {text}" if text else ""


def sum_of(text: str, number: int) -> str:
    """CUDA expression of the sum of the expression `text` and `number`, without a zero term."""
    return str(number) if text == "0" else f"{text} + {number}" if number else text


def spelled(ctype: str) -> str:
    """CUDA text that converts the expression in the parentheses after it to `ctype`: the type's name, in parentheses if
    it has two words."""
    return f"({ctype})" if " " in ctype else ctype


_ATOM = re.compile(r"[\d.]+e[-+]\d+f?|[\w.]+(\[[^\[\]]*\])?(\.at\[\w+\])?")
_CALL = re.compile(r"[\w:<>]+\(")


def enclosed(text: str) -> str:
    """The CUDA expression `text` in parentheses, or as it is if it is a name, array element, number or call."""
    if _ATOM.fullmatch(text):
        return text
    head = _CALL.match(text)
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
