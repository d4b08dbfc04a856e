"""Lists the text and cost class of the kernel IR's elementwise operations, which are ops of the op table and a few that
exist in the kernel IR only."""

from __future__ import annotations

from ...egraph.ops.ops import OPS, TargetText

#: Operations of the kernel IR that are no graph ops; all are costly.
INTERNAL = {"exp2": TargetText("exp2_f({0})", "exp2({0})", cuda="op::exp2({0})", triton="tl.exp2({0})")}


def op_text(op: str, target: str) -> str:
    """The format string of the operation `op` in a target language (`target`: a field of `TargetText`); empty if there
    is none."""
    if op in INTERNAL:
        return INTERNAL[op].of(target)
    return OPS[op].text.of(target) if op in OPS else ""


def costly(op: str) -> bool:
    """Whether the operation `op` takes so long that an element should not be computed twice."""
    return op in INTERNAL or (op in OPS and OPS[op].costly)


def flops(op: str) -> float:
    """Flops of one element of the operation `op`; an operation of the kernel IR only counts as an exponential."""
    return OPS[op if op in OPS else "exp"].flops


__all__ = ["costly", "flops", "op_text"]
