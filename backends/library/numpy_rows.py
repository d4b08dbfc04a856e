"""Holds the common parts of NumPy library kernels: the constructor of a row of the kernel table, code from format
strings, and conditions on dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call, Code, Operand
from ...extract.model.library_kernel import LibraryKernel, identify
from ..ir.source_text import literal

Applies = Callable[[Call], bool]


def of_kind(*categories: str) -> Applies:
    """Make the condition on calls that every operand has a dtype of one of the categories "bool", "int", "float"."""
    return lambda call: all(dtypes.category(o.type.dtype) in categories for o in call.operands.values())


def wide_floats(call: Call) -> bool:
    """Condition on calls: all float operands are float32 or float64."""
    kinds = {o.type.dtype for o in call.operands.values() if dtypes.is_float(o.type.dtype)}
    return kinds <= {"float32", "float64"}


def has_halves(call: Call) -> bool:
    """Condition on calls: a float operand has a 16-bit dtype."""
    return not wide_floats(call)


def every(*conditions: Applies) -> Applies:
    """Make the condition on calls that all of `conditions` hold."""
    return lambda call: all(c(call) for c in conditions)


def sizes(operand: Operand) -> tuple[int, ...]:
    """The shape of an operand. Sizes may be expressions in free sizes."""
    return operand.type.shape  # type: ignore[return-value]


def row(name: str, pattern: str, code: Code, **more: Any) -> LibraryKernel:
    """Template `np.NAME` of a library kernel that runs the NumPy code `code` for `pattern` (rule language); `more`:
    further fields of `LibraryKernel`."""
    return LibraryKernel(f"np.{name}", "numpy", pattern, code, **more)


def spell(text: str, **functions: Callable[[Any], str]) -> Callable[[Call], str]:
    """Make the code of a kernel (function from a call to its text) from a format string with fields for a call's
    operands, attributes (as literals, including infinities) and `functions`: field -> function from the call to its
    text."""

    def code(call: Call) -> str:
        attrs = {k: literal(v) for k, v in call.attrs.items()}
        return text.format(**attrs, **{k: f(call) for k, f in functions.items()}, **call.names)

    identify(code, f"numpy.spell[{text}]")
    return code
