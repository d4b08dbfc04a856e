"""Functions that translate ONNX's discrete Fourier transform."""

from __future__ import annotations

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import ShapeError
from ..common.complex_parts import LONGEST_DFT, Array, bilinear, real_inverse_roots, unit_roots
from ..common.sampling import whole_sizes
from .node import Node, Result, operator, resolve


@operator("DFT", limits=f"lengths over {LONGEST_DFT} or of free size")
def _dft(n: Node) -> Result:
    """x[..., 1] of real numbers, or x[..., 2] of (real part, imaginary part), along one of the other axes.

    The inverse of a one-sided transform is real: [..., 1].
    """
    x = n.x()
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"{x.type} does not end in an axis of 1 or 2 parts of numbers")
    axis = resolve((n.ints(2)[0] if n.has(2) else -2) if n.opset >= 20 else n.attr("axis", 1), x.rank)
    if axis == x.rank - 1:
        raise ShapeError(f"axis {axis} of {x.type} holds the parts of numbers")
    inverse, onesided = n.attr("inverse", 0), n.attr("onesided", 0)
    (have,) = whole_sizes((x.shape[axis],), "a Fourier transform")
    size = n.ints(1)[0] if n.has(1) else 2 * (have - 1) if inverse and onesided else have
    if not 1 <= size <= LONGEST_DFT:
        raise n.unsupported(f"over {size} elements, 1 to {LONGEST_DFT} are supported")
    wide = t.cast(x, "float32") if x.dtype in dtypes.HALVES else x
    used = min(have, size // 2 + 1 if inverse and onesided else size)  # elements beyond are cut, lacking ones are zero
    parts = [
        t.squeeze(t.slice_axis(t.slice_axis(wide, -1, i, i + 1), axis, 0, used), -1) for i in range(int(x.shape[-1]))
    ]

    def along(v: Tensor, matrix: Array) -> Tensor:
        constant = t.constant(matrix.astype(dtypes.numpy_dtype(v.dtype)) / np.float32(size if inverse else 1))
        return t.swapaxes(t.matmul(t.swapaxes(v, axis, -1), constant), axis, -1)

    if inverse and onesided:
        terms = [along(v, m) for v, m in zip(parts, real_inverse_roots(used, size))]
        found = [terms[0] - terms[1] if len(terms) == 2 else terms[0]]
    else:
        roots = unit_roots(used, size // 2 + 1 if onesided else size, size, 1 if inverse else -1)
        found = list(bilinear(along, (parts[0], parts[1] if len(parts) == 2 else None), roots))
    return t.cast(t.stack(found, -1), x.dtype)
