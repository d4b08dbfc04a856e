"""What every row of Torch's kernels on a GPU is made with: the dtypes of its operands."""

from __future__ import annotations

from typing import Any

from ..egraph import dtypes
from ..extract.kernel import Call, Template
from .torch_calls import FLOATS, Applies, both, of, usable

FLOAT = of(*FLOATS)  # of one dtype or several: `row` asks for one where a kernel does not say otherwise


def floats(call: Call) -> set[str]:
    """Float dtypes of operands and output."""
    return {o.type.dtype for o in (*call.operands.values(), call.output) if dtypes.is_float(o.type.dtype)}


def uniform(call: Call) -> bool:
    """All floats have one dtype."""
    return len(floats(call)) <= 1


def single(call: Call) -> bool:
    """All floats are float32."""
    return floats(call) == {"float32"}


def halves(call: Call) -> bool:
    """All floats have 16 bits."""
    return floats(call) <= {*dtypes.HALVES}


def promotes(call: Call) -> bool:
    """The widest operand is as wide as the result, so that Torch's own promotion loses nothing."""
    given = [dtypes.itemsize(o.type.dtype) for o in call.operands.values() if dtypes.is_float(o.type.dtype)]
    made = call.output.type.dtype
    return not dtypes.is_float(made) or not given or max(given) >= dtypes.itemsize(made)


def row(
    name: str, pattern: str, code: Any, *, applies: Applies | None = None, mixed: bool = False, **more: Any
) -> Template:
    """One kernel on the GPU; `mixed`: floats of several dtypes are welcome."""
    fits = both(usable, None if mixed else uniform, applies)
    return Template(f"cuda.{name}", "torch_cuda", pattern, code, applies=fits, **more)
