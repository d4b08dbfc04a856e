"""Storage dtypes of values whose e-graph dtype was widened.

16-bit models are widened to float32 before the e-graph. On devices whose kernels read and write 16-bit floats, values
of a widened model are stored in the model's own dtype, so rounding happens where the original rounded. Statistics (one
value per row) and other small values stay float32, as do values from which elementwise ops compute the operand of a
periodic function or of rounding to whole numbers: the angle of position 561 in bfloat16 would be off by one radian."""

from __future__ import annotations

from dataclasses import replace

from ...egraph.ir.dims import concrete
from ...egraph.ir.dtypes import HALVES, is_float
from ...egraph.ir.graph import LEAVES
from ...egraph.ir.ops import OPS, Type
from ...egraph.view.view import EGraphView


def narrow_types(view: EGraphView) -> list[Type]:
    """The storage type of each class: the model's 16-bit dtype for float32 values with rows longer than one element,
    except for operands that need all bits (`wide_operands`).

    The view's types if no leaf is 16-bit.
    """
    leaves = [i for i, op in enumerate(view.op) if op in LEAVES]
    counts: dict[str, int] = {}
    for i in leaves:
        dtype = view.types[int(view.cls[i])].dtype
        counts[dtype] = counts.get(dtype, 0) + 1
    narrow = max((d for d in HALVES if d in counts), key=lambda d: counts[d], default=None)
    if narrow is None:
        return list(view.types)
    kept = {*(int(view.cls[i]) for i in leaves), *view.roots, *_wide(view)}
    found = list(view.types)
    for cls, t in enumerate(view.types):
        shape = concrete(t.shape)
        if t.dtype == "float32" and cls not in kept and shape and shape[-1] > 1:
            found[cls] = replace(t, dtype=narrow)
    return found


def _wide(view: EGraphView) -> set[int]:
    """The classes whose relative error an op magnifies, and those from which elementwise and moving ops compute them."""
    pending = [int(k) for i in range(len(view)) if _magnifies(view, i) for k in view.kids(i)]
    found: set[int] = set()
    while pending:
        cls = pending.pop()
        if cls in found or not is_float(view.types[cls].dtype):
            continue
        found.add(cls)
        for node in view.nodes_of(cls).tolist():
            entry = OPS.get(view.op[node])
            if entry is not None and entry.kind in ("pointwise", "view", "layout"):
                pending += view.kids(node).tolist()
    return found


def _magnifies(view: EGraphView, node: int) -> bool:
    """Whether a node's result may change entirely with a small relative error of an operand."""
    op = view.op[node]
    entry = OPS.get(op)
    to_whole = op == "cast" and not is_float(view.types[int(view.cls[node])].dtype)
    return to_whole or (entry is not None and entry.wide_operands)
