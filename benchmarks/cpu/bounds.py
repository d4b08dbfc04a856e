"""The least time that a model can take on this CPU: its arithmetic at the calibrated rate, its bytes at the calibrated
bandwidth, whichever is longer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tensor_graphs.costdb.keys.key import Work, device_key
from tensor_graphs.costdb.price.roofline import DeviceRoofline
from tensor_graphs.costdb.store.store import Store, default_root
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.extract.model.work import graph_flops


@dataclass(frozen=True)
class Bound:
    """Lower bound on the time of a graph, with its parts in ms (arithmetic, memory traffic)."""

    flops: float
    bytes: float
    flops_ms: float
    bytes_ms: float

    @property
    def ms(self) -> float:
        """The bound in ms: the longer part."""
        return max(self.flops_ms, self.bytes_ms)


ORDER = 2048  # of the matrices whose product gives the rate of arithmetic
TURNS = 8


def roofline() -> DeviceRoofline:
    """Rates of this CPU, calibrated now in this process; of all calibrations in the store the best one counts.

    The rate of arithmetic is the higher one of NumPy's and of Torch's packed products, because on some CPUs NumPy's
    library uses half of the vector unit.
    """
    from tensor_graphs.costdb.store.calibrate import measure

    store = Store(default_root())
    store.add(measure())
    found = store.predictor().rooflines.of(device_key(0), "torch")
    return replace(found, flops_per_us=max(found.flops_per_us, torch_rate()))


def torch_rate() -> float:
    """Operations per µs of Torch's float32 product of two matrices, the best of several runs.

    The weight is packed by oneDNN if Torch has it.
    """
    import torch

    x, w = torch.rand(ORDER, ORDER), torch.rand(ORDER, ORDER)
    call = lambda: torch.mm(x, w)
    if torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(w, ORDER)
        call = lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    best = float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return 2.0 * ORDER**3 / best / 1e6


def bound(graph: Graph, line: DeviceRoofline, inside: float = 0.0) -> Bound:
    """Lower bound on the time of a graph, if weights, inputs and outputs move once.

    `inside`: bytes of these that stay in the caches between calls.
    """
    leaves = [*graph.inputs, *graph.leaves("param")]
    moved = float(sum(t.type.nbytes for t in [*leaves, *graph.outputs]))
    work = Work(graph_flops(list(graph.roots)), moved)
    return Bound(
        work.flops, moved, work.flops / line.flops_per_us / 1e3, max(0.0, moved - inside) / line.bytes_per_us / 1e3
    )
