"""Block-level reductions: per-thread accumulation, then warp shuffles, then shared memory across warps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.kernel import NEUTRAL, Expr, Unfusable, factors, walk
from ...ir.loop_fusion import power_of, rolled, sharing
from .frame import Local
from .loads import Loads
from .nest import Nest
from .spelling import COMBINE, CTYPES, enclosed


class Reductions(Loads):
    """Accumulators of a kernel, and their combination across threads."""

    def _kept_dims(self, e: Expr, body: Expr, dim: str) -> tuple[str, ...]:
        """The dimensions of a reduction's result. Unfusable for unsupported monoids."""
        if e.kind != "float" or e.value[0] not in COMBINE:
            raise Unfusable(f"a reduction by {e.value[0]} of {e.kind}")
        return tuple(d for d in self.spans(body) if d != dim)

    def _begin(self, name: str, kept: Sequence[str], monoid: str) -> None:
        """Declare an accumulator, initialized to the monoid's neutral element."""
        count = self.count(kept)
        self._check_held(4 * count)
        self.counts[name] = count
        start = self.spelling.number(NEUTRAL[monoid])
        self.line(f"{CTYPES[self.wide]} {name}[{count}]{' = {}' if monoid == 'sum' else ''};")
        if monoid != "sum":
            self.line(f"fill({name}, {start});")

    def _accumulate(self, e: Expr, body: Expr, dim: str, acc: Local) -> None:
        """Emit the loop nest that accumulates this thread's elements."""
        if dim not in self.spans(body):
            raise Unfusable("a reduction along an axis that its body does not have")
        nest = Nest(self, self.spans(body))
        term = nest.scalar(body, nest.deepest)
        if self.ragged(dim) and not (e.value[0] == "sum" and vanishes(body)):
            neutral = self.spelling.number(NEUTRAL[e.value[0]])
            term = f"{nest.mask(dim)} ? {enclosed(term)} : {neutral}"
        at = nest.at(acc)
        if e.value[0] == "sum":
            nest.line(f"{at} += {term};")
        elif e.value[0] == "prod":
            nest.line(f"{at} *= {term};")
        else:
            nest.line(f"{at} = op::{e.value[0]}({at}, {term});")
        nest.close()

    def _exchange(self, names: Sequence[str], monoid: str, dim: str) -> None:
        """Combine accumulators across the threads along a dimension: shuffles within a warp, shared memory across
        warps."""
        threads, stride = self.along[dim].threads, self.layout.stride(dim)
        if threads == 1 or not names:
            return
        lanes = min(threads, 32 // stride) if stride < 32 else 1
        if threads == lanes:
            for name in names:
                self.line(f"across_warp<{COMBINE[monoid]}, {stride}, {threads}>({name});")
            return
        if self.scope is not self.top:
            self.line("__syncthreads();")
        place = f"shared + {self.shared}" if self.shared else "shared"
        self.shared += self.layout.threads // lanes * sum(self.counts[n] for n in names)
        kind = f"{COMBINE[monoid]}, {stride}, {threads}, {self.layout.threads}"
        self.line(f"across<{kind}>({place}, {', '.join(names)});")

    def _ready(self, wanted: Expr, dim: str, rolls: bool = True) -> list[Expr]:
        """Reductions along a dimension that are ready in this scope and can share a loop with `wanted`, inner ones
        first.

        With `rolls`, includes sums relative to a running maximum in the same loop (online softmax). Operands of
        `wanted` that must come first are computed here.
        """
        same = [
            e for e in self.kernel.reductions
            if self.dim_of.get(e.axis) == dim and e.axes <= self.scope.bound and self.scope.find(e) is None
        ]  # fmt: skip
        chosen = sharing(same, rolls_on if rolls else lambda e: None)
        if wanted in chosen:
            return chosen
        first = next((x for x in walk(wanted.args) if x in same), None)  # its own operands first
        if first is None:
            raise Unfusable("a reduction whose axes are not all there")
        self.reduction(first)
        return self._ready(wanted, dim, rolls)

    def _running(self, e: Expr, body: Expr, dim: str, name: str) -> Local:
        """One iteration of a running maximum (online softmax): updates the maximum and returns the factor that rescales
        sums relative to the old one."""
        kept, ctype = self._kept_dims(e, body, dim), CTYPES[self.wide]
        new, safe, scale = (Local(self.fresh(s), kept, self.wide) for s in ("new", "safe", "scale"))
        old = Local(name, kept, self.wide)
        count = self.count(kept)
        self.line(f"{ctype} {new.name}[{count}], {safe.name}[{count}], {scale.name}[{count}];")
        nest = Nest(self, kept)
        nest.line(f"{nest.at(new)} = {nest.at(old)};")
        nest.close()
        self._accumulate(e, body, dim, new)
        nest = Nest(self, kept)
        nest.line(f"{nest.at(safe)} = op::finite({nest.at(new)});")
        nest.line(f"{nest.at(scale)} = op::{power_of(self.kernel, e)}({nest.at(old)} - {nest.at(safe)});")
        nest.line(f"{nest.at(old)} = {nest.at(new)};")
        nest.close()
        self.scope.known[e] = safe
        self.scope.safe.add(e)
        return scale

    def _rescale(self, acc: Local, scale: Local) -> None:
        """Multiply an accumulator by the rescaling factor of a running maximum."""
        nest = Nest(self, acc.dims)
        nest.line(f"{nest.at(acc)} *= {nest.at(scale)};")
        nest.close()

    def _joint(
        self, e: Expr, names: Mapping[Expr, str], sums: Sequence[Expr], dim: str, bodies: Mapping[Expr, Expr]
    ) -> None:
        """Combine a running maximum and the sums relative to it across the threads along a dimension (online
        softmax)."""
        if self.along[dim].threads == 1:
            return
        kept = self._kept_dims(e, bodies[e], dim)
        own = Local(names[e], kept, self.wide)
        before = Local(self.fresh("own"), kept, self.wide)
        self.line(f"{CTYPES[self.wide]} {before.name}[{self.count(kept)}];")
        nest = Nest(self, kept)
        nest.line(f"{nest.at(before)} = {nest.at(own)};")
        nest.close()
        self._exchange([names[e]], "max", dim)
        for x in sums:
            acc = Local(names[x], self._kept_dims(x, bodies[x], dim), self.wide)
            nest = Nest(self, acc.dims)
            nest.line(
                f"{nest.at(acc)} *= op::{power_of(self.kernel, e)}({nest.at(before)} - op::finite({nest.at(own)}));"
            )
            nest.close()
        self._exchange([names[x] for x in sums], "sum", dim)


def rolls_on(e: Expr) -> Expr | None:
    """The maximum that a sum of exponentials is relative to along its own axis, or None."""
    return rolled(e, e.axis)


def vanishes(body: Expr) -> bool:
    """Whether a body is 0 wherever out-of-bounds loads give 0 (a product of loads and constants): the mask can be
    omitted."""
    over, under = factors(body)
    return not under and any(f.op == "load" for f in over) and all(f.op in ("load", "const") for f in over)
