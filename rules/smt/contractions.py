"""SMT semantics of matrix products, convolutions, pools and reductions: sums and maxima over indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from ..semantics.solver import OutOfScope
from ..semantics.sums import Total
from .layout import LayoutSemantics
from .unknowns import IllTyped, SizeFacts, Sym


class Contractions(LayoutSemantics):
    """SMT semantics of reductions and contractions.

    For each op of structures.CONTRACTIONS, one method gives the result from operands, attributes and `SizeFacts`.
    """

    def _matmul(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        z, (x, y) = self.z, args
        if len(x.shape) < 2 or len(y.shape) not in (2, len(x.shape)):
            raise IllTyped
        if x.boolean or y.boolean:
            raise OutOfScope("a product of booleans")
        facts.conditions += [x.shape[-1] == y.shape[-2], x.dtype == y.dtype]
        lead = list(x.shape[:-2])
        for d, other in enumerate(y.shape[:-2]):
            facts.conditions.append(z.Or(lead[d] == other, lead[d] == 1, other == 1))
            lead[d] = z.If(lead[d] == 1, other, lead[d])

        def at(i: Sequence[Any]) -> Any:
            k = self.index(x.shape[-1])
            rows = self.narrowed(x.shape[:-2], i[:-2])
            columns = self.narrowed(y.shape[:-2], i[:-2])

            def read() -> Any:
                a, b = x.at([*rows, i[-2], k[0]]), y.at([*columns, k[0], i[-1]])
                return self.summand(a, facts).times(self.summand(b, facts))

            return self.total(read, facts, [k])

        return Sym((*lead, x.shape[-2], y.shape[-1]), x.dtype, at)

    def _linear(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        x, w, b = args
        if len(w.shape) != 2 or len(b.shape) != 1 or b.boolean:
            raise IllTyped
        whole = self._matmul([x, w], attrs, facts)
        facts.conditions += [b.shape[0] == w.shape[1], b.dtype == x.dtype]
        return Sym(whole.shape, x.dtype, lambda i: whole.at(i).plus(self.summand(b.at([i[-1]]), facts)))

    def reduced(self, monoid: str, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        """The result of a reduction that folds the binary op `monoid` (structures.FOLDS), as a symbolic value.

        Conditions for being well typed are added to `facts`. Raises OutOfScope if unsupported, IllTyped if ill typed.
        """
        (x,), axes = args, attrs["axes"]
        if not isinstance(axes, tuple) or any(self.z.is_expr(a) for a in axes):
            raise OutOfScope("a sum over unknown axes")
        if (
            x.boolean
            or len({a % max(1, len(x.shape)) for a in axes}) < len(axes)
            or any(not -len(x.shape) <= a < len(x.shape) for a in axes)
        ):
            raise IllTyped
        chosen = {a % len(x.shape) for a in axes}

        def at(i: Sequence[Any]) -> Any:
            indices = {a: self.index(x.shape[a]) for a in sorted(chosen)}
            where = [indices[d][0] if d in chosen else k for d, k in enumerate(i)]
            if monoid != "add":
                return self.largest(lambda: x.at(where), facts, list(indices.values()), monoid == "maximum")
            return self.total(lambda: x.at(where), facts, list(indices.values()))

        return Sym(tuple(self.z.IntVal(1) if d in chosen else n for d, n in enumerate(x.shape)), x.dtype, at)

    def _mean(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        (x,), whole = args, self.reduced("add", args, attrs, facts)
        share = self.share()
        sizes = [x.shape[a % len(x.shape)] for a in attrs["axes"]]

        def at(i: Sequence[Any]) -> Any:
            found = Total.of(whole.at(i)).map(lambda body: reduce(lambda b, n: b * share(n), sizes, body))
            facts.undefined.extend(n == 0 for n in sizes)
            return found

        return Sym(whole.shape, x.dtype, at)

    def share(self) -> Any:
        """Uninterpreted function n -> 1 / n for the number n of summands, of which only share(1) == 1 is known."""
        found = self.function("share", self.z.IntSort(), self.z.RealSort())
        self.facts.conditions.append(found(1) == 1)
        return found

    def windows(
        self, x: Sym, kernel: Sequence[Any], attrs: Mapping[str, Any], facts: SizeFacts
    ) -> tuple[list[Any], Any]:
        """Window semantics of convolutions and pools of the image x.

        Returns (sizes of the result's spatial axes, read). `read` maps (index of the result, indices in the window) to
        (spatial indices in the image, condition that they are inside). Conditions for being well typed are added to
        `facts`. Raises IllTyped for attributes that do not fit the image's rank.
        """
        z, n = self.z, len(x.shape) - 2
        strides, dilations, pads = attrs["strides"], attrs["dilations"], attrs["pads"]
        if n < 1 or len(kernel) != n or len(strides) != n or len(dilations) != n or len(pads) != 2 * n:
            raise IllTyped
        sizes, spans = [], []
        for j in range(n):
            span = x.shape[2 + j] + pads[j] + pads[n + j] - dilations[j] * (kernel[j] - 1) - 1
            sizes.append(self.strided("positions", span, strides[j]) + 1)
            spans.append(span)
            facts.conditions += [z.IntVal(1) <= strides[j], z.IntVal(1) <= dilations[j], span >= 0]

        def read(i: Sequence[Any], inner: Sequence[Any]) -> tuple[list[Any], Any]:
            steps = [self.strided("step", i[2 + j], strides[j]) for j in range(n)]
            for k, step, span, size, stride in zip(i[2:], steps, spans, sizes, strides):
                if z.is_expr(stride):  # the last window ends within the padded image
                    facts.conditions.append(z.Implies(z.And(k >= 0, k < size), z.And(step >= 0, step <= span)))
            places = [step + k * dilations[j] - pads[j] for j, (step, k) in enumerate(zip(steps, inner))]
            return places, z.And(*(c for j, p in enumerate(places) for c in (p >= 0, p < x.shape[2 + j])))

        return sizes, read

    def _conv(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        z, (x, w), groups = self.z, args, attrs["groups"]
        if len(x.shape) != len(w.shape) or len(x.shape) < 3:
            raise IllTyped
        if x.boolean or w.boolean:
            raise OutOfScope("a convolution of booleans")
        sizes, read = self.windows(x, w.shape[2:], attrs, facts)
        facts.conditions += [x.dtype == w.dtype, z.IntVal(1) <= groups, x.shape[1] == w.shape[1] * groups]
        one = not z.is_expr(groups) and groups == 1
        if not one:
            rows = self.function("rows", z.IntSort(), z.IntSort(), z.IntSort())(w.shape[0], groups)
            facts.conditions.append(w.shape[0] == rows * groups)
            self.facts.conditions.append(z.Implies(groups == 1, rows == w.shape[0]))

        def at(i: Sequence[Any]) -> Any:
            c, *inner = (self.index(size) for size in w.shape[1:])
            channel = c[0]
            if not one:  # an uninterpreted channel index within the group
                channel = self.function("channel", *[z.IntSort()] * 6)(i[1], c[0], *w.shape[:2], groups)
                known = z.And(i[1] >= 0, i[1] < w.shape[0], c[0] >= 0, c[0] < w.shape[1])
                facts.conditions.append(z.Implies(known, z.And(channel >= 0, channel < x.shape[1])))
                facts.conditions.append(z.Implies(groups == 1, channel == c[0]))
            places, inside = read(i, [k for k, _ in inner])

            def product_() -> Any:
                a = self.either(inside, x.at([i[0], channel, *places]), z.RealVal(0))
                weight = w.at([i[1], c[0], *(k for k, _ in inner)])
                return self.summand(a, facts).times(self.summand(weight, facts))

            return self.total(product_, facts, [c, *inner])

        return Sym((x.shape[0], w.shape[0], *sizes), x.dtype, at)

    def _pool(
        self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts, what: str,
        joined: Callable[[Callable[[], Any], Any, list[Any]], Any],
    ) -> Sym:  # fmt: skip
        """A pooling op: `joined` gets a reader of the value, the condition that its position is inside, and the
        window's indices."""
        z, (x,), kernel = self.z, args, attrs["kernel"]
        if x.boolean:
            raise OutOfScope(f"{what} of booleans")
        sizes, read = self.windows(x, kernel, attrs, facts)
        facts.conditions += [z.IntVal(1) <= k for k in kernel]

        def at(i: Sequence[Any]) -> Any:
            inner = [self.index(z.IntVal(k) if isinstance(k, int) else k) for k in kernel]
            places, inside = read(i, [k for k, _ in inner])
            return joined(lambda: x.at([i[0], i[1], *places]), inside, inner)

        return Sym((x.shape[0], x.shape[1], *sizes), x.dtype, at)

    def _avg_pool(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        share, kernel = self.share(), attrs["kernel"]
        self.facts.conditions += [share(k) > 0 for k in kernel]

        def mean(value: Callable[[], Any], inside: Any, inner: list[Any]) -> Any:
            found = self.total(lambda: self.either(inside, value(), self.z.RealVal(0)), facts, inner)
            return found.map(lambda body: reduce(lambda b, k: b * share(k), kernel, body))

        return self._pool(args, attrs, facts, "a mean", mean)

    def _max_pool(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        def most(value: Callable[[], Any], inside: Any, inner: list[Any]) -> Any:
            return self.largest(value, facts, inner, True).only(self.z, inside)

        return self._pool(args, attrs, facts, "a maximum", most)
