"""What a rule of Tensat's language says at concrete shapes: its sides as tensors of this project.

The operators' shape laws give linear equations between unknown sizes. What they leave open is chosen: the ranks of variables,
values of parameter variables, how many groups a convolution has (channels / second size of the weight), the remainder of a
strided axis. `typings` enumerates the choices that are consistent; each is a family of shapes, of which `Typing.instances`
draws members. A constant of the language (`Imatmul`, `Iconv`, …) has whatever size its surroundings want.

Semantics, as in TASO unless it leaves something open:
- padding 0 ("same") gives ceil(size / stride) positions, (kernel - 1) // 2 elements before the first and the rest of
  kernel - 1 behind the last; the kernel of a variable under it is odd. Average pooling counts padding; in max pooling it
  never wins.
- the groups of a convolution follow from the shapes.
- `split` undoes the latest concat along its axis, wherever that came from: the operand's axes remember where they were put
  together, through operators that keep an axis. A variable's axis may be cut anywhere, at one place per rule. Any other axis
  cannot be split. Where two operands were put together at different places, the split has no meaning.
- `enlarge` puts zeros around a kernel, (K - k) // 2 of them before; `Iconv(h, w)` is the kernel [n, n, h, w] that changes
  nothing, `Cpool(h, w)` the one that averages; `merge(w, c)` is the dense kernel of a convolution in c groups.
- `smul` multiplies by a scalar of rank 0, or by a number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice, permutations
from math import ceil, floor, inf, isqrt, prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..egraph import api, composite
from ..egraph.graph import Tensor, constant, make
from ..errors import ShapeError
from .linear import Affine, Inconsistent, System, quotient
from .tensat import Apply, Input, Number, Param, Term, TextRule, nodes

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (lambda x: x, composite.sigmoid, composite.relu, api.tanh)
ATTRIBUTES = {"stride_h": (1, 2), "stride_w": (1, 2), "pad": (0, 1), "act": (0, 1, 2, 3), "kernel_h": (1, 3),
              "kernel_w": (1, 5), "count": (1, 2), "axis": (0, 1, 2, 3), "ndim": (2, 4, 3), "shuffle": (1,),
              "perm": ((1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1), (0, 2, 3, 1), (0, 1))}  # fmt: skip
PERMUTATIONS = tuple(p for rank in (2, 3, 4) for p in permutations(range(rank)))
"""All of up to four axes: no word of one to six letters in a permutation and its inverse is trivial on all of them, so that equal
words of elementwise operators and transposes are equal at every rank."""
SYMBOLIC = (
    "stride_h",
    "stride_w",
    "kernel_h",
    "kernel_w",
)  # parameters that may stay unknown: a family stands for all values


@dataclass(frozen=True)
class Scope:
    """Which shapes a rule is read for, where the format says too little: how convolutions may be grouped.

    `groups` are the counts tried where the shapes leave them open; with `plain`, a convolution of two variables has one
    group; with `kin`, the variables that are kernels of convolutions share a shape, and with `constants` constant kernels have
    as many outputs as they, and groups are chosen so that the sides have one shape.
    """

    said: str
    groups: tuple[int, ...] = (1,)
    plain: bool = False
    kin: bool = False
    constants: bool = False


_PLAIN = "convolutions of variables, and those whose groups the shapes leave open, have one group"
_OPEN = "convolutions whose groups the shapes leave open have one group"
#: From the widest to the narrowest. The rules of TASO were verified for one group and kernels of one shape, and some of
#: them hold for no others: joining two convolutions into a grouped one needs as many outputs in each.
SCOPES = (
    Scope("", (1, 2, 3)),
    Scope(_PLAIN, plain=True),
    Scope(f"{_PLAIN}, kernels one shape", plain=True, kin=True),
    Scope(_OPEN),
    Scope(f"{_OPEN}, kernels one shape", kin=True),
    Scope(f"{_PLAIN} or two, all kernels one shape", (1, 2), plain=True, kin=True, constants=True),
)


GROUPED = 3  # of more convolutions, two numbers of groups are tried at most
LARGEST = (2, 3, 4, 6, 3, 5)  # how large the sizes of a member are drawn
FACTORINGS = 12  # shapes of a value that is reshaped
WORK = 1 << 22  # elements of values and windows of a member that is evaluated
PINNED = 1 << 18  # elements of a shape that a rule names
MATRIX = 6  # input_1 … input_6 are matrices in the files of TASO, the others have rank 4


def scopes(rule: TextRule) -> tuple[Scope, ...]:
    """The scopes under which a rule is read, the widest first; the last one is for kernels that are constants."""
    ops = {n.op for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, Apply)}
    if "conv2d" not in ops:
        return SCOPES[:1]
    return SCOPES if ops & {"Iconv", "Cpool"} else SCOPES[:-1]


def group_counts(rule: TextRule, scope: Scope) -> tuple[int, ...]:
    """How many groups a convolution is tried with where the shapes leave it open."""
    return scope.groups if rule.convolutions <= GROUPED else scope.groups[:2]


class NoMeaning(Exception):
    """A side has no value under these choices, whatever the sizes."""


# ---------------------------------------------------------------- axes and typed terms
@dataclass(eq=False)
class Axis:
    """One axis of a value: its size, and where it was put together. `open` axes may be cut anywhere, once."""

    size: Affine
    cut: tuple[Axis, Axis] | None = None
    open: bool = False
    same: tuple[Axis, ...] = ()  # the axes of the operands that this one comes from

    def cuts(self) -> list[tuple[Axis, Axis]]:
        """All places where it was put together."""
        return [self.cut] if self.cut else [c for a in self.same for c in a.cuts()]

    def openings(self) -> list[Axis]:
        """The open axes that it comes from."""
        return [self] if self.open else [o for a in self.same for o in a.openings()]


@dataclass(eq=False)
class Typed:
    """A term with the sizes of its axes. `numbers` holds sizes that its meaning needs (a cut, paddings, groups)."""

    op: str
    axes: list[Axis]
    args: tuple[Typed, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Affine] = field(default_factory=dict)

    @property
    def sizes(self) -> list[Affine]:
        """Sizes of the axes."""
        return [a.size for a in self.axes]


def subterms(terms: Iterable[Typed]) -> list[Typed]:
    """The terms and all below them, each once."""
    found: dict[int, Typed] = {}
    rest = list(terms)
    while rest:
        term = rest.pop()
        if id(term) not in found:
            found[id(term)] = term
            rest += term.args
    return list(found.values())


# ---------------------------------------------------------------- choices
class _Choices:
    """Answers to questions asked in a fixed order; `next` moves to the next combination that was not tried."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.sizes: list[int] = []
        self.at = 0

    def choose(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        if not options:
            raise NoMeaning("nothing fits")
        if self.at == len(self.taken):
            self.taken.append(0)
            self.sizes.append(len(options))
        found = options[self.taken[self.at]]
        self.at += 1
        return found

    def next(self) -> bool:
        """Move on; False at the end."""
        del self.taken[self.at :], self.sizes[self.at :]
        self.at = 0
        while self.taken and self.taken[-1] + 1 == self.sizes[-1]:
            self.taken.pop()
            self.sizes.pop()
        if not self.taken:
            return False
        self.taken[-1] += 1
        return True


def factorings(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a product of so many, factors of similar size first; no more than FACTORINGS each."""
    if count < 2:
        yield from [(number,) * count] if count or number == 1 else []
        return
    small = [d for d in range(1, min(isqrt(number), 1 << 12) + 1) if number % d == 0]
    each = number ** (1 / count)
    for first in sorted({*small, *(number // d for d in small)}, key=lambda d: (d == 1, max(d / each, each / d))):
        yield from ((first, *rest) for rest in islice(factorings(number // first, count - 1), FACTORINGS))


def perm_of(value: Param, rank: int | None = None) -> tuple[int, ...] | None:
    """A permutation written as d1_d2…, as decimal digits, or as TASO's number (digits to the base of the rank)."""
    if isinstance(value, tuple):
        return value if sorted(value) == list(range(len(value))) else None
    assert isinstance(value, int)
    found = tuple(map(int, str(value)))
    if len(found) > 1 and sorted(found) == list(range(len(found))):
        return found
    for base in (2, 3, 4, 5):
        digits, rest = [], value
        for _ in range(base):
            rest, digit = divmod(rest, base)
            digits.append(digit)
        if not rest and sorted(digits) == list(range(base)):
            return tuple(digits[::-1])
    return None


# ---------------------------------------------------------------- ranks
class _Ranks:
    """Ranks of all subterms: equal ones are merged, the rest is chosen."""

    def __init__(self, attrs: Mapping[str, Any]) -> None:
        self.attrs = attrs
        self.parent: dict[int, int] = {}
        self.rank: dict[int, int] = {}
        self.above: dict[int, int] = {}  # the rank is larger than this
        self.matrix: set[int] = set()  # operands of a matmul
        self.bare: set[int] = set()  # joined or split along an axis, without saying the rank
        self.names: dict[int, list[str]] = {}
        self.inputs: dict[str, int] = {}
        self.ones: dict[int, int] = {}  # of each Iewmul

    def new(self) -> int:
        """A new rank."""
        self.parent[len(self.parent)] = len(self.parent)
        return len(self.parent) - 1

    def find(self, i: int) -> int:
        """The representative."""
        while self.parent[i] != i:
            i = self.parent[i]
        return i

    def join(self, *items: int) -> int:
        """Make ranks equal."""
        first = self.find(items[0])
        for item in items[1:]:
            other = self.find(item)
            if other != first:
                self.parent[other] = first
                if other in self.rank:
                    self.set(first, self.rank[other])
                self.above[first] = max(self.above.get(first, -1), self.above.get(other, -1))
                self.names[first] = self.names.get(first, []) + self.names.get(other, [])
                for marks in (self.matrix, self.bare):
                    if other in marks:
                        marks.add(first)
        return first

    def set(self, i: int, rank: int) -> int:
        """Make a rank known."""
        i = self.find(i)
        if self.rank.setdefault(i, rank) != rank:
            raise NoMeaning(f"a value would have rank {rank} and rank {self.rank[i]}")
        return i

    def value(self, name: str, term: Apply) -> Any:
        """A parameter's value."""
        found = term.param(name)
        return self.attrs[found] if isinstance(found, str) else found

    def visit(self, term: Term) -> int:
        """The rank of a term."""
        if isinstance(term, Number):
            return self.set(self.new(), 0)
        if isinstance(term, Input):
            if term.name not in self.inputs:
                self.inputs[term.name] = self.new()
                self.names[self.inputs[term.name]] = [term.name]
            return self.inputs[term.name]
        args = [self.visit(a) for a in term.args]
        op = term.op
        if op in ("conv2d", "poolmax", "poolavg", "enlarge", "merge", "Iconv", "Cpool", "batchnorm"):
            for i, a in enumerate(args):
                self.set(a, 1 if op == "batchnorm" and i else 4)
            return self.set(self.new(), 4)
        if op == "smul":
            self.set(args[1], 0)
            return args[0]
        if op == "transpose":
            given = self.value("perm", term)
            perm = perm_of(given) if given is not None else (1, 0)
            if perm is None:
                raise NoMeaning(f"{given} is not a permutation")
            return self.set(args[0], len(perm))
        if op == "reshape":
            shape = self.value("shape", term)
            return self.set(self.new(), len(shape) if isinstance(shape, tuple) else 1)
        if op == "Imatmul":
            return self.set(self.new(), 2)
        if op == "Iewmul":
            self.ones[id(term)] = self.new()
            return self.ones[id(term)]
        joined = self.join(*args)
        if op == "matmul":
            self.above[joined] = max(self.above.get(joined, -1), 1)
            self.matrix.add(joined)
        if op in ("concat", "split_0", "split_1"):
            axis, ndim = self.value("axis", term), self.value("ndim", term)
            self.above[joined] = max(self.above.get(joined, -1), axis)
            if ndim is not None:
                self.set(joined, ndim)
            else:
                self.bare.add(joined)
        return joined

    def options(self, i: int) -> list[int]:
        """What a rank may be."""
        i = self.find(i)
        above = self.above.get(i, -1)
        if i in self.rank:
            return [self.rank[i]] if self.rank[i] > above else []
        if i in self.matrix:
            found = [2] if i in self.bare else [2, 3]
        elif i in self.bare:
            numbers = [int(n[6:]) for n in self.names.get(i, ()) if n.startswith("input_") and n[6:].isdigit()]
            found = [4 if any(n > MATRIX for n in numbers) else 2] if numbers else [2, 4, 3]
        else:
            found = [2, 4, 3]
        return [r for r in found if r > above]


# ---------------------------------------------------------------- one choice: a family of shapes
class _Typer:
    """Types the terms of a rule under one combination of choices. With `symbolic`, parameters that may have any value are
    unknowns."""

    def __init__(self, rule: TextRule, choices: _Choices, scope: Scope, symbolic: bool = False) -> None:
        self.rule, self.choices, self.scope = rule, choices, scope
        self.system = System()
        self.attrs = {
            n: self.fresh()
            if symbolic and kind in SYMBOLIC
            else choices.choose(PERMUTATIONS if symbolic and kind == "perm" else ATTRIBUTES[kind])
            for n, kind in rule.attributes.items()
        }
        self.halves: dict[Affine, Affine] = {}  # (kernel - 1) // 2 of unknown kernels
        self.spans: dict[
            tuple[Affine, Affine], Affine
        ] = {}  # (positions - 1) * stride, by positions and unknown stride
        self.ranks = _Ranks(self.attrs)
        self.strided: list[
            tuple[Affine, Affine, tuple[Any, int], Affine]
        ] = []  # size, kernel, (stride, pad), positions
        self.enlarged: list[tuple[Affine, Affine, tuple[Affine, Affine]]] = []  # size, wanted, zeros around
        self.at_least: list[tuple[Affine, int]] = []
        self.inputs: dict[str, Typed] = {}
        self.kernels: list[Typed] = []
        self.groups = group_counts(rule, scope)

    def rank(self, i: int) -> int:
        """A rank, chosen if it is free."""
        rank = self.choices.choose(self.ranks.options(i))
        return self.ranks.rank[self.ranks.set(i, rank)]

    def fresh(self, **more: Any) -> Affine:
        """An unknown size."""
        return self.system.fresh(**more)

    def merge(self, *axes: Axis) -> Axis:
        """The axis of a result that has the operands' axes."""
        for a in axes[1:]:
            self.system.equate(axes[0].size, a.size)
        return axes[0] if len(axes) == 1 else Axis(axes[0].size, same=axes)

    def visit(self, term: Term) -> Typed:
        """The typed term."""
        if isinstance(term, Number):
            return Typed("number", [], params={"value": term.value})
        if isinstance(term, Input):
            if term.name not in self.inputs:
                rank = self.rank(self.ranks.inputs[term.name])
                axes = [Axis(self.fresh(), open=True) for _ in range(rank)]
                self.inputs[term.name] = Typed("input", axes, params={"name": term.name})
            return self.inputs[term.name]
        args = tuple(map(self.visit, term.args))
        params = {n: self.ranks.value(n, term) for n, _ in term.params}
        law: Callable[..., Typed] = getattr(self, f"_{term.op}")
        found = law(args, params, term)
        self.at_least += [(s, 1) for s in found.sizes]
        return found

    # ------------------------------------------------------------ operators
    def _pointwise(self, args: Any, params: Any, term: Apply) -> Typed:
        if len({len(a.axes) for a in args}) > 1:
            raise NoMeaning(f"{term.op} of ranks {[len(a.axes) for a in args]}")
        return Typed(term.op, [self.merge(*axes) for axes in zip(*(a.axes for a in args))], args, params)

    _ewadd = _ewmul = _relu = _tanh = _sigmoid = _pointwise

    def _smul(self, args: Any, params: Any, term: Apply) -> Typed:
        return Typed("smul", args[0].axes, args, params)

    def _matmul(self, args: Any, params: Any, term: Apply) -> Typed:
        a, b = (x.axes for x in args)
        if len(a) != len(b):
            raise NoMeaning(f"matmul of ranks {len(a)} and {len(b)}")
        self.system.equate(a[-1].size, b[-2].size)
        lead = [self.merge(p, q) for p, q in zip(a[:-2], b[:-2])]
        return Typed("matmul", [*lead, a[-2], b[-1]], args, params)

    def _concat(self, args: Any, params: Any, term: Apply) -> Typed:
        axis, found = params["axis"], args[0]
        for other in args[1:]:
            if not axis < len(found.axes) == len(other.axes):
                raise NoMeaning(f"concat along axis {axis} of ranks {len(found.axes)} and {len(other.axes)}")
            pairs = list(zip(found.axes, other.axes))
            axes = [
                Axis(p.size + q.size, cut=(p, q)) if i == axis else self.merge(p, q) for i, (p, q) in enumerate(pairs)
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
                raise NoMeaning(f"a split along axis {axis}, where nothing was concatenated")
            place = places[0]
            parts = (Axis(self.fresh(), open=True), Axis(self.fresh(), open=True))
            self.system.equate(place.size, parts[0].size + parts[1].size)
            place.cut, place.open = parts, False
            cuts = [parts]
        for other in cuts[1:]:
            self.system.equate(cuts[0][0].size, other[0].size)
        mine = tuple(c[half] for c in cuts)
        part = mine[0] if len(mine) == 1 else Axis(mine[0].size, same=mine)
        axes = [part if i == axis else a for i, a in enumerate(x.axes)]
        return Typed(f"split_{half}", axes, args, params, {"cut": cuts[0][0].size})

    def _split_0(self, args: Any, params: Any, term: Apply) -> Typed:
        return self._split(0, args, params)

    def _split_1(self, args: Any, params: Any, term: Apply) -> Typed:
        return self._split(1, args, params)

    def _transpose(self, args: Any, params: Any, term: Apply) -> Typed:
        perm = perm_of(params["perm"]) if params.get("perm") is not None else (1, 0)
        if perm is None or len(perm) != len(args[0].axes):
            raise NoMeaning(f"{params.get('perm')} does not permute {len(args[0].axes)} axes")
        return Typed("transpose", [args[0].axes[p] for p in perm], args, {"perm": perm})

    def low(self, kernel: Affine, pad: int) -> Affine:
        """Padding before the first element: half a kernel, which is odd unless it is a number."""
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
        """How many windows lie along an axis."""
        if stride == 1:
            return size if pad == 0 else size - kernel + 1
        like = (stride, pad)
        for other, width, kind, count in self.strided:  # axes of one size have one number of positions
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

    def _conv2d(self, args: Any, params: Any, term: Apply) -> Typed:
        x, w = (a.axes for a in args)
        channels, per = self.system.reduce(x[1].size), self.system.reduce(w[1].size)
        ratio = channels.ratio(per)
        groups = ratio if ratio is not None else self.choices.choose(self.groups)
        if groups < 1 or groups != int(groups):
            raise NoMeaning("the channels are not a multiple of the weight's")
        self.system.equate(x[1].size, w[1].size * int(groups))
        if groups > 1:
            self.system.equate(w[0].size, self.fresh() * int(groups))
        space = [
            Axis(self.positions(x[2 + i].size, w[2 + i].size, params["stride_" + "hw"[i]], params["pad"]))
            for i in (0, 1)
        ]
        numbers = {"low_" + i: self.low(a.size, params["pad"]) for i, a in zip("hw", w[2:])}
        return Typed("conv2d", [x[0], w[0], *space], args, {**params, "groups": int(groups)}, numbers)

    def _pool(self, args: Any, params: Any, term: Apply) -> Typed:
        x = args[0].axes
        space = [
            Axis(self.positions(x[2 + i].size, Affine.of(params["kernel_" + "hw"[i]]), params["stride_" + "hw"[i]],
                                params["pad"]))
            for i in (0, 1)
        ]  # fmt: skip
        low = {"low_" + i: self.low(Affine.of(params["kernel_" + i]), params["pad"]) for i in "hw"}
        return Typed(term.op, [*x[:2], *space], args, params, low)

    _poolmax = _poolavg = _pool

    def _enlarge(self, args: Any, params: Any, term: Apply) -> Typed:
        w = args[0].axes
        wanted = (
            [a.size for a in args[1].axes[2:]] if len(args) > 1 else [Affine.of(params["kernel_" + i]) for i in "hw"]
        )
        numbers: dict[str, Affine] = {}
        for name, have, want in zip("hw", w[2:], wanted):
            before, odd = self.rims(have.size, want)
            numbers |= {"before_" + name: before, "after_" + name: before + odd}
        return Typed("enlarge", [*w[:2], *map(Axis, wanted)], args[:1], {}, numbers)

    def rims(self, have: Affine, want: Affine) -> tuple[Affine, Affine]:
        """Zeros before a kernel that is enlarged, and whether there is one more behind; the same for the same sizes."""
        for a, b, found in self.enlarged:
            if self.system.reduce(have - a).number == 0 and self.system.reduce(want - b).number == 0:
                return found
        before, odd = self.fresh(least=0), self.fresh(least=0, most=1)
        self.system.equate(want, have + before * 2 + odd)
        self.enlarged.append((have, want, (before, odd)))
        return before, odd

    def _merge(self, args: Any, params: Any, term: Apply) -> Typed:
        w = args[0].axes
        self.system.equate(w[0].size, self.fresh() * params["count"])
        return Typed("merge", [w[0], Axis(w[1].size * params["count"]), *w[2:]], args, params)

    def _reshape(self, args: Any, params: Any, term: Apply) -> Typed:
        shape = params["shape"] if isinstance(params["shape"], tuple) else (params["shape"],)
        sizes = [self.system.reduce(a.size) for a in args[0].axes]
        left, rest = divmod(prod(shape), prod(int(s.constant) for s in sizes if not s.terms))
        if rest:
            raise NoMeaning(f"{shape} does not hold as many elements")
        unknown = [s for s in sizes if s.terms]
        for size, number in zip(unknown, self.choices.choose(list(islice(factorings(left, len(unknown)), FACTORINGS)))):
            self.system.equate(size, number)
        return Typed("reshape", [Axis(Affine.of(d)) for d in shape], args, {"shape": shape})

    def _batchnorm(self, args: Any, params: Any, term: Apply) -> Typed:
        for a in args[1:]:
            self.system.equate(a.axes[0].size, args[0].axes[1].size)
        return Typed("batchnorm", args[0].axes, args, params)

    def _kernel(self, args: Any, params: Any, term: Apply) -> Typed:
        n = self.fresh(eager=True)
        if self.scope.constants and self.kernels:
            self.system.equate(n, self.kernels[0].axes[0].size)
        sizes = {i: Affine.of(params["kernel_" + i]) for i in "hw"}
        low = {"low_" + i: self.low(size, 0) for i, size in sizes.items()}
        return Typed(term.op, [Axis(n), Axis(n), *map(Axis, sizes.values())], (), params, low)

    _Iconv = _Cpool = _kernel

    def _Imatmul(self, args: Any, params: Any, term: Apply) -> Typed:
        n = self.fresh(eager=True)
        return Typed("Imatmul", [Axis(n), Axis(n)])

    def _Iewmul(self, args: Any, params: Any, term: Apply) -> Typed:
        rank = self.rank(self.ranks.ones[id(term)])
        return Typed("Iewmul", [Axis(self.fresh(eager=True)) for _ in range(rank)])

    # ------------------------------------------------------------ the whole rule
    def narrow(self, terms: Sequence[Term]) -> None:
        """The equations of the scope."""
        convs = [t for t in terms if isinstance(t, Apply) and t.op == "conv2d" and isinstance(t.args[1], Input)]
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
        """The family of shapes. NoMeaning or Inconsistent if there is none."""
        lefts, rights = self.rule.lefts, () if only_left else self.rule.rights
        ranks = [self.ranks.visit(t) for t in (*lefts, *rights)]
        for a, b in zip(ranks[: len(lefts)], ranks[len(lefts) :]):
            known = [self.ranks.find(i) in self.ranks.rank for i in (a, b)]
            if not all(known):  # if both are known they differ or not, which is the rule's business
                self.ranks.join(a, b)
        self.narrow([n for side in (*lefts, *rights) for n in nodes(side)])
        typed = [self.visit(t) for t in (*lefts, *rights)]
        found = tuple(zip(typed[: len(lefts)], typed[len(lefts) :])) if not only_left else ()
        for left, right in found:
            for p, q in zip(left.sizes, right.sizes):  # a constant of the language has the size that makes sides agree
                if any(u in self.system.eager for u, _ in self.system.reduce(p - q).terms):
                    self.system.equate(p, q)
        self.unite()
        self.system.settle()
        return Typing(tuple(typed), found, self.inputs, self.attrs, self.system, tuple(self.at_least), self.spans)

    def unite(self) -> None:
        """Axes that turned out to have one size have one number of positions, for an unknown stride too."""
        for (size, kernel, like, found), (other, width, kind, count) in combinations(self.strided, 2):
            same = self.system.reduce(size - other).number == 0 and like == kind and isinstance(like[0], Affine)
            if same and (like[1] == 0 or self.system.reduce(kernel - width).number == 0):
                self.system.equate(found, count)
                self.system.equate(self.spans[found, like[0]], self.spans[count, like[0]])


@dataclass(frozen=True, eq=False)
class Typing:
    """A family of shapes at which a rule's sides have types: unknown sizes with the equations between them."""

    terms: tuple[Typed, ...]  # all sides, left ones first
    pairs: tuple[tuple[Typed, Typed], ...]  # (left, right), empty if only left sides were typed
    inputs: Mapping[str, Typed]
    attrs: Mapping[str, Any]
    system: System
    at_least: tuple[tuple[Affine, int], ...]
    spans: Mapping[tuple[Affine, Affine], Affine]  # (positions - 1) * stride of unknown strides

    @property
    def ranks(self) -> dict[str, int]:
        """Ranks of the variables."""
        return {n: len(t.axes) for n, t in self.inputs.items()}

    def agrees(self) -> bool:
        """Whether left and right sides have the same shape in every member of the family."""
        return all(
            len(a.axes) == len(b.axes) and all(self.system.reduce(p - q).number == 0 for p, q in zip(a.sizes, b.sizes))
            for a, b in self.pairs
        )

    @property
    def pinned(self) -> int:
        """Elements of the largest side or variable of which all sizes are known."""
        shapes = [[self.system.reduce(s).number for s in t.sizes] for t in (*self.terms, *self.inputs.values())]
        return max((int(prod(s for s in shape if s is not None)) for shape in shapes if None not in shape), default=1)

    @cached_property
    def ranges(self) -> dict[int, tuple[int, int | None]]:
        """Bounds of the free unknowns that follow from one condition each, a few times over: least and largest value."""
        system, low = self.system, dict(self.system.least)
        high: dict[int, int | None] = {u: system.most.get(u) for u in range(system.count)}
        conditions = [(e - system.least[u]) for u, e in system.given.items()]
        conditions += [(e * -1 + system.most[u]) for u, e in system.given.items() if u in system.most]
        conditions += [system.reduce(e) - least for e, least in self.at_least]
        for expr in conditions * 3:  # expr >= 0
            for u, c in expr.terms:
                largest = [(k, low[v] if k < 0 else high[v]) for v, k in expr.terms if v != u]
                known = [k * n for k, n in largest if n is not None]
                if len(known) < len(largest):
                    continue
                bound = quotient(sum(known, expr.constant) * -1, c)
                if c > 0:
                    low[u] = max(low[u], ceil(bound))
                else:
                    top = high[u]
                    high[u] = floor(bound) if top is None else min(top, floor(bound))
        return {u: (low[u], high[u]) for u in system.free}

    def draw(self, rng: random.Random, largest: int) -> dict[int, int] | None:
        """Numbers for all unknowns, None if the ones that were drawn do not fit."""
        least, most = self.system.least, self.system.most
        values: dict[int, int] = {}
        for u, (low, high) in self.ranges.items():
            if high is not None and high < low:
                return None
            top = max(low, largest) if high is None else min(high, max(low, largest))
            if high is not None and rng.random() < 0.5:  # what it is taken from is small
                low, top = max(low, high - largest), high
            values[u] = rng.randint(low, top)
        for u, expr in self.system.given.items():
            value = expr.at(values)
            if value.denominator != 1 or not least[u] <= value <= most.get(u, value):
                return None
            values[u] = int(value)
        fits = all(e.at(values) >= least for e, least in self.at_least)
        return values if fits else None

    def instances(
        self, rng: random.Random, count: int, *, tries: int = 40, volume: int = 5000, work: int = WORK
    ) -> Iterator[TextInstance]:
        """Up to `count` members with different sizes, small ones (unless a rule names large ones); `tries` draws for each."""
        seen = set()
        volume = max(volume, min(self.pinned, PINNED))
        for _ in range(count):
            for attempt in range(tries):
                values = self.draw(rng, rng.choice(LARGEST[attempt % 2 :]))
                if values is None or (key := tuple(sorted(values.items()))) in seen:
                    continue
                seen.add(key)
                found = TextInstance(self, values)
                if found.volume <= volume and found.work <= work:
                    yield found
                    break

    def fits(self, rng: random.Random, *, tries: int = 40) -> bool:
        """Whether sizes are found at all, however large."""
        return any(self.draw(rng, LARGEST[i % len(LARGEST)]) is not None for i in range(tries))


class TextInstance:
    """A rule at concrete sizes."""

    def __init__(self, typing: Typing, values: Mapping[int, int]) -> None:
        self.typing, self.values = typing, dict(values)
        self.known: dict[Affine, int] = {}

    def size(self, expr: Affine) -> int:
        """A size as a number."""
        if not expr.terms:
            return int(expr.constant)
        if (found := self.known.get(expr)) is None:
            found = self.known[expr] = int(expr.at(self.values))
        return found

    def shape(self, typed: Typed) -> tuple[int, ...]:
        """A shape as numbers."""
        return tuple(map(self.size, typed.sizes))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensor variables."""
        return {n: self.shape(t) for n, t in self.typing.inputs.items()}

    @property
    def volume(self) -> int:
        """Elements of the largest side or variable."""
        return max(prod(self.shape(t)) for t in (*self.typing.terms, *self.typing.inputs.values()))

    @property
    def work(self) -> int:
        """Elements of all values and of all windows: what an evaluation costs."""
        return sum(prod(self.shape(t)) * self._window(t) for t in subterms(self.typing.terms))

    def _window(self, typed: Typed) -> int:
        if typed.op == "conv2d":
            return prod(self.shape(typed.args[1])[1:])
        return typed.params["kernel_h"] * typed.params["kernel_w"] if typed.op in ("poolmax", "poolavg") else 1

    def sides(self, dtype: str = "float32") -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair, over one input per variable. ShapeError where the shapes do not fit after all."""
        return [(self.build(a, dtype), self.build(b, dtype)) for a, b in self.typing.pairs]

    def lefts(self, dtype: str = "float32") -> list[Tensor]:
        """The left sides alone."""
        n = len(self.typing.pairs) or len(self.typing.terms)
        return [self.build(t, dtype) for t in self.typing.terms[:n]]

    def build(self, typed: Typed, dtype: str = "float32") -> Tensor:
        """The tensor of a typed term. Its shape is that of the term, or ShapeError says what is wrong."""
        found = _BUILD[typed.op](self, typed, [self.build(a, dtype) for a in typed.args], dtype)
        if tuple(found.shape) != self.shape(typed):
            raise ShapeError(f"{typed.op} has shape {found.shape}, not {self.shape(typed)}")
        return found

    def pads(self, kernel: Sequence[int], pad: int) -> tuple[int, ...]:
        """Low sides, then high sides."""
        if pad == 1:
            return (0,) * 4
        low = [(k - 1) // 2 for k in kernel]
        return (*low, *(k - 1 - p for k, p in zip(kernel, low)))

    def __str__(self) -> str:
        shown = [f"?{n}: {list(s)}" for n, s in self.shapes.items()]
        return "; ".join([*shown, *(f"?{n} = {v}" for n, v in self.typing.attrs.items())])


# ---------------------------------------------------------------- terms as tensors
def _activated(found: Tensor, typed: Typed) -> Tensor:
    activation: Callable[[Tensor], Tensor] = ACTIVATIONS[typed.params.get("act", 0)]
    return activation(found)


def _conv(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    p, kernel = typed.params, at.shape(typed.args[1])[2:]
    attrs = {"strides": (p["stride_h"], p["stride_w"]), "pads": at.pads(kernel, p["pad"]), "dilations": (1, 1),
             "groups": p["groups"]}  # fmt: skip
    return _activated(make("conv", args, attrs), typed)


def _pooled(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    p = typed.params
    kernel = (p["kernel_h"], p["kernel_w"])
    attrs = {
        "kernel": kernel,
        "strides": (p["stride_h"], p["stride_w"]),
        "pads": at.pads(kernel, p["pad"]),
        "dilations": (1, 1),
    }
    return _activated(make({"poolmax": "max_pool", "poolavg": "avg_pool"}[typed.op], args, attrs), typed)


def _split(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    axis, cut = typed.params["axis"], at.size(typed.numbers["cut"])
    first = typed.op == "split_0"
    stop = cut if first else args[0].shape[axis]
    return make("slice", args, {"axis": axis, "start": 0 if first else cut, "stop": stop, "step": 1})


def _enlarge(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    found = args[0]
    for axis, name in ((2, "h"), (3, "w")):
        low, high = (at.size(typed.numbers[side + name]) for side in ("before_", "after_"))
        if low + high:
            found = make("pad", (found,), {"axis": axis, "lo": low, "hi": high, "value": 0.0})
    return found


def eye_kernel(n: int, h: int, w: int) -> np.ndarray[Any, Any]:
    """The kernel [n, n, h, w] that changes nothing under "same" padding."""
    found = np.zeros((n, n, h, w))
    found[range(n), range(n), (h - 1) // 2, (w - 1) // 2] = 1
    return found


def _pool_kernel(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    n, _, h, w = at.shape(typed)
    each = np.broadcast_to(np.eye(n)[:, :, None, None], (n, n, h, w)).astype(dtype)
    return make("mul", (constant(each), api.full((1, 1, 1, 1), 1.0 / (h * w), dtype)))


def _merged(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    count, (w,) = typed.params["count"], args
    rows, per = w.shape[0] // count, w.shape[1]
    parts = []
    for i in range(count):
        part = make("slice", (w,), {"axis": 0, "start": i * rows, "stop": (i + 1) * rows, "step": 1})
        part = make("pad", (part,), {"axis": 1, "lo": i * per, "hi": (count - 1 - i) * per, "value": 0.0})
        parts.append(part)
    return api.concat(parts, 0)


def _scaled(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    x, factor = args
    return make("mul", (x, api.with_rank(factor, x.rank)))


def _scalar(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    return api.full((), typed.params["value"], dtype)


_BUILD: dict[str, Callable[[TextInstance, Typed, list[Tensor], str], Tensor]] = {
    "input": lambda at, t, a, d: api.input(t.params["name"], at.shape(t), d),
    "number": _scalar,
    "ewadd": lambda at, t, a, d: make("add", a),
    "ewmul": lambda at, t, a, d: make("mul", a),
    "smul": _scaled,
    "relu": lambda at, t, a, d: composite.relu(*a),
    "tanh": lambda at, t, a, d: api.tanh(*a),
    "sigmoid": lambda at, t, a, d: composite.sigmoid(*a),
    "matmul": lambda at, t, a, d: _activated(make("matmul", a), t),
    "conv2d": _conv,
    "poolmax": _pooled,
    "poolavg": _pooled,
    "concat": lambda at, t, a, d: make("concat", a, {"axis": t.params["axis"]}),
    "split_0": _split,
    "split_1": _split,
    "transpose": lambda at, t, a, d: make("permute", a, {"perm": t.params["perm"]}),
    "enlarge": _enlarge,
    "merge": _merged,
    "reshape": lambda at, t, a, d: make("reshape", a, {"shape": t.params["shape"]}),
    "batchnorm": lambda at, t, a, d: make("batch_norm", a),
    "Iconv": lambda at, t, a, d: constant(eye_kernel(*at.shape(t)[1:]).astype(d)),
    "Cpool": _pool_kernel,
    "Imatmul": lambda at, t, a, d: constant(np.eye(at.shape(t)[0], dtype=d)),
    "Iewmul": lambda at, t, a, d: api.ones(at.shape(t), d),
}


# ---------------------------------------------------------------- enumeration
class Families(NamedTuple):
    """The families of shapes of a rule; where there is none, why. `complete` unless the limit ended the enumeration."""

    found: list[Typing]
    why: str
    complete: bool


def typings(
    rule: TextRule,
    scope: Scope = SCOPES[0],
    *,
    only_left: bool = False,
    symbolic: bool = False,
    limit: int = 400,
    until: float = inf,
) -> Families:
    """The families of shapes at which all sides have types, `limit` combinations of choices tried at most, and none
    after `until` (`perf_counter`). With `only_left`
    the right sides are not typed; with `symbolic` strides and kernels that are variables stay unknown, and no members can be
    drawn."""
    choices, found, why = _Choices(), [], ""
    for _ in range(limit):
        choices.at = 0
        try:
            found.append(_Typer(rule, choices, scope, symbolic).run(only_left))
        except Inconsistent:
            why = why or "no sizes fit all its operators"
        except NoMeaning as error:
            why = why or str(error)
        if not choices.next():
            return Families(found, why, True)
        if perf_counter() > until:
            break
    return Families(found, why, False)


def members(families: Sequence[Typing], *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """Members of families at different sizes, ranks and parameters: two at least of each, `count` in all if there are that
    many."""
    rng = random.Random(seed)
    each = -(-count // max(1, len(families)))
    return [x for family in families for x in family.instances(rng, max(2, each))]


def instances(rule: TextRule, *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """`members` under the narrowest scope that has any, with sides of one shape if possible: shapes at which a right rule is
    right however it is read."""
    for scope in reversed(scopes(rule)):
        families = typings(rule, scope).found
        if found := members([f for f in families if f.agrees()] or families, seed=seed, count=count):
            return found
    return []
