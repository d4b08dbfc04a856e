"""Frame of skinny GEMM on tensor cores: dimensions of a kernel as mma fragments."""

from __future__ import annotations

from ...ir.index import Axis
from .frame import CudaScope, Frame
from .thread_layout import Along, Warps

CHUNK = 32  # K elements of a fragment
WIDTH = 8  # columns of a fragment
HEIGHT = 16  # rows of a fragment


class FragmentFrame(Frame):
    """Frame of mma fragments: a kernel's rows and columns distributed over a block's threads as tensor cores want them.

    It exists beside the thread layout of the epilogue. `dim` is the dimension of K, of `size` elements; a loop
    iteration of all warps covers `step` elements.
    """

    def __init__(self, outer: Frame, axis: Axis, warps: Warps) -> None:
        super().__init__(outer.kernel, outer.layout, outer.name, outer.shape)
        self.param, self.counter, self.place, self.warps = outer.param, outer.counter, outer.place, warps
        self.dim, self.block = self.dim_of[axis], outer.along["n"].block
        self.heights = -(-max(1, self.extent["m"]) // HEIGHT)
        self.along = {d: Along(8, 1, -(-self.extent[d] // WIDTH)) for d in self.order}
        self.along |= {"m": Along(8, 1, 2 * self.heights), "n": Along(8, 1, warps.tiles)}
        self.along |= {self.dim: Along(4, 8, warps.depth)}
        self.walked, self.size, self.step = {self.dim}, axis.size, CHUNK * warps.depth * warps.along
        bound = {a for d in ("m", "n", self.dim) for a in self.groups[d]} | {*self.shape.batch, *self.shape.inner}
        self.scope = self.top = CudaScope(2, bound)

    def ragged(self, dim: str) -> bool:
        """Whether some fragments of a block lie beyond the end of a dimension."""
        whole = {self.dim: self.step, "n": self.warps.tiles * WIDTH * self.warps.across}
        return self.extent[dim] % whole.get(dim, self.along[dim].block) != 0
