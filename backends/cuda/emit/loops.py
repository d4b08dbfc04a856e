"""Emits sequential loops over axes of which a thread block covers only a part at once. All reductions along one axis
whose operands are available share one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import Expr, walk
from ...ir.index import index
from ...ir.loop_fusion import index_bounds, loop_sharing
from ...ir.unfusable import Unfusable
from .frame import CudaPart, CudaScope, Local, nest_of
from .loads import ThreadLoads
from .nest import ThreadNest
from .reductions import Reductions, online_maximum
from .spelling import plus


@dataclass(eq=False)
class ThreadLoops(CudaPart):
    """Emitter part that computes reductions, in a sequential loop along an axis that is longer than a block's part of
    it."""

    loads: ThreadLoads
    accumulators: Reductions

    def reduction(self, e: Expr) -> None:
        """Emit the computation of the reduction `e` into registers, together with all reductions along the same axis
        whose operands are available. There is a loop over the axis if it is longer than a block's part of it.

        Raises Unfusable inside a loop over the same axis.
        """
        frame = self.frame
        dim = frame.dim_of[e.axis]
        if dim in frame.walked:
            if set(frame.groups[dim]) & frame.scope.bound:
                raise Unfusable("a reduction nested in the loop over its own axis")
            self.loop(e)
            return
        found: dict[str, list[str]] = {}
        ready = self._ready(e, dim, rolls=False)
        if self.layout.warm and frame.scope is frame.top:
            self.loads.warm([frame.in_column(x.args[0]) for x in ready], dim)
        for x in ready:
            body = frame.in_column(x.args[0])
            self.loads.need(body)
            name, kept = self.fresh("acc"), self.accumulators.kept_dims(x, body, dim)
            self.accumulators.begin(name, kept, x.value[0])
            self.accumulators.accumulate(x, body, dim, Local(name, kept, frame.wide))
            frame.scope.known[x] = Local(name, kept, frame.wide)
            found.setdefault(x.value[0], []).append(name)
        for monoid, names in found.items():
            self.accumulators.exchange(names, monoid, dim)

    def loop(self, wanted: Expr) -> None:
        """Emit the sequential loop that computes the reduction `wanted`, and all others along its dimension whose
        operands are available."""
        frame = self.frame
        dim = frame.dim_of[wanted.axis]
        ready = self._ready(wanted, dim)
        bodies = {e: frame.in_column(e.args[0]) for e in ready}
        outer = frame.scope
        for body in bodies.values():  # hoist loop-invariant reductions
            for x in (
                walk([body]) if self.layout.shared else nest_of(body)
            ):  # in attention also those that scores are made of
                if x.op == "reduce" and x not in ready and x.axes <= outer.bound and frame.scope.find(x) is None:
                    self.loads.need(x)
        if outer is frame.top:
            if self.layout.warm:
                self.loads.warm(bodies.values(), dim)
            self.loads.early_loads()
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        for e in ready:
            self.accumulators.begin(names[e], self.accumulators.kept_dims(e, bodies[e], dim), e.value[0])
        inner = CudaScope(outer.indent + 1, outer.bound | {e.axis for e in ready} | {*frame.groups[dim]}, outside=outer)
        scales: dict[Expr, Local] = {}
        fetched = CudaScope(outer.indent + 1, set(inner.bound), outside=outer)
        if self.layout.ahead and outer is frame.top:
            for x in dict.fromkeys(x for body in bodies.values() for x in nest_of(body)):
                if x.op == "load" and not x.args and {"n", dim} <= {*frame.spans(x)}:
                    self.loads.fetch(x, inner, fetched)
        first = frame.ahead if all(map(frame.before_wait, inner.known)) else outer
        with self.inside(inner):
            for e in ready:
                for x in nest_of(bodies[e]):
                    if x.op == "load":
                        self.loads.need(x)
            for e in ready:
                if e.value[0] == "max" and any(online_maximum(x) is e for x in ready):
                    self.loads.need(bodies[e])
                    scales[e] = self.accumulators.running(e, bodies[e], dim, names[e])
            for e in ready:
                if e in scales:
                    continue
                self.loads.need(bodies[e])
                acc = Local(names[e], self.accumulators.kept_dims(e, bodies[e], dim), frame.wide)
                if (maximum := online_maximum(e)) in scales:
                    self.accumulators.rescale(acc, scales[maximum])
                self.accumulators.accumulate(e, bodies[e], dim, acc)
        self.walk(dim, inner, outer, (first, fetched) if fetched.lines else None, self._end(ready, dim))
        alone = [e for e in ready if e not in scales and online_maximum(e) not in scales]
        for monoid in dict.fromkeys(e.value[0] for e in alone):
            self.accumulators.exchange([names[e] for e in alone if e.value[0] == monoid], monoid, dim)
        for e in scales:
            self.accumulators.joint(e, names, [x for x in ready if online_maximum(x) is e], dim, bodies)
        for e in ready:
            outer.known[e] = Local(names[e], self.accumulators.kept_dims(e, bodies[e], dim), frame.wide)

    def _end(self, ready: Sequence[Expr], dim: str) -> str:
        """Emit and name the end of a loop whose bound is read from memory, such as the number of positions in use; ""
        if the layout (`seen`) asks for no such bound on the dimension.

        Raises Unfusable unless every maximum over the loop is masked beyond that bound.
        """
        frame = self.frame
        if self.layout.seen != dim:
            return ""
        (axis,) = frame.groups[dim]
        found = [index_bounds(e.args[0], hiding=True) for e in ready if online_maximum(e) not in ready]
        for at, number, strict in found[0] if all(found) else []:
            begin = at - index(axis)
            there = all((at, number, strict) in bounds for bounds in found)
            if there and axis not in begin.axes and not frame.dims(begin.axes) and not frame.spans(number):
                self.loads.need(number)
                nest, name = ThreadNest(frame, ()), self.fresh("end")
                none = f"({nest.position(begin - (not strict), (), begin.range[1])})"  # a mask over numbers up to this one hides every key
                most = f"op::min((long long){nest.scalar(number, 0)}, {none} + {axis.size}LL)"  # larger than any position number
                nest.line(f"const int {name} = op::max({most} - {none}, 0LL);")
                nest.close()
                return name
        raise Unfusable("no mask that bounds the loop")

    def walk(
        self,
        dim: str,
        inner: CudaScope,
        outer: CudaScope,
        fetched: tuple[CudaScope, CudaScope] | None = None,
        end: str = "",
    ) -> None:
        """Write, into the scope `outer`, the sequential loop along the dimension `dim` around the statements of the
        scope `inner`.

        `fetched`: (scope before the loop, scope with the loads of one iteration) of loads that are prefetched by
        cp.async as many iterations earlier as the layout says (`ThreadLayout.ahead`); None without prefetching. `end`:
        CUDA expression of the index at which the loop ends; "" for the end of the dimension.
        """
        frame = self.frame
        size, at, step, ahead = frame.extent[dim], f"{dim}_block", frame.along[dim].block, self.layout.ahead
        first = f"const int {dim}_0 = {at}{plus(frame.thread(dim))};"
        if fetched is not None:
            begin, loads = fetched
            self.line(f"auto fetch_round = [&](int {at}, int round) {{", begin)
            self.line(f"    if ({at} >= {size}) return;", begin)
            self.line(f"    {first}", begin)
            begin.lines += loads.lines
            self.line("};", begin)
            self.line(
                f"for (int round = 0; round < {ahead}; ++round) fetch_round(round * {step}, round), end_round();", begin
            )
        more = ", round = 0" if fetched is not None else ""
        turn = f", round = (round + 1) % {ahead + 1}" if fetched is not None else ""
        self.line(f"for (int {at} = 0{more}; {at} < {end or size}; {at} += {step}{turn}) {{", outer)
        self.line(f"    {first}", outer)
        if fetched is not None:
            self.line(f"    fetch_round({at} + {ahead * step}, (round + {ahead}) % {ahead + 1});", outer)
            self.line("    end_round();", outer)
            self.line(f"    await_round<{ahead}>();", outer)
        outer.lines += inner.lines
        self.line("}", outer)

    def _ready(self, wanted: Expr, dim: str, rolls: bool = True) -> list[Expr]:
        """Reductions along a dimension whose operands are available in this scope and that can share a loop with
        `wanted`, inner reductions first.

        With `rolls`, includes sums relative to a running maximum in the same loop (online softmax). Operands of
        `wanted` that must come first are computed here.
        """
        frame = self.frame
        same = [
            e for e in self.kernel.reductions
            if frame.dim_of.get(e.axis) == dim and e.axes <= frame.scope.bound and frame.scope.find(e) is None
        ]  # fmt: skip
        chosen = loop_sharing(same, online_maximum if rolls else lambda e: None)
        if wanted in chosen:
            return chosen
        first = next((x for x in walk(wanted.args) if x in same), None)  # its own operands first
        if first is None:
            raise Unfusable("a reduction over an axis that no enclosing loop binds")
        self.reduction(first)
        return self._ready(wanted, dim, rolls)
