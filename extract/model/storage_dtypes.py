"""Chooses the dtypes in which values are stored whose dtype was widened in the e-graph.

16-bit models are widened to float32 before the e-graph. On devices whose kernels read and write 16-bit floats, values
of a widened model are stored in the model's own dtype, so rounding happens where the original rounded. Statistics (one
value per row), other small values, positions, and values that the model itself computes in float32 stay float32: an
angle of 1000 radians is off by up to 2 in bfloat16, as is a sum of logarithms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ...egraph.ir.tensor import LEAVES
from ...egraph.ops.ops import OPS, Type
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import HALVES, is_float
from ...egraph.view.view import EGraphView

MOVES = ("view", "layout", "index")


def narrow_types(view: EGraphView, wide: Collection[int] = ()) -> list[Type]:
    """The storage type of each e-class: the model's 16-bit dtype for float32 values with rows longer than one element.

    E-classes of `positions(view)` and those in `wide`, which the model itself computes in float32, stay float32. If no
    leaf has a 16-bit dtype, but values are rounded to one (autocast), only those e-classes are stored in it that are
    computed from such values alone, or that the model only rounds. Without either, the view's types unchanged.
    """
    leaves = [i for i, op in enumerate(view.op) if op in LEAVES]
    counts: dict[str, int] = {}
    for i in leaves:
        dtype = view.types[int(view.cls[i])].dtype
        counts[dtype] = counts.get(dtype, 0) + 1
    narrow = max((d for d in HALVES if d in counts), key=lambda d: counts[d], default=None)
    kept = {*(int(view.cls[i]) for i in leaves), *view.roots, *positions(view), *_statistics(view), *wide}
    exact = set[int]()
    if narrow is None:
        narrow, rounded = _rounded(view)
        if narrow is None:
            return list(view.types)
        exact = _cast_from(view, narrow) - kept
        kept |= {*range(len(view.types))} - rounded - _only_cast(view, narrow)
    found = list(view.types)
    for cls, t in enumerate(view.types):
        shape = concrete(t.shape)
        if t.dtype == "float32" and (cls in exact or (cls not in kept and shape and shape[-1] > 1)):
            found[cls] = replace(t, dtype=narrow)
    return found


def _rounded(view: EGraphView) -> tuple[str | None, set[int]]:
    """(the 16-bit dtype that values of a float32 model are rounded to, None without one; the e-classes computed from
    such values and numbers of the model alone)."""
    counts = {d: sum(t.dtype == d for t in view.types) for d in HALVES}
    dtype = max(HALVES, key=lambda d: counts[d])
    if not counts[dtype]:
        return None, set()
    found = {c for c, t in enumerate(view.types) if t.dtype == dtype}
    free = {c for c, t in enumerate(view.types) if not is_float(t.dtype)}  # masks and indices, and float constants
    free |= _fixpoint(
        view,
        lambda i, children: view.op[i] in ("full", "iota") or (view.op[i] not in LEAVES and children <= free),
        free,
    )
    return dtype, _fixpoint(view, lambda i, children: bool(children & found) and children <= found | free, found)


def _statistics(view: EGraphView) -> set[int]:
    """The e-classes of statistics of channels and groups, which norms compute in float32."""
    return {int(view.cls[i]) for i, op in enumerate(view.op) if OPS[op].law in ("channel_statistic", "group_statistic")}


def _cast_from(view: EGraphView, dtype: str) -> set[int]:
    """The e-classes of values cast from a dtype, which it holds exactly."""
    casts = (i for i, op in enumerate(view.op) if op == "cast")
    return {int(view.cls[i]) for i in casts if view.types[int(view.children(i)[0])].dtype == dtype}


def _only_cast(view: EGraphView, dtype: str) -> set[int]:
    """The e-classes that the graph as written uses in casts to a dtype only."""
    users: dict[int, set[bool]] = {}
    for i in range(len(view)):
        if view.original_nodes is None or view.original_nodes[i]:
            cast = view.op[i] == "cast" and view.types[int(view.cls[i])].dtype == dtype
            for k in view.children(i):
                users.setdefault(int(k), set()).add(cast)
    return {cls for cls, casts in users.items() if casts == {True}}


def _fixpoint(view: EGraphView, holds: Callable[[int, set[int]], bool], found: set[int]) -> set[int]:
    """`found` with all e-classes added that have an e-node for which `holds` is true of its index and its operands'
    e-classes; `holds` may read `found`."""
    users: dict[int, list[int]] = {}
    for i in range(len(view)):
        for k in view.children(i):
            users.setdefault(int(k), []).append(i)
    todo = [*range(len(view))]
    while todo:
        i = todo.pop()
        cls = int(view.cls[i])
        if cls not in found and holds(i, {int(k) for k in view.children(i)}):
            found.add(cls)
            todo += users.get(cls, ())
    return found


def positions(view: EGraphView) -> set[int]:
    """E-classes that are stored as float32: operands of ops with `wide_operands` (sin, cos, floor) and of casts to
    integers, and the values they are computed from. Only operands that are leaves, or computed from leaves elementwise
    and by moving elements, count: positions times frequencies, but not activations, which the original model rounds as
    well."""
    wanted = {int(k) for i in range(len(view)) if _magnifies(view, i) for k in view.children(i)}
    if not wanted:
        return set()
    makers = _plain(view)
    found: set[int] = set()
    while wanted := {c for c in wanted if c in makers} - found:
        found |= wanted
        wanted = {int(k) for c in wanted for i in makers[c] for k in view.children(i)}
    return found


def _plain(view: EGraphView) -> dict[int, list[int]]:
    """Classes computed from leaves by elementwise ops and moves alone, each with the e-nodes that do so."""
    found: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    missing = []
    for i in range(len(view)):
        operands = set(view.children(i).tolist())
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
