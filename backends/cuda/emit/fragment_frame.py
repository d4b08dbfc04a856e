"""Holds the emitter's state for a skinny GEMM (few rows) on tensor cores, in which rows and columns are distributed
over threads as mma fragments."""

from __future__ import annotations

from ...ir.index import Axis
from ...ir.unfusable import Unfusable
from .frame import CudaScope, ThreadFrame
from .spelling import enclosed
from .thread_layout import DimensionThreads, Warps

CHUNK = 32  # K elements of a fragment
WIDTH = 8  # columns of a fragment
HEIGHT = 16  # rows of a fragment


class FragmentFrame(ThreadFrame):
    """State of the emitter of one kernel whose rows and columns are distributed over a block's threads as mma fragments
    are.

    It is used for the main loop; the epilogue has another thread layout. `dim` names the dimension of K, which has
    `size` elements for this block (a part of K if a cluster shares it); an iteration of the loop, over all warps,
    covers `step` elements of it. Of each chunk of K, a thread holds `span` contiguous elements (8, or more with packed
    weights). `first_column` and `first_element` are CUDA expressions of where the block begins along columns and K; ""
    for 0.
    """

    def __init__(self, outer: ThreadFrame, axis: Axis, warps: Warps, span: int = WIDTH) -> None:
        super().__init__(outer.kernel, outer.layout, outer.name, outer.shape)
        self.param, self.counter, self.place, self.warps = outer.param, outer.counter, outer.place, warps
        self.dim, self.block = self.dim_of[axis], outer.along["n"].block
        tile, cluster = enclosed(self.place["n"]), warps.cluster
        self.first_column = f"{tile} * {self.block}" if self.place["n"] else ""
        self.first_element = ""
        if cluster > 1:
            if not self.place["n"] or -(-self.extent["n"] // self.block) % cluster or axis.size % cluster:
                raise Unfusable("columns or a K that the blocks of a cluster do not share evenly")
            self.first_column = f"{tile} / {cluster} * {self.block * cluster}"
            self.first_element = f"{tile} % {cluster} * {axis.size // cluster}"
        self.heights = -(-max(1, self.extent["m"]) // HEIGHT)
        self.along = {d: DimensionThreads(8, 1, -(-self.extent[d] // WIDTH)) for d in self.order}
        self.along |= {"m": DimensionThreads(8, 1, 2 * self.heights), "n": DimensionThreads(8, 1, warps.tiles)}
        self.along |= {self.dim: DimensionThreads(4, 8, warps.depth)}
        self.walked, self.size = {self.dim}, axis.size // warps.cluster
        self.step = CHUNK * warps.depth * warps.along
        self.span = span
        if span > WIDTH:  # neighbours in vectors of 8
            self.along[self.dim] = DimensionThreads(1, WIDTH, span // WIDTH)
            self.step = CHUNK // WIDTH * span * warps.along
        bound = {a for d in ("m", "n", self.dim) for a in self.groups[d]} | {*self.shape.batch, *self.shape.inner}
        self.scope = self.top = CudaScope(2, bound)
        self.ahead, self.constant = CudaScope(1, set(bound)), outer.constant

    def ragged(self, dim: str) -> bool:
        """Whether some of a block's operand fragments lie beyond the end of the dimension `dim`, so that bounds are
        checked."""
        whole = {self.dim: self.step, "n": self.warps.tiles * WIDTH * self.warps.across}
        return self.extent[dim] % whole.get(dim, self.along[dim].block) != 0
