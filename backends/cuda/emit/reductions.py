"""Block-level reductions: per-thread accumulation, then warp shuffles, then shared memory across warps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.expr import NEUTRAL, Expr, factors
from ...ir.loop_fusion import exponential_of, shared_maximum
from ...ir.unfusable import Unfusable
from .frame import CudaPart, Local
from .loads import ThreadLoads
from .nest import ThreadNest
from .spelling import COMBINE, CTYPES, enclosed


@dataclass(eq=False)
class Reductions(CudaPart):
    """Emitter part for reductions: emits their accumulators and the code that combines these across threads."""

    loads: ThreadLoads

    def kept_dims(self, e: Expr, body: Expr, dim: str) -> tuple[str, ...]:
        """The dimensions along which the result of the reduction `e` varies: those of its `body` (the reduced
        expression) without the reduced one, `dim`.

        Raises Unfusable for a monoid (combining operation such as sum or max) without CUDA code, and for reductions of
        integers or bools.
        """
        if e.kind != "float" or e.value[0] not in COMBINE:
            raise Unfusable(f"a reduction by {e.value[0]} of {e.kind}")
        return tuple(d for d in self.frame.spans(body) if d != dim)

    def begin(self, name: str, kept: Sequence[str], monoid: str) -> None:
        """Emit the declaration of the accumulator `name` over the dimensions `kept`, initialized to the neutral element
        of `monoid` ("sum", "max", ...).

        Raises Unfusable if it needs too many registers (`ThreadLoads.check_held`).
        """
        frame = self.frame
        count = frame.count(kept)
        self.loads.check_held(4 * count)
        frame.counts[name] = count
        start = frame.spelling.number(NEUTRAL[monoid])
        self.line(f"{CTYPES[frame.wide]} {name}[{count}]{' = {}' if monoid == 'sum' else ''};")
        if monoid != "sum":
            self.line(f"fill({name}, {start});")

    def accumulate(self, e: Expr, body: Expr, dim: str, acc: Local) -> None:
        """Emit the loop nest that accumulates a thread's elements of `body`, the reduced expression, along the
        dimension `dim`, into the register variable `acc`.

        `e`: the reduction. Raises Unfusable if `body` does not vary along `dim`.
        """
        frame = self.frame
        if dim not in frame.spans(body):
            raise Unfusable("a reduction over an axis along which its body is constant")
        nest = ThreadNest(frame, frame.spans(body))
        term = nest.scalar(body, nest.deepest)
        if frame.ragged(dim) and not (e.value[0] == "sum" and is_zero_out_of_bounds(body)):
            neutral = frame.spelling.number(NEUTRAL[e.value[0]])
            term = f"{nest.mask(dim)} ? {enclosed(term)} : {neutral}"
        at = nest.at(acc)
        if e.value[0] == "sum":
            nest.line(f"{at} += {term};")
        elif e.value[0] == "prod":
            nest.line(f"{at} *= {term};")
        else:
            nest.line(f"{at} = op::{e.value[0]}({at}, {term});")
        nest.close()

    def exchange(self, names: Sequence[str], monoid: str, dim: str) -> None:
        """Emit code that combines the accumulators `names` across the threads along the dimension `dim`, by the monoid
        ("sum", "max", ...): shuffles within a warp, shared memory across warps."""
        frame = self.frame
        threads, stride = frame.along[dim].threads, self.layout.stride(dim)
        if threads == 1 or not names:
            return
        lanes = min(threads, 32 // stride) if stride < 32 else 1
        if threads == lanes:
            for name in names:
                self.line(f"across_warp<{COMBINE[monoid]}, {stride}, {threads}>({name});")
            return
        if frame.scope is not frame.top:
            self.line("__syncthreads();")
        place = f"shared + {frame.shared}" if frame.shared else "shared"
        frame.shared += self.layout.threads // lanes * sum(frame.counts[n] for n in names)
        kind = f"{COMBINE[monoid]}, {stride}, {threads}, {self.layout.threads}"
        self.line(f"across<{kind}>({place}, {', '.join(names)});")

    def running(self, e: Expr, body: Expr, dim: str, name: str) -> Local:
        """Emit one iteration of the running maximum `e` of the expression `body` along `dim`, kept in the variable
        `name` (online softmax).

        Returns the register variable of the factor by which the sums relative to the old maximum must be multiplied.
        """
        frame = self.frame
        kept, ctype = self.kept_dims(e, body, dim), CTYPES[frame.wide]
        new, safe, scale = (Local(self.fresh(s), kept, frame.wide) for s in ("new", "safe", "scale"))
        old = Local(name, kept, frame.wide)
        count = frame.count(kept)
        self.line(f"{ctype} {new.name}[{count}], {safe.name}[{count}], {scale.name}[{count}];")
        nest = ThreadNest(frame, kept)
        nest.line(f"{nest.at(new)} = {nest.at(old)};")
        nest.close()
        self.accumulate(e, body, dim, new)
        nest = ThreadNest(frame, kept)
        nest.line(f"{nest.at(safe)} = op::finite({nest.at(new)});")
        nest.line(f"{nest.at(scale)} = op::{exponential_of(self.kernel, e)}({nest.at(old)} - {nest.at(safe)});")
        nest.line(f"{nest.at(old)} = {nest.at(new)};")
        nest.close()
        frame.scope.known[e] = safe
        frame.scope.safe.add(e)
        return scale

    def rescale(self, acc: Local, scale: Local) -> None:
        """Emit the multiplication of the accumulator `acc` by `scale`, the factor that `running` returned."""
        nest = ThreadNest(self.frame, acc.dims)
        nest.line(f"{nest.at(acc)} *= {nest.at(scale)};")
        nest.close()

    def joint(
        self, e: Expr, names: Mapping[Expr, str], sums: Sequence[Expr], dim: str, bodies: Mapping[Expr, Expr]
    ) -> None:
        """Emit code that combines the running maximum `e`, and the sums `sums` relative to it, across the threads along
        the dimension `dim` (online softmax).

        `names`: reduction -> variable of its accumulator; `bodies`: reduction -> the expression that it reduces.
        """
        frame = self.frame
        if frame.along[dim].threads == 1:
            return
        kept = self.kept_dims(e, bodies[e], dim)
        own = Local(names[e], kept, frame.wide)
        before = Local(self.fresh("own"), kept, frame.wide)
        self.line(f"{CTYPES[frame.wide]} {before.name}[{frame.count(kept)}];")
        nest = ThreadNest(frame, kept)
        nest.line(f"{nest.at(before)} = {nest.at(own)};")
        nest.close()
        self.exchange([names[e]], "max", dim)
        for x in sums:
            acc = Local(names[x], self.kept_dims(x, bodies[x], dim), frame.wide)
            nest = ThreadNest(frame, acc.dims)
            nest.line(
                f"{nest.at(acc)} *= op::{exponential_of(self.kernel, e)}({nest.at(before)} - op::finite({nest.at(own)}));"
            )
            nest.close()
        self.exchange([names[x] for x in sums], "sum", dim)


def online_maximum(e: Expr) -> Expr | None:
    """The maximum m with which the sum `e`, of exp(a - m) times other factors, can share its loop, taken along the
    sum's own axis (online softmax); None for other sums."""
    return shared_maximum(e, e.axis)


def is_zero_out_of_bounds(body: Expr) -> bool:
    """Whether the expression `body` is 0 wherever its loads are out of bounds (such loads give 0), so that a sum of it
    needs no mask.

    True for a product of loads and constants.
    """
    over, under = factors(body)
    return not under and any(f.op == "load" for f in over) and all(f.op in ("load", "const") for f in over)
