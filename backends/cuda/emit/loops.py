"""Loops over axes that a block does not cover: all reductions along an axis that are ready share one loop."""

from __future__ import annotations

from ...ir.kernel import Expr, Unfusable
from .frame import CudaScope, Local, nest_of
from .reductions import Reductions, rolls_on
from .spelling import plus


class Loops(Reductions):
    """Emitter of reductions, in a loop where a block does not cover their axis."""

    def reduction(self, e: Expr) -> None:
        """Compute a reduction into registers, with all others along its axis that are ready; in a loop if a block does
        not cover the axis."""
        dim = self.dim_of[e.axis]
        if dim in self.walked:
            if set(self.groups[dim]) & self.scope.bound:
                raise Unfusable("a reduction inside the loop over its own axis")
            self.loop(e)
            return
        found: dict[str, list[str]] = {}
        for x in self._ready(e, dim, rolls=False):
            body = self.in_column(x.args[0])
            self.need(body)
            name, kept = self.fresh("acc"), self._kept_dims(x, body, dim)
            self._begin(name, kept, x.value[0])
            self._accumulate(x, body, dim, Local(name, kept, self.wide))
            self.scope.known[x] = Local(name, kept, self.wide)
            found.setdefault(x.value[0], []).append(name)
        for monoid, names in found.items():
            self._exchange(names, monoid, dim)

    def loop(self, wanted: Expr) -> None:
        """Emit the loop that computes a reduction and all others along its dimension that are ready."""
        dim = self.dim_of[wanted.axis]
        ready = self._ready(wanted, dim)
        bodies = {e: self.in_column(e.args[0]) for e in ready}
        outer = self.scope
        for body in bodies.values():  # hoist loop-invariant reductions
            for x in nest_of(body):
                if x.op == "reduce" and x not in ready and x.axes <= outer.bound and self.scope.find(x) is None:
                    self.need(x)
        if outer is self.top:
            self._early_loads()
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        for e in ready:
            self._begin(names[e], self._kept_dims(e, bodies[e], dim), e.value[0])
        inner = CudaScope(outer.indent + 1, outer.bound | {e.axis for e in ready} | {*self.groups[dim]}, outside=outer)
        scales: dict[Expr, Local] = {}
        fetched = CudaScope(outer.indent + 1, set(inner.bound), outside=outer)
        if self.layout.ahead and outer is self.top:
            for x in dict.fromkeys(x for body in bodies.values() for x in nest_of(body)):
                if x.op == "load" and not x.args and {"n", dim} <= {*self.spans(x)}:
                    self._fetch(x, inner, fetched)
        with self.inside(inner):
            for e in ready:
                for x in nest_of(bodies[e]):
                    if x.op == "load":
                        self.need(x)
            for e in ready:
                if e.value[0] == "max" and any(rolls_on(x) is e for x in ready):
                    self.need(bodies[e])
                    scales[e] = self._running(e, bodies[e], dim, names[e])
            for e in ready:
                if e in scales:
                    continue
                self.need(bodies[e])
                acc = Local(names[e], self._kept_dims(e, bodies[e], dim), self.wide)
                if (maximum := rolls_on(e)) in scales:
                    self._rescale(acc, scales[maximum])
                self._accumulate(e, bodies[e], dim, acc)
        self._walk(dim, inner, outer, fetched if fetched.lines else None)
        alone = [e for e in ready if e not in scales and rolls_on(e) not in scales]
        for monoid in dict.fromkeys(e.value[0] for e in alone):
            self._exchange([names[e] for e in alone if e.value[0] == monoid], monoid, dim)
        for e in scales:
            self._joint(e, names, [x for x in ready if rolls_on(x) is e], dim, bodies)
        for e in ready:
            outer.known[e] = Local(names[e], self._kept_dims(e, bodies[e], dim), self.wide)

    def _walk(self, dim: str, inner: CudaScope, outer: CudaScope, fetched: CudaScope | None = None) -> None:
        """Close a loop over a dimension: header, first coordinate, body. With `fetched`, loads are prefetched some
        iterations ahead (cp.async)."""
        size, at, step, ahead = self.extent[dim], f"{dim}_block", self.along[dim].block, self.layout.ahead
        first = f"const int {dim}_0 = {at}{plus(self._thread(dim))};"
        if fetched is not None:
            self.line(f"auto fetch_round = [&](int {at}, int round) {{", outer)
            self.line(f"    if ({at} >= {size}) return;", outer)
            self.line(f"    {first}", outer)
            outer.lines += fetched.lines
            self.line("};", outer)
            self.line(
                f"for (int round = 0; round < {ahead}; ++round) fetch_round(round * {step}, round), end_round();", outer
            )
        more = ", round = 0" if fetched is not None else ""
        turn = f", round = (round + 1) % {ahead + 1}" if fetched is not None else ""
        self.line(f"for (int {at} = 0{more}; {at} < {size}; {at} += {step}{turn}) {{", outer)
        self.line(f"    {first}", outer)
        if fetched is not None:
            self.line(f"    fetch_round({at} + {ahead * step}, (round + {ahead}) % {ahead + 1});", outer)
            self.line("    end_round();", outer)
            self.line(f"    await_round<{ahead}>();", outer)
        outer.lines += inner.lines
        self.line("}", outer)
