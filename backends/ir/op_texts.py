"""Lists the text and cost class of the kernel IR's elementwise operations, which are ops of the op table and a few that
exist in the kernel IR only."""

from __future__ import annotations

from ...egraph.ops.ops import OPS, TargetText

#: Operations of the kernel IR that are no graph ops. `exact_*` round once, whatever a GPU compiler contracts or
#: approximates (`lowering/ieee_decisions.py`). Without the 0.0, LLVM would contract Triton's.
INTERNAL = {
    "exp2": TargetText("exp2_f({0})", "exp2({0})", cuda="op::exp2({0})", triton="tl.exp2({0})"),
    "exact_mul": TargetText(
        cuda="__fmul_rn({0}, {1})", cuda_double="__dmul_rn({0}, {1})", triton="tl.fma({0}, {1}, 0.0)"
    ),
    "exact_div": TargetText(cuda="__fdiv_rn({0}, {1})", cuda_double="{0} / {1}", triton="tl.div_rn({0}, {1})"),
    "exact_sqrt": TargetText(cuda="__fsqrt_rn({0})", cuda_double="op::sqrt({0})", triton="tl.sqrt_rn({0})"),
}
#: Operation of the kernel IR -> graph op that costs the same.
_LIKE = {"exp2": "exp", "exact_mul": "mul", "exact_div": "div", "exact_sqrt": "sqrt"}


def op_text(op: str, target: str) -> str:
    """The format string of the operation `op` in a target language (`target`: a field of `TargetText`); empty if there
    is none."""
    if op in INTERNAL:
        return INTERNAL[op].of(target)
    return OPS[op].text.of(target) if op in OPS else ""


def costly(op: str) -> bool:
    """Whether the operation `op` takes so long that an element should not be computed twice."""
    op = _LIKE.get(op, op)
    return op in OPS and OPS[op].costly


def flops(op: str) -> float:
    """Flops of one element of the operation `op`; an operation of the kernel IR only counts as an exponential."""
    op = _LIKE.get(op, op)
    return OPS[op if op in OPS else "exp"].flops


__all__ = ["costly", "flops", "op_text"]
