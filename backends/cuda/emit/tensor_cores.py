"""Emits reductions of skinny GEMM (few rows) kernels on tensor cores.

fragments.py computes them warp by warp; the warps' partial sums are added in the kernel's thread layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...ir.expr import Expr
from ...ir.unfusable import Unfusable
from .fragment_frame import WIDTH, FragmentFrame
from .fragments import Fragments, PartialSums
from .frame import CudaPart, Local, ThreadFrame
from .loads import ThreadLoads
from .loops import ThreadLoops
from .nest import ThreadNest
from .packed_fragments import PackedFragments
from .packed_sides import span_of
from .reductions import Reductions
from .spelling import sum_of
from .thread_layout import DimensionThreads, ThreadLayout

_TEXT = [Path(__file__).with_name(f"shared_{name}.cuh").read_text(encoding="utf-8") for name in ("access", "sums")]
SHARED_ACCESS, SHARED_SUMS = _TEXT[0], "".join(_TEXT)


@dataclass(eq=False)
class TensorCores(CudaPart):
    """Emitter part for matrix products on tensor cores, in kernels whose thread layout arranges warps for them (skinny
    GEMM)."""

    loads: ThreadLoads

    def products(self) -> None:
        """Emit the computation of all reductions along K from mma fragments, and the addition of the warps' partial
        sums in the kernel's thread layout.

        Raises Unfusable if the kernel has no matrix product that tensor cores can compute.
        """
        frame, warps = self.frame, self.layout.warps
        assert warps is not None
        axes = [e.axis for e in self.shape.dots if e.axis in self.shape.outer]
        if not axes:
            raise Unfusable("no matrix product for tensor cores")
        axis = max(axes, key=lambda a: a.size)
        if warps.packed:
            wide = span_of(self.kernel, self.shape, axis)
            if not wide:
                raise Unfusable("a product without a packed weight")
            own = FragmentFrame(frame, axis, warps, wide)
            fragments: Fragments = PackedFragments(own, axis)
        else:
            own = FragmentFrame(frame, axis, warps)
            fragments = Fragments(own, axis)
        if any(frame.dim_of.get(a) in frame.walked - {own.dim} for e in fragments.dots for a in e.axes):
            raise Unfusable("a product whose columns are looped over")
        if self.layout.warm:
            frame.warm += fragments.warmed()
        names = {e: self.fresh("sum") for e in getattr(fragments, "alone", ())}
        own.counter = frame.counter
        for name in names.values():
            self.line(f"float {name}[1];")
        if isinstance(fragments, PackedFragments) and names:
            fragments.between = partial(self._block_sums, fragments, names)
        fragments.stage()
        frame.ahead.lines += own.ahead.lines
        frame.codes = own.codes
        found: dict[Expr, PartialSums] = {}
        for e in (*fragments.dots, *fragments.sums):
            found[e] = fragments.put(e, frame.shared)
            frame.shared += found[e].apart * warps.along
        self.line("{")
        frame.top.lines += own.top.lines
        self.line("}")
        self.line("__syncthreads();")
        frame.counter = own.counter
        for e, put in found.items():
            frame.top.known[e] = self._gathered(e, put, warps.along)
        if warps.joint:
            frame.beside["CUDA_SHARED_SUMS"] = SHARED_SUMS
        frame.top.known |= {e: Local(name, (), frame.wide) for e, name in names.items()}

    def _block_sums(self, fragments: PackedFragments, names: Mapping[Expr, str]) -> None:
        """Emit sums along K of one row, computed by all threads of the block, into the variables `names`.

        They are exchanged in shared memory of their own, behind the ring of codes if there is one.
        """
        inner, dim, threads = fragments.frame, fragments.frame.dim, self.layout.threads
        along = DimensionThreads(threads, WIDTH, -(-inner.size // (threads * WIDTH)))
        layout = ThreadLayout({dim: along}, self.layout.early, 0, threads)
        frame = ThreadFrame(self.kernel, layout, self.frame.name, self.shape)
        frame.param, frame.place, frame.counter = inner.param, inner.place, inner.counter
        frame.shared = 4 * inner.codes or self.frame.shared
        frame.top.known |= {e: Local("", (), frame.wide) for e in fragments.dots}
        loads = ThreadLoads(frame)
        loops = ThreadLoops(frame, loads, Reductions(frame, loads))
        for e in names:
            if e not in frame.top.known:
                loops.reduction(e)
        fragments.line("{")
        fragments.line(f"const int {dim}_0 = thread * {WIDTH};")
        inner.scope.lines += frame.top.lines
        for e, name in names.items():
            fragments.line(f"{name}[0] = {frame.top.known[e].name}[0];")
        fragments.line("}")
        inner.counter = frame.counter
        if inner.codes:
            inner.codes = -(-frame.shared // 4)
        else:
            self.frame.shared = frame.shared

    def _gathered(self, e: Expr, put: PartialSums, parts: int) -> Local:
        """Emit the sum of the `parts` warps' partial sums of a reduction; returns it in the kernel's thread layout."""
        frame = self.frame
        local = Local(self.fresh("acc"), frame.spans(e), frame.wide)
        self.loads.check_held(4 * frame.count(local.dims))
        self.line(f"float {local.name}[{frame.count(local.dims)}];")
        nest = ThreadNest(frame, local.dims)
        spots = [sum_of("shared", put.first)]
        if "m" in local.dims:
            spots.append(nest.coordinate("m") + (f" * {put.row}" if put.row > 1 else ""))
        for d in (d for d in local.dims if d != "m"):
            spots.append(nest.coordinate(d) + (f" % {frame.along['n'].block}" if d == "n" else ""))
        nest.line(f"{nest.at(local)} = gathered<{parts}, {put.apart}>({' + '.join(spots)});")
        nest.close()
        return local
