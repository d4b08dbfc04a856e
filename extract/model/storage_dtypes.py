"""Storage dtypes of values whose e-graph dtype was widened.

16-bit models are widened to float32 before the e-graph. On devices whose kernels read and write 16-bit floats, values
of a widened model are stored in the model's own dtype, so rounding happens where the original rounded. Statistics (one
value per row) and other small values stay float32."""

from __future__ import annotations

from dataclasses import replace

from ...egraph.ir.dims import concrete
from ...egraph.ir.dtypes import HALVES
from ...egraph.ir.graph import LEAVES
from ...egraph.ir.ops import Type
from ...egraph.view.view import EGraphView


def narrow_types(view: EGraphView) -> list[Type]:
    """The storage type of each class: the model's 16-bit dtype for float32 values with rows longer than one element.

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
    kept = {*(int(view.cls[i]) for i in leaves), *view.roots}
    found = list(view.types)
    for cls, t in enumerate(view.types):
        shape = concrete(t.shape)
        if t.dtype == "float32" and cls not in kept and shape and shape[-1] > 1:
            found[cls] = replace(t, dtype=narrow)
    return found
