"""In which dtype values lie in memory, where that is not the dtype they are reasoned about in.

16-bit models are widened to float32 before the e-graph. On devices whose kernels read and write 16 bits, values of a widened
model are stored in the model's own dtype, as the original stored them: rounding where the original rounded. Statistics (one
value a row) and other small things stay in float32.
"""

from __future__ import annotations

from dataclasses import replace

from ..egraph.dims import concrete
from ..egraph.dtypes import HALVES
from ..egraph.graph import LEAVES
from ..egraph.ops import Type
from ..egraph.view import EGraphView


def narrow_types(view: EGraphView) -> list[Type]:
    """The storage type of each class: the narrow dtype of the model's leaves for float32 values with rows longer than one
    element; as they are where no leaf is narrow."""
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
