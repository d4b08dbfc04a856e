"""Names values and kernels of an e-graph: c12, c12@1,64, np.matmul(x=c3, w=c4)."""

from __future__ import annotations

from ..egraph.types.dims import concrete
from ..egraph.view.view import EGraphView
from ..extract.model.kernel import Candidate, Vertex, contiguous


def value_name(view: EGraphView, vertex: Vertex) -> str:
    """Name of a value in a layout: its e-class, with the strides unless row-major."""
    dense = vertex.strides == contiguous(concrete(view.types[vertex.cls].shape))
    return f"c{vertex.cls}" + ("" if dense else "@" + ",".join(map(str, vertex.strides)))


def kernel_name(view: EGraphView, candidate: Candidate) -> str:
    """Name of a candidate kernel: template name and operands."""
    return f"{candidate.template.name}({', '.join(f'{o}={value_name(view, v)}' for o, v in candidate.inputs)})"
