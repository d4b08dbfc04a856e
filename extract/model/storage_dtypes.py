"""Chooses the dtypes in which values are stored whose dtype was widened in the e-graph.

16-bit models are widened to float32 before the e-graph. On devices whose kernels read and write 16-bit floats, values
of a widened model are stored in the model's own dtype, so rounding happens where the original rounded. Statistics (one
value per row), other small values, and positions stay float32: an angle of 1000 radians is off by up to 2 in
bfloat16."""

from __future__ import annotations

from dataclasses import replace

from ...egraph.ir.tensor import LEAVES
from ...egraph.ops.ops import OPS, Type
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import HALVES, is_float
from ...egraph.view.view import EGraphView

MOVES = ("view", "layout", "index")


def narrow_types(view: EGraphView) -> list[Type]:
    """The storage type of each e-class: the model's 16-bit dtype for float32 values with rows longer than one element.

    E-classes of `positions(view)` stay float32. If no leaf has a 16-bit dtype, the view's types unchanged.
    """
    leaves = [i for i, op in enumerate(view.op) if op in LEAVES]
    counts: dict[str, int] = {}
    for i in leaves:
        dtype = view.types[int(view.cls[i])].dtype
        counts[dtype] = counts.get(dtype, 0) + 1
    narrow = max((d for d in HALVES if d in counts), key=lambda d: counts[d], default=None)
    if narrow is None:
        return list(view.types)
    kept = {*(int(view.cls[i]) for i in leaves), *view.roots, *positions(view)}
    found = list(view.types)
    for cls, t in enumerate(view.types):
        shape = concrete(t.shape)
        if t.dtype == "float32" and cls not in kept and shape and shape[-1] > 1:
            found[cls] = replace(t, dtype=narrow)
    return found


def positions(view: EGraphView) -> set[int]:
    """E-classes that are stored as float32: operands of ops with `wide_operands` (sin, cos, floor) and of casts to
    integers, and the values they are computed from. Only operands that are leaves, or computed from leaves elementwise
    and by moving elements, count: positions times frequencies, but not activations, which the original model rounds as
    well."""
    wanted = {int(k) for i in range(len(view)) if _magnifies(view, i) for k in view.kids(i)}
    if not wanted:
        return set()
    makers = _plain(view)
    found: set[int] = set()
    while wanted := {c for c in wanted if c in makers} - found:
        found |= wanted
        wanted = {int(k) for c in wanted for i in makers[c] for k in view.kids(i)}
    return found


def _plain(view: EGraphView) -> dict[int, list[int]]:
    """Classes computed from leaves by elementwise ops and moves alone, each with the e-nodes that do so."""
    found: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    missing = []
    for i in range(len(view)):
        operands = set(view.kids(i).tolist())
        missing.append(len(operands))
        for k in operands:
            users.setdefault(k, []).append(i)
    simple = [OPS[op].kind in ("leaf", *MOVES) or OPS[op].pointwise for op in view.op]
    ready = [i for i, count in enumerate(missing) if not count and simple[i]]
    while ready:
        node = ready.pop()
        cls = int(view.cls[node])
        known = cls in found
        found.setdefault(cls, []).append(node)
        for user in () if known else users.get(cls, ()):
            missing[user] -= 1
            if not missing[user] and simple[user]:
                ready.append(user)
    return found


def _magnifies(view: EGraphView, node: int) -> bool:
    """Whether a small relative error of an operand may change a node's result entirely."""
    op = view.op[node]
    return OPS[op].wide_operands or (op == "cast" and not is_float(view.types[int(view.cls[node])].dtype))
