"""Infers types for text rules: the operators' rules for result shapes, as linear equations between unknown sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, islice, permutations
from math import prod
from typing import Any

from .linear_equations import Affine, System
from .ranks import Ranks
from .scopes import AxisScope, group_counts
from .shape_families import Typing
from .terms import FACTORINGS, Choices, TermAxis, Typed, Untypable, factorings, perm_of
from .text_rule import Input, Number, Term, TextApply, TextRule, nodes

ATTRIBUTES = {"stride_h": (1, 2), "stride_w": (1, 2), "pad": (0, 1), "act": (0, 1, 2, 3), "kernel_h": (1, 3),
              "kernel_w": (1, 5), "count": (1, 2), "axis": (0, 1, 2, 3), "ndim": (2, 4, 3), "shuffle": (1,),
              "perm": ((1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1), (0, 2, 3, 1), (0, 1))}  # fmt: skip
PERMUTATIONS = tuple(p for rank in (2, 3, 4) for p in permutations(range(rank)))
"""All permutations of two to four axes. No word of one to six letters in a permutation and its inverse is trivial on
all of them, so equal words of elementwise operators and transposes are equal at every rank."""
SYMBOLIC = ("stride_h", "stride_w", "kernel_h", "kernel_w")
"""Parameters that may stay unknown: one family then covers all values."""


class Typer:
    """Type inference for the terms of a text rule, under one combination of the choices that the rule leaves open.

    `symbolic`: the parameters in `SYMBOLIC` (strides, kernel sizes) are unknowns instead of numbers.
    """

    def __init__(self, rule: TextRule, choices: Choices, scope: AxisScope, symbolic: bool = False) -> None:
        self.rule, self.choices, self.scope = rule, choices, scope
        self.system = System()
        self.attrs = {
            n: self.fresh()
            if symbolic and kind in SYMBOLIC
            else choices.choose(PERMUTATIONS if symbolic and kind == "perm" else ATTRIBUTES[kind])
            for n, kind in rule.attributes.items()
        }
        self.halves: dict[Affine, Affine] = {}  # (kernel - 1) // 2 of unknown kernels
        self.spans: dict[tuple[Affine, Affine], Affine] = {}  # (positions - 1) * stride, by (positions, unknown stride)
        self.ranks = Ranks(self.attrs)
        self.strided: list[
            tuple[Affine, Affine, tuple[Any, int], Affine]
        ] = []  # size, kernel, (stride, pad), positions
        self.enlarged: list[tuple[Affine, Affine, tuple[Affine, Affine]]] = []  # size, target size, zeros around
        self.at_least: list[tuple[Affine, int]] = []
        self.inputs: dict[str, Typed] = {}
        self.kernels: list[Typed] = []
        self.groups = group_counts(rule, scope)

    def rank(self, i: int) -> int:
        """The rank that a rank variable has, chosen among the possible ones if it is free."""
        rank = self.choices.choose(self.ranks.options(i))
        return self.ranks.rank[self.ranks.set(i, rank)]

    def fresh(self, **more: Any) -> Affine:
        """A new unknown size; `more` are options of `System.fresh`."""
        return self.system.fresh(**more)

    def merge(self, *axes: TermAxis) -> TermAxis:
        """The axis of an elementwise result over the operands' axes `axes`; adds the equations that their sizes are
        equal."""
        for a in axes[1:]:
            self.system.equate(axes[0].size, a.size)
        return axes[0] if len(axes) == 1 else TermAxis(axes[0].size, same=axes)

    def visit(self, term: Term) -> Typed:
        """Infer the types of a term and its subterms; returns the typed term."""
        if isinstance(term, Number):
            return Typed("number", [], params={"value": term.value})
        if isinstance(term, Input):
            if term.name not in self.inputs:
                rank = self.rank(self.ranks.inputs[term.name])
                axes = [TermAxis(self.fresh(), open=True) for _ in range(rank)]
                self.inputs[term.name] = Typed("input", axes, params={"name": term.name})
            return self.inputs[term.name]
        args = tuple(map(self.visit, term.args))
        params = {n: self.ranks.value(n, term) for n, _ in term.params}
        law: Callable[..., Typed] = getattr(self, f"_{term.op}")
        found = law(args, params, term)
        self.at_least += [(s, 1) for s in found.sizes]
        return found

    # ------------------------------------------------------------ operators
    def _pointwise(self, args: Any, params: Any, term: TextApply) -> Typed:
        if len({len(a.axes) for a in args}) > 1:
            raise Untypable(f"{term.op} of ranks {[len(a.axes) for a in args]}")
        return Typed(term.op, [self.merge(*axes) for axes in zip(*(a.axes for a in args))], args, params)

    _ewadd = _ewmul = _relu = _tanh = _sigmoid = _pointwise

    def _smul(self, args: Any, params: Any, term: TextApply) -> Typed:
        return Typed("smul", args[0].axes, args, params)

    def _matmul(self, args: Any, params: Any, term: TextApply) -> Typed:
        a, b = (x.axes for x in args)
        if len(a) != len(b):
            raise Untypable(f"matmul of ranks {len(a)} and {len(b)}")
        self.system.equate(a[-1].size, b[-2].size)
        lead = [self.merge(p, q) for p, q in zip(a[:-2], b[:-2])]
        return Typed("matmul", [*lead, a[-2], b[-1]], args, params)

    def _concat(self, args: Any, params: Any, term: TextApply) -> Typed:
        axis, found = params["axis"], args[0]
        for other in args[1:]:
            if not axis < len(found.axes) == len(other.axes):
                raise Untypable(f"concat along axis {axis} of ranks {len(found.axes)} and {len(other.axes)}")
            pairs = list(zip(found.axes, other.axes))
            axes = [
                TermAxis(p.size + q.size, cut=(p, q)) if i == axis else self.merge(p, q)
                for i, (p, q) in enumerate(pairs)
            ]
            found = Typed("concat", axes, (found, other), {"axis": axis})
        joined: Typed = found
        return joined

    def _split(self, half: int, args: Any, params: Any) -> Typed:
        axis, x = params["axis"], args[0]
        cuts = x.axes[axis].cuts()
        if not cuts:
            places = x.axes[axis].openings()
            if not places:
                raise Untypable(f"a split along axis {axis}, where nothing was concatenated")
            place = places[0]
            parts = (TermAxis(self.fresh(), open=True), TermAxis(self.fresh(), open=True))
            self.system.equate(place.size, parts[0].size + parts[1].size)
            place.cut, place.open = parts, False
            cuts = [parts]
        for other in cuts[1:]:
            self.system.equate(cuts[0][0].size, other[0].size)
        mine = tuple(c[half] for c in cuts)
        part = mine[0] if len(mine) == 1 else TermAxis(mine[0].size, same=mine)
        axes = [part if i == axis else a for i, a in enumerate(x.axes)]
        return Typed(f"split_{half}", axes, args, params, {"cut": cuts[0][0].size})

    def _split_0(self, args: Any, params: Any, term: TextApply) -> Typed:
        return self._split(0, args, params)

    def _split_1(self, args: Any, params: Any, term: TextApply) -> Typed:
        return self._split(1, args, params)

    def _transpose(self, args: Any, params: Any, term: TextApply) -> Typed:
        perm = perm_of(params["perm"]) if params.get("perm") is not None else (1, 0)
        if perm is None or len(perm) != len(args[0].axes):
            raise Untypable(f"{params.get('perm')} does not permute {len(args[0].axes)} axes")
        return Typed("transpose", [args[0].axes[p] for p in perm], args, {"perm": perm})

    def low(self, kernel: Affine, pad: int) -> Affine:
        """Padding before the first element along an axis. `pad`: TASO's padding mode; 1 (valid) gives 0, others
        (same) give (kernel - 1) // 2, with `kernel` the size of the window.

        A window of unknown size is assumed to be odd, unless its size is a parameter of the rule.
        """
        number = self.system.reduce(kernel).number
        if pad == 1 or number is not None:
            return Affine.of(0 if pad == 1 or number is None else (int(number) - 1) // 2)
        if kernel in self.attrs.values():  # odd or even
            if kernel not in self.halves:
                self.halves[kernel] = self.fresh(least=0)
                self.system.equate(kernel, self.halves[kernel] * 2 + self.fresh(least=0, most=1) + 1)
            return self.halves[kernel]
        half = self.fresh(least=0)
        self.system.equate(kernel, half * 2 + 1)
        return half

    def positions(self, size: Affine, kernel: Affine, stride: int | Affine, pad: int) -> Affine:
        """The number of windows along an axis; `pad`: TASO's padding mode, 0 if the result has the axis's size (for
        stride 1).
        """
        if stride == 1:
            return size if pad == 0 else size - kernel + 1
        like = (stride, pad)
        for other, width, kind, count in self.strided:  # axes of equal size have equal numbers of positions
            same = self.system.reduce(size - other).number == 0
            if kind == like and same and (pad == 0 or self.system.reduce(kernel - width).number == 0):
                return count
        if isinstance(stride, Affine):
            found = self.fresh()
            span = self.spans[found, stride] = self.fresh(least=0)
            rest = self.fresh(least=0)
            self.at_least.append((stride - rest, 1))
            self.system.equate(size, span + rest + (1 if pad == 0 else kernel))
            self.strided.append((size, kernel, like, found))
            return found
        found, rest = self.fresh(), self.fresh(least=0, most=stride - 1)
        self.system.equate(size, found * stride - rest if pad == 0 else (found - 1) * stride + kernel + rest)
        self.strided.append((size, kernel, like, found))
        return found

    def _conv2d(self, args: Any, params: Any, term: TextApply) -> Typed:
        x, w = (a.axes for a in args)
        channels, per = self.system.reduce(x[1].size), self.system.reduce(w[1].size)
        ratio = channels.ratio(per)
        groups = ratio if ratio is not None else self.choices.choose(self.groups)
        if groups < 1 or groups != int(groups):
            raise Untypable("the channels are not a multiple of the weight's")
        self.system.equate(x[1].size, w[1].size * int(groups))
        if groups > 1:
            self.system.equate(w[0].size, self.fresh() * int(groups))
        space = [
            TermAxis(self.positions(x[2 + i].size, w[2 + i].size, params["stride_" + "hw"[i]], params["pad"]))
            for i in (0, 1)
        ]
        numbers = {"low_" + i: self.low(a.size, params["pad"]) for i, a in zip("hw", w[2:])}
        return Typed("conv2d", [x[0], w[0], *space], args, {**params, "groups": int(groups)}, numbers)

    def _pool(self, args: Any, params: Any, term: TextApply) -> Typed:
        x = args[0].axes
        space = [
            TermAxis(self.positions(x[2 + i].size, Affine.of(params["kernel_" + "hw"[i]]), params["stride_" + "hw"[i]],
                                params["pad"]))
            for i in (0, 1)
        ]  # fmt: skip
        low = {"low_" + i: self.low(Affine.of(params["kernel_" + i]), params["pad"]) for i in "hw"}
        return Typed(term.op, [*x[:2], *space], args, params, low)

    _poolmax = _poolavg = _pool

    def _enlarge(self, args: Any, params: Any, term: TextApply) -> Typed:
        w = args[0].axes
        wanted = (
            [a.size for a in args[1].axes[2:]] if len(args) > 1 else [Affine.of(params["kernel_" + i]) for i in "hw"]
        )
        numbers: dict[str, Affine] = {}
        for name, have, want in zip("hw", w[2:], wanted):
            before, odd = self.rims(have.size, want)
            numbers |= {"before_" + name: before, "after_" + name: before + odd}
        return Typed("enlarge", [*w[:2], *map(TermAxis, wanted)], args[:1], {}, numbers)

    def rims(self, have: Affine, want: Affine) -> tuple[Affine, Affine]:
        """Padding that enlarges a kernel from `have` to `want`, as (zeros before it, whether one more zero follows it).

        Equal sizes have the same unknowns.
        """
        for a, b, found in self.enlarged:
            if self.system.reduce(have - a).number == 0 and self.system.reduce(want - b).number == 0:
                return found
        before, odd = self.fresh(least=0), self.fresh(least=0, most=1)
        self.system.equate(want, have + before * 2 + odd)
        self.enlarged.append((have, want, (before, odd)))
        return before, odd

    def _merge(self, args: Any, params: Any, term: TextApply) -> Typed:
        w = args[0].axes
        self.system.equate(w[0].size, self.fresh() * params["count"])
        return Typed("merge", [w[0], TermAxis(w[1].size * params["count"]), *w[2:]], args, params)

    def _reshape(self, args: Any, params: Any, term: TextApply) -> Typed:
        shape = params["shape"] if isinstance(params["shape"], tuple) else (params["shape"],)
        sizes = [self.system.reduce(a.size) for a in args[0].axes]
        left, rest = divmod(prod(shape), prod(int(s.constant) for s in sizes if not s.terms))
        if rest:
            raise Untypable(f"{shape} does not hold as many elements")
        unknown = [s for s in sizes if s.terms]
        for size, number in zip(unknown, self.choices.choose(list(islice(factorings(left, len(unknown)), FACTORINGS)))):
            self.system.equate(size, number)
        return Typed("reshape", [TermAxis(Affine.of(d)) for d in shape], args, {"shape": shape})

    def _batchnorm(self, args: Any, params: Any, term: TextApply) -> Typed:
        for a in args[1:]:
            self.system.equate(a.axes[0].size, args[0].axes[1].size)
        return Typed("batchnorm", args[0].axes, args, params)

    def _kernel(self, args: Any, params: Any, term: TextApply) -> Typed:
        n = self.fresh(eager=True)
        if self.scope.constants and self.kernels:
            self.system.equate(n, self.kernels[0].axes[0].size)
        sizes = {i: Affine.of(params["kernel_" + i]) for i in "hw"}
        low = {"low_" + i: self.low(size, 0) for i, size in sizes.items()}
        return Typed(term.op, [TermAxis(n), TermAxis(n), *map(TermAxis, sizes.values())], (), params, low)

    _Iconv = _Cpool = _kernel

    def _Imatmul(self, args: Any, params: Any, term: TextApply) -> Typed:
        n = self.fresh(eager=True)
        return Typed("Imatmul", [TermAxis(n), TermAxis(n)])

    def _Iewmul(self, args: Any, params: Any, term: TextApply) -> Typed:
        rank = self.rank(self.ranks.ones[id(term)])
        return Typed("Iewmul", [TermAxis(self.fresh(eager=True)) for _ in range(rank)])

    # ------------------------------------------------------------ the whole rule
    def narrow(self, terms: Sequence[Term]) -> None:
        """Add the equations that the scope of a rule (text/scopes.py) requires."""
        convs = [t for t in terms if isinstance(t, TextApply) and t.op == "conv2d" and isinstance(t.args[1], Input)]
        kernels = list(dict.fromkeys(t.args[1] for t in convs))
        for conv in convs:
            if self.scope.plain and isinstance(conv.args[0], Input):
                x, w = map(self.visit, conv.args)
                self.system.equate(x.axes[1].size, w.axes[1].size)
        self.kernels = [self.visit(k) for k in kernels]
        for other in kernels[1:] if self.scope.kin else []:
            for p, q in zip(self.visit(kernels[0]).sizes, self.visit(other).sizes):
                self.system.equate(p, q)

    def run(self, only_left: bool) -> Typing:
        """The family of shapes at which the rule is well typed under the current choices of ranks and attributes (its
        left sides alone if `only_left`). Raises Untypable or Inconsistent if there is none."""
        lefts, rights = self.rule.lefts, () if only_left else self.rule.rights
        ranks = [self.ranks.visit(t) for t in (*lefts, *rights)]
        for a, b in zip(ranks[: len(lefts)], ranks[len(lefts) :]):
            known = [self.ranks.find(i) in self.ranks.rank for i in (a, b)]
            if not all(known):  # two known ranks are left as they are: if they differ, the rule is wrong
                self.ranks.join(a, b)
        self.narrow([n for side in (*lefts, *rights) for n in nodes(side)])
        typed = [self.visit(t) for t in (*lefts, *rights)]
        found = tuple(zip(typed[: len(lefts)], typed[len(lefts) :])) if not only_left else ()
        for left, right in found:
            for p, q in zip(left.sizes, right.sizes):  # constants of the language take the size that makes sides agree
                if any(u in self.system.eager for u, _ in self.system.reduce(p - q).terms):
                    self.system.equate(p, q)
        self.unite()
        self.system.settle()
        return Typing(tuple(typed), found, self.inputs, self.attrs, self.system, tuple(self.at_least), self.spans)

    def unite(self) -> None:
        """Add equations between the numbers of window positions along axes whose sizes turned out to be equal, also for
        unknown strides."""
        for (size, kernel, like, found), (other, width, kind, count) in combinations(self.strided, 2):
            same = self.system.reduce(size - other).number == 0 and like == kind and isinstance(like[0], Affine)
            if same and (like[1] == 0 or self.system.reduce(kernel - width).number == 0):
                self.system.equate(found, count)
                self.system.equate(self.spans[found, like[0]], self.spans[count, like[0]])


__all__ = ["ATTRIBUTES", "PERMUTATIONS", "SYMBOLIC", "Typer"]
