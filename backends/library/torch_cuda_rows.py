"""Holds the common parts of Torch GPU templates (kernels' patterns and code): dtype conditions."""

from __future__ import annotations

from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel
from .torch_calls import FLOATS, Applies, both, of, usable

FLOAT = of(*FLOATS)  # float dtypes, possibly mixed; `row` requires a single one unless `mixed`


def floats(call: Call) -> set[str]:
    """Float dtypes of a call's operands and output."""
    return {o.type.dtype for o in (*call.operands.values(), call.output) if dtypes.is_float(o.type.dtype)}


def uniform(call: Call) -> bool:
    """Condition on calls: all floats have one dtype."""
    return len(floats(call)) <= 1


def single(call: Call) -> bool:
    """Condition on calls: all floats are float32."""
    return floats(call) == {"float32"}


def halves(call: Call) -> bool:
    """Condition on calls: all floats are 16-bit."""
    return floats(call) <= {*dtypes.HALVES}


def promotes(call: Call) -> bool:
    """Condition on calls: the widest operand is as wide as the result, so that Torch's promotion loses no precision."""
    given = [dtypes.itemsize(o.type.dtype) for o in call.operands.values() if dtypes.is_float(o.type.dtype)]
    made = call.output.type.dtype
    return not dtypes.is_float(made) or not given or max(given) >= dtypes.itemsize(made)


def row(
    name: str, pattern: str, code: Any, *, applies: Applies | None = None, mixed: bool = False, **more: Any
) -> LibraryKernel:
    """Template of a library kernel that runs Torch code on the GPU, for `pattern` (rule language). `mixed`: accepts
    several float dtypes. `more`: further fields of `LibraryKernel`."""
    fits = both(usable, None if mixed else uniform, applies)
    return LibraryKernel(f"cuda.{name}", "torch_cuda", pattern, code, applies=fits, **more)
