"""Writes the CUDA text of loads in a skinny GEMM (few rows) with quantized weights: loops over tiles of 8 columns, and
the addresses that a thread loads from in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.index import WIDE, Axis, index
from .code_forms import BYTES
from .fragment_frame import FragmentFrame
from .frame import CudaPart
from .nest import ThreadNest
from .spelling import span


@dataclass(eq=False)
class CodeTiles(CudaPart):
    """Emitter part for the loads of quantized codes (packed integers): loops over tiles of 8 columns, and the addresses
    from which a thread loads in them."""

    frame: FragmentFrame

    def each(self, body: Callable[[], None], pair: str = "") -> None:
        """Emit a loop over a warp's tiles of 8 columns, whose text `body` emits; with `pair`, the name of a variable,
        over the tile with that number and the next only. In the body, indices along K are those of the first code of a
        vector."""
        frame = self.frame
        first, end = (pair, f"{pair} + 2") if pair else ("0", str(frame.warps.tiles))
        self.line("#pragma unroll")
        self.line(f"for (int n_i = {first}; n_i < {end}; ++n_i) {{")
        self.line(f"const int {frame.dim}_i = 0, {frame.dim}_v = 0;")
        body()
        self.line("}")

    def single(self) -> ThreadNest:
        """New loop nest without loops, for statements that `body` emits inside `each`."""
        return ThreadNest(self.frame, ())

    def address(self, nest: ThreadNest, x: Expr) -> tuple[str, str]:
        """CUDA expressions of two addresses: that of the 16 bytes of quantized codes that a thread loads by `x` at the
        current point of `nest`, and that of the tensor's first byte, to be read instead where the first is out of
        bounds."""
        frame = self.frame
        operand, at, _, _ = x.value
        (axis,) = frame.groups[frame.dim]
        first, row = f"(const unsigned char*){frame.param[operand]}", at.replaced({axis: index(0)})
        place = self.bytes_of(f"{frame.dim}_0")
        return f"{first} + {nest.position(row, (), span(at, ()))} + {place}", first

    def bytes_of(self, elements: str) -> str:
        """CUDA expression of how many bytes hold a number of codes along K, an atomic expression."""
        return elements if self.frame.span == BYTES else f"({elements} >> 1)"

    def column_stride(self, x: Expr) -> int | None:
        """Bytes from a column of codes to the next in the load `x`, if they are equally far apart and the columns are
        one axis; else None."""
        columns, at = self.frame.groups["n"], x.value[1]
        linear = len(columns) == 1 and all(isinstance(a, Axis) or columns[0] not in a.index.axes for a, _ in at.terms)
        return dict(at.terms).get(columns[0], 0) if linear else None

    def own_address(self, x: Expr, apart: int) -> str:
        """CUDA expression of the address of a thread's first codes of its first column in the load `x`, whose columns
        are `apart` bytes apart, in the iteration at the beginning of K."""
        frame = self.frame
        operand, at, _, _ = x.value
        (axis,), (column,) = frame.groups[frame.dim], frame.groups["n"]
        rest = self.single().position(at.replaced({axis: index(0), column: index(0)}), (), span(at, ()))
        wide = "LL" if span(at, ()) >= WIDE else ""
        return f"(const unsigned char*){frame.param[operand]} + {rest} + n_0 * {apart}{wide} + {self.bytes_of('own')}"

    def place(self, nest: ThreadNest, x: Expr) -> str:
        """CUDA expression of the address of the element that a thread loads by `x` at the current point of `nest`."""
        operand, at, _, _ = x.value
        return f"{self.frame.param[operand]} + {nest.position(at, (), span(at, ()))}"


__all__ = ["CodeTiles"]
