"""Proofs of our own layout and elementwise rules by SMT: all sizes, offsets and values at once, one rank at a time.

For given ranks, axes and permutations every size, offset, stride and index is an integer unknown of z3, and an element of a
value is a term over elements of the variables: layout ops choose which one, elementwise ops are functions. A rule is proved
at these ranks if no sizes, attributes and index satisfy the types of the left side and the guards, and yet the right side has
no type, another type, or another element there. Functions are uninterpreted first (which proves equality bit by bit, in any
dtype); if that is not enough and the rule does not claim to be exact, + - * / maximum minimum and comparisons are those of
the reals, and division by zero must happen on both sides or on none.

Why a few ranks stand for all: an axis that no attribute names is carried along elementwise by every op treated here, so what
holds with one such axis holds with any number of them; and how the named axes lie to each other is one of finitely many
patterns, all of which occur at one rank more than there are names. A reshape is an unknown map of indices that depends on
the two shapes, whatever their ranks. Rules in permutations compare words of a few of them, and no word of one to six letters
in two permutations and their inverses is trivial on all permutations of four axes.

Matrix products and sums over axes are sums over indices of terms (`Total`). Products distribute over them, a choice between two
values is one between their terms, and a sum over the rows of a concat is one over either part. Two sums are equal if, range by
range, the terms together are: z3 is asked at an arbitrary index. Convolutions and means over windows are such sums, whose
terms are zero outside of the image; spatial axes are treated alike, so that one and two stand for any number. Other reductions and
look-ups are beyond this method, as is a sum of what is not finite everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations, count, permutations, product
from typing import Any

from ..egraph import api
from ..egraph.composite import expand
from ..egraph.graph import Tensor, make
from ..egraph.ops import OPS, Op
from ..egraph.pattern import (
    FUNCTIONS,
    Apply,
    Attr,
    Call,
    Literal,
    Name,
    Term,
    Value,
    Var,
    attr_names,
    subterms,
    variables,
)
from ..egraph.rule import Rule

COST = ("weight", "active", "chained", "original", "ordered")  # where a rule pays, not where it is true
LAYOUT = ("permute", "slice", "concat", "pad", "flip", "broadcast_to", "full", "iota", "reshape")
BITWISE = ("and", "or", "xor")
MILLISECONDS = 400  # per question to z3
QUESTIONS = 4000
RANKS = 4
NAMES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
BOOL, OTHER = 0, 1000  # codes of dtypes; those of variables are unknowns above OTHER
CONTRACTIONS = ("matmul", "linear", "sum", "mean", "conv", "avg_pool")
RING = ("add", "sub", "mul", "neg", "matmul", "linear", "sum", "conv")
WINDOWED = {
    "strides": 1,
    "dilations": 1,
    "kernel": 1,
    "pads": 2,
}  # attributes with so many numbers for each spatial axis
SPATIAL = (1, 2)  # how many of these axes there are: each is treated alike
TERMS = 64  # of a sum


class Beyond(Exception):
    """Outside this method."""


class _Reject(Exception):
    """No value at these ranks and axes."""


def z3() -> Any:
    """The solver, or Beyond if it is not installed."""
    try:
        import z3 as module
    except ImportError as error:
        raise Beyond("z3 is not installed (pip install 'tensor-graphs[rules]')") from error
    return module


@dataclass
class Sym:
    """A value with symbolic sizes: its element at an index is a term."""

    shape: tuple[Any, ...]
    dtype: Any
    at: Callable[[Sequence[Any]], Any]
    boolean: bool = False


@dataclass
class _Facts:
    """What is assumed or to be shown, and where an element has no finite value."""

    said: list[Any] = field(default_factory=list)
    undefined: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Total:
    """A sum of sums: each term is a body, summed over index variables that each run from 0 to below a size."""

    terms: tuple[tuple[tuple[tuple[Any, Any], ...], Any], ...]

    @staticmethod
    def of(value: Any) -> Total:
        """A single element as a sum."""
        return value if isinstance(value, Total) else Total((((), value),))

    def map(self, f: Callable[[Any], Any]) -> Total:
        """Every body changed by a linear function."""
        return Total(tuple((bound, f(body)) for bound, body in self.terms))

    def plus(self, other: Total) -> Total:
        """Both sums."""
        return Total(self.terms + other.terms)

    def times(self, other: Total) -> Total:
        """The product, term by term. Their index variables differ."""
        if len(self.terms) * len(other.terms) > TERMS:
            raise Beyond("the products grow")
        return Total(tuple((a + b, x * y) for a, x in self.terms for b, y in other.terms))

    def over(self, *indices: tuple[Any, Any]) -> Total:
        """The sum over more indices."""
        return Total(tuple((indices + bound, body) for bound, body in self.terms))


# ---------------------------------------------------------------- one structure
class _World:
    """A rule at chosen ranks, axes and permutations."""

    def __init__(self, rule: Rule, ranks: Mapping[str, int], fixed: Mapping[str, Any], real: bool) -> None:
        self.z, self.rule, self.real = z3(), rule, real
        self.facts = _Facts()
        z = self.z
        self.sort = z.RealSort() if real else z.DeclareSort("Value")
        self.env: dict[str, Any] = dict(fixed)
        self.summed = count()
        bits = _bits(rule)
        self.booleans = booleans(rule) | bits
        for name, rank in ranks.items():
            shape = tuple(z.Int(f"{name}.{i}") for i in range(rank))
            self.facts.said += [d >= 0 for d in shape]
            boolean = name in self.booleans
            function = z.Function(name, *[z.IntSort()] * rank, z.BoolSort() if boolean else self.sort)
            code = z.IntVal(BOOL) if boolean and name not in bits else z.Int(f"dtype.{name}")
            if not boolean:
                self.facts.said.append(code > OTHER)
            self.env[name] = Sym(shape, code, _reader(function), boolean)

    def function(self, name: str, *sorts: Any) -> Any:
        """An uninterpreted function."""
        return self.z.Function(name, *sorts)

    # ------------------------------------------------------------ attributes
    def value(self, attr: Attr) -> Any:
        """An attribute expression over unknowns."""
        z = self.z
        if isinstance(attr, Value):
            return attr.value
        if isinstance(attr, Name):
            if attr.name not in self.env:
                raise Beyond(f"{attr.name} has no value")
            return self.env[attr.name]
        args = [self.value(a) for a in attr.args]
        f = attr.function
        if f in COST:
            return True
        if f in ("rank", "size", "shape", "volume", "fits", "dtype", "scalar", "floating"):
            return self.about(f, args)
        symbolic = any(z.is_expr(x) for a in args for x in (a if isinstance(a, tuple) else (a,)))
        if f in ("eq", "ne"):
            same = self.equal(*args)
            return same if f == "eq" else (z.Not(same) if z.is_expr(same) else not same)
        if f == "floordiv" and symbolic:
            self.facts.said.append(args[1] > 0)
            return args[0] / args[1]
        if f in ("min", "max") and symbolic:
            return z.If((args[0] <= args[1]) == (f == "min"), *args)
        if f in ("at", "drop", "insert", "replace", "compose", "permuted", "index", "inverse", "contains", "identity"):
            places = args[1:2] if f not in ("compose", "permuted", "inverse", "identity", "index", "contains") else args
            if f != "permuted" and any(
                z.is_expr(p) or (isinstance(p, tuple) and any(map(z.is_expr, p))) for p in places
            ):
                raise Beyond(f"{f} at an unknown place")
        try:
            return FUNCTIONS[f](*args)
        except (IndexError, ValueError, ZeroDivisionError, KeyError) as error:
            raise _Reject from error

    def about(self, f: str, args: Sequence[Any]) -> Any:
        """A function of a tensor's type."""
        z, x = self.z, args[0]
        if f == "rank":
            return len(x.shape)
        if f == "size":
            if z.is_expr(args[1]):
                raise Beyond("the size of an unknown axis")
            if not -len(x.shape) <= args[1] < len(x.shape):
                raise _Reject
            return x.shape[args[1]]
        if f == "shape":
            return x.shape
        if f == "volume":
            return reduce(lambda a, b: a * b, x.shape, z.IntVal(1))
        if f == "dtype":
            return x.dtype
        if f == "scalar":
            return z.And(*(d == 1 for d in x.shape)) if x.shape else True
        if f == "floating":
            return z.Function("floating", z.IntSort(), z.BoolSort())(x.dtype)
        other = args[1]
        if len(x.shape) != len(other.shape):
            return False
        return z.And(*(z.Or(a == 1, a == b) for a, b in zip(x.shape, other.shape))) if x.shape else True

    def equal(self, a: Any, b: Any) -> Any:
        """Equality of numbers, vectors or dtypes."""
        if isinstance(a, tuple) or isinstance(b, tuple):
            if not (isinstance(a, tuple) and isinstance(b, tuple)) or len(a) != len(b):
                return False
            parts = [self.equal(x, y) for x, y in zip(a, b)]
            if any(p is False for p in parts):
                return False
            parts = [p for p in parts if p is not True]
            return self.z.And(*parts) if parts else True
        a, b = (self.code(x) if isinstance(x, str) else x for x in (a, b))
        if not self.real and any(self.z.is_expr(x) and str(x).startswith("number ") for x in (a, b)):
            raise Beyond("a condition on a number")
        return a == b

    def code(self, dtype: str) -> Any:
        """A dtype as a number."""
        return self.z.IntVal(BOOL if dtype == "bool" else OTHER + 1 + NAMES.index(dtype))

    def number(self, value: Any, dtype: Any) -> Any:
        """A constant, known or not, as an element of a dtype (in which it may be rounded)."""
        z = self.z
        if self.real:
            if z.is_expr(value):
                return value
            if value != value or value in (float("inf"), float("-inf")):
                raise Beyond("an infinite constant")
            return z.RealVal(value)
        code = value if z.is_expr(value) else z.Int(f"number {float(value)!r}")
        return self.function("number", z.IntSort(), z.IntSort(), self.sort)(code, dtype)

    # ------------------------------------------------------------ terms
    def term(self, term: Term, facts: _Facts, like: Sym | None = None) -> Sym:
        """A term's symbolic value; what its types ask for is added to the facts."""
        if isinstance(term, Var):
            found = self.env[term.name]
            assert isinstance(found, Sym)
            return found
        if isinstance(term, Literal):
            tensor = self.env[term.like] if term.like else like
            rank = len(tensor.shape) if tensor is not None else 0
            if tensor is None or tensor.boolean:
                raise Beyond("a number without a dtype")
            value = self.number(term.value, tensor.dtype)
            return Sym((1,) * rank, tensor.dtype, lambda i: value)
        built = [None if isinstance(a, Literal) and not a.like else self.term(a, facts) for a in term.args]
        sibling = next((b for b in reversed(built) if b is not None), None)
        args = [b if b is not None else self.term(a, facts, sibling) for a, b in zip(term.args, built)]
        attrs = {n: self.value(a) for n, a in term.attrs}
        if term.op in LAYOUT or term.op in CONTRACTIONS:
            law: Callable[..., Sym] = getattr(self, f"_{term.op}")
            return law(args, attrs, facts)
        entry = OPS[term.op]
        if entry.pointwise or (entry.composite and entry.law == "pointwise"):
            return self.pointwise(entry, args, attrs, facts)
        raise Beyond(f"{term.op} is no layout or elementwise op")

    def axis(self, x: Sym, attrs: Mapping[str, Any]) -> int:
        """The axis attribute, which must be known and exist."""
        axis = attrs["axis"]
        if self.z.is_expr(axis):
            raise Beyond("an unknown axis")
        if not -len(x.shape) <= axis < len(x.shape):
            raise _Reject
        return int(axis) % len(x.shape)

    def _permute(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), perm = args, attrs["perm"]
        if sorted(perm) != list(range(len(x.shape))):
            raise _Reject
        back = {p: i for i, p in enumerate(perm)}
        return Sym(
            tuple(x.shape[p] for p in perm), x.dtype, lambda i: x.at([i[back[d]] for d in range(len(perm))]), x.boolean
        )

    def _slice(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
        facts.said += [start >= 0, start <= stop, stop <= x.shape[axis], step >= 1]
        size = stop - start if isinstance(step, int) and step == 1 else (stop - start + step - 1) / step

        def at(i: Sequence[Any]) -> Any:
            return x.at([*i[:axis], start + step * i[axis], *i[axis + 1 :]])

        return Sym(_put(x.shape, axis, size), x.dtype, at, x.boolean)

    def _flip(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        return Sym(
            x.shape, x.dtype, lambda i: x.at([*i[:axis], x.shape[axis] - 1 - i[axis], *i[axis + 1 :]]), x.boolean
        )

    def _concat(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x, y), axis = args, self.axis(args[0], attrs)
        if len(x.shape) != len(y.shape) or x.boolean != y.boolean:
            raise _Reject
        facts.said += [a == b for i, (a, b) in enumerate(zip(x.shape, y.shape)) if i != axis]
        facts.said.append(x.dtype == y.dtype)
        n = x.shape[axis]

        def at(i: Sequence[Any]) -> Any:
            return self.either(i[axis] < n, x.at(i), y.at([*i[:axis], i[axis] - n, *i[axis + 1 :]]))

        return Sym(_put(x.shape, axis, n + y.shape[axis]), x.dtype, at, x.boolean)

    def _pad(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        lo, hi, n = attrs["lo"], attrs["hi"], args[0].shape[axis]
        if x.boolean:
            raise Beyond("padding of booleans")
        facts.said += [self.z.IntVal(0) <= lo, self.z.IntVal(0) <= hi]
        value = self.number(attrs["value"], x.dtype)

        def at(i: Sequence[Any]) -> Any:
            inside = self.z.And(i[axis] >= lo, i[axis] < lo + n)
            return self.either(inside, x.at([*i[:axis], i[axis] - lo, *i[axis + 1 :]]), value)

        return Sym(_put(x.shape, axis, lo + n + hi), x.dtype, at)

    def _broadcast_to(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), shape = args, attrs["shape"]
        if len(shape) != len(x.shape):
            raise _Reject
        facts.said += [self.z.Or(a == 1, a == b) for a, b in zip(x.shape, shape)]
        return Sym(tuple(shape), x.dtype, lambda i: x.at(self.narrowed(x.shape, i)), x.boolean)

    def _full(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        value = self.number(attrs["value"], dtype)
        facts.said += [d >= 0 for d in attrs["shape"]]
        return Sym(tuple(attrs["shape"]), dtype, lambda i: value)

    def _reshape(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        """An unknown map of indices that depends on both shapes alone; volumes are unknown functions of shapes."""
        (x,), shape, number = args, tuple(attrs["shape"]), self.z.IntSort()
        volumes = [self.function(f"volume {len(s)}", *[number] * len(s), number)(*s) for s in (x.shape, shape)]
        facts.said += [volumes[0] == volumes[1], *(d >= 0 for d in shape)]
        label = f"place {len(x.shape)} {len(shape)}"
        sorts = [number] * (len(x.shape) + 2 * len(shape) + 1)
        places = [self.function(f"{label} {k}", *sorts) for k in range(len(x.shape))]

        def at(i: Sequence[Any]) -> Any:
            where = [p(*x.shape, *shape, *i) for p in places]
            inside = self.z.And(*(c for k, d in zip(i, shape) for c in (k >= 0, k < d)), True)
            facts.said += [self.z.Implies(inside, self.z.And(p >= 0, p < d)) for p, d in zip(where, x.shape)]
            if len(shape) == len(x.shape):
                same = self.z.And(*(a == b for a, b in zip(shape, x.shape)), True)
                facts.said += [self.z.Implies(same, p == k) for p, k in zip(where, i)]
            return x.at(where)

        return Sym(shape, x.dtype, at, x.boolean)

    def _iota(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        raise Beyond("iota")

    def narrowed(self, shape: Sequence[Any], i: Sequence[Any]) -> list[Any]:
        """An index with 0 where the operand's axis has size 1."""
        return [
            k if d is k else self.z.If(d == 1, 0, k) if self.z.is_expr(d) else (0 if d == 1 else k)
            for d, k in zip(shape, i)
        ]

    def pointwise(self, entry: Op, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        """An elementwise op: sizes broadcast, dtypes agree."""
        z = self.z
        if len({len(a.shape) for a in args}) != 1:
            raise _Reject
        values = args[1:] if entry.law == "where" else args
        if entry.law == "where" and not args[0].boolean:
            raise Beyond("a condition that is no boolean")
        if len({a.boolean for a in values}) > 1:
            raise _Reject
        facts.said += [values[0].dtype == v.dtype for v in values[1:]]
        shape = []
        for sizes in zip(*(a.shape for a in args)):
            size = sizes[0]
            for other in sizes[1:]:
                facts.said.append(z.Or(size == other, size == 1, other == 1) if size is not other else z.BoolVal(True))
                size = (
                    size
                    if size is other
                    else z.If(size == 1, other, size)
                    if z.is_expr(size)
                    else other
                    if size == 1
                    else size
                )
            shape.append(size)
        boolean = entry.law == "compare" or values[0].boolean
        dtype = z.IntVal(BOOL) if entry.law == "compare" else values[0].dtype
        if entry.law == "cast":
            dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
            if values[0].boolean:
                raise Beyond("a cast of booleans")

        def at(i: Sequence[Any]) -> Any:
            kind = dtype if entry.law == "cast" else values[0].dtype
            return self.element(entry, [a.at(self.narrowed(a.shape, i)) for a in args], attrs, facts, boolean, kind)

        return Sym(tuple(shape), dtype, at, boolean)

    # ------------------------------------------------------------ elements
    def element(
        self, entry: Op, x: list[Any], attrs: Mapping[str, Any], facts: _Facts, boolean: bool, dtype: Any
    ) -> Any:
        """An elementwise op of elements."""
        z, name = self.z, entry.name
        if name == "where":
            return self.either(*x)
        if any(isinstance(v, Total) for v in x):
            return self.linear(name, list(map(Total.of, x)))
        if all(v.sort() == z.BoolSort() for v in x):
            logic = {"and": z.And, "or": z.Or, "xor": z.Xor, "not": z.Not}
            if name not in logic:
                raise Beyond(f"{name} of booleans")
            return logic[name](*x)
        if self.real and entry.composite:
            return self.decomposed(entry, x, attrs, facts)
        if self.real and name in _REAL:
            if name in ("div", "recip"):
                facts.undefined.append(x[-1] == 0)
            return _REAL[name](z, *x)
        if self.real and name in PARTIAL:
            facts.undefined.append(self.function(f"undefined {name}", *[self.sort] * len(x), z.BoolSort())(*x))
        if name == "cast":
            return self.function("cast", self.sort, z.IntSort(), self.sort)(x[0], dtype)
        if any(z.is_expr(v) for v in attrs.values()):
            raise Beyond(f"{name} with unknown attributes")
        label = name + ("" if not attrs else repr(sorted(attrs.items())))
        if entry.commutative and not (self.rule.exact and name in ("maximum", "minimum")):  # of 0.0 and -0.0
            # operands in an unknown order of all values: says no more than commutativity
            ordered = self.function("before", self.sort, self.sort, z.BoolSort())
            first, second = z.If(ordered(*x), x[0], x[1]), z.If(ordered(*x), x[1], x[0])
            facts.said += [z.Or(x[0] == x[1], ordered(x[0], x[1]) != ordered(x[1], x[0]))]
            x = [first, second]
        function = self.function(label, *[self.sort] * len(x), z.IntSort(), z.BoolSort() if boolean else self.sort)
        return function(*x, z.IntVal(0) if self.real else dtype)  # rounding depends on the dtype

    # ------------------------------------------------------------ sums
    def either(self, condition: Any, x: Any, y: Any) -> Any:
        """One of two values."""
        z = self.z
        if not isinstance(x, Total) and not isinstance(y, Total):
            return z.If(condition, x, y)
        if isinstance(condition, Total):
            raise Beyond("a condition on a sum")
        first = Total.of(x).map(lambda body: z.If(condition, body, z.RealVal(0)))
        return first.plus(Total.of(y).map(lambda body: z.If(condition, z.RealVal(0), body)))

    def linear(self, name: str, x: list[Total]) -> Total:
        """An elementwise op of sums."""
        if name in ("add", "sub"):
            return x[0].plus(x[1] if name == "add" else x[1].map(lambda body: -body))
        if name == "neg":
            return x[0].map(lambda body: -body)
        if name == "mul":
            return x[0].times(x[1])
        raise Beyond(f"{name} of a sum")

    def index(self, size: Any) -> tuple[Any, Any]:
        """A new summed index of a range."""
        return self.z.Int(f"sum.{next(self.summed)}"), size

    def total(self, read: Callable[[], Any], facts: _Facts, indices: Sequence[tuple[Any, Any]]) -> Total:
        """The sum of what is read over indices; it must be finite everywhere."""
        if not self.real:
            raise Beyond("a sum of elements that nothing is known of")
        before = len(facts.undefined)
        found = Total.of(read()).over(*indices)
        inside = self.z.And(*(n > 0 for _, n in indices), True)
        for at in range(before, len(facts.undefined)):
            condition = facts.undefined[at]
            if not self.z.substitute(condition, *((k, k + 1) for k, _ in indices)).eq(condition):
                raise Beyond("a sum of what is not finite everywhere")
            facts.undefined[at] = self.z.And(condition, inside)
        return found

    def _matmul(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        z, (x, y) = self.z, args
        if len(x.shape) < 2 or len(y.shape) not in (2, len(x.shape)):
            raise _Reject
        if x.boolean or y.boolean:
            raise Beyond("a product of booleans")
        facts.said += [x.shape[-1] == y.shape[-2], x.dtype == y.dtype]
        lead = list(x.shape[:-2])
        for d, other in enumerate(y.shape[:-2]):
            facts.said.append(z.Or(lead[d] == other, lead[d] == 1, other == 1))
            lead[d] = z.If(lead[d] == 1, other, lead[d])

        def at(i: Sequence[Any]) -> Any:
            k = self.index(x.shape[-1])
            rows = self.narrowed(x.shape[:-2], i[:-2])
            columns = self.narrowed(y.shape[:-2], i[:-2])

            def read() -> Any:
                a, b = x.at([*rows, i[-2], k[0]]), y.at([*columns, k[0], i[-1]])
                return Total.of(a).times(Total.of(b))

            return self.total(read, facts, [k])

        return Sym((*lead, x.shape[-2], y.shape[-1]), x.dtype, at)

    def _linear(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        x, w, b = args
        if len(w.shape) != 2 or len(b.shape) != 1 or b.boolean:
            raise _Reject
        whole = self._matmul([x, w], attrs, facts)
        facts.said += [b.shape[0] == w.shape[1], b.dtype == x.dtype]
        return Sym(whole.shape, x.dtype, lambda i: Total.of(whole.at(i)).plus(Total.of(b.at([i[-1]]))))

    def windows(self, x: Sym, kernel: Sequence[Any], attrs: Mapping[str, Any], facts: _Facts) -> tuple[list[Any], Any]:
        """Sizes of the spatial axes of what reads an image through windows, and where in the image it reads: (index of the
        result, indices in the window) -> (places, whether they are inside)."""
        z, n = self.z, len(x.shape) - 2
        strides, dilations, pads = attrs["strides"], attrs["dilations"], attrs["pads"]
        if n < 1 or len(kernel) != n or len(strides) != n or len(dilations) != n or len(pads) != 2 * n:
            raise _Reject
        sizes = []
        for j in range(n):
            span = x.shape[2 + j] + pads[j] + pads[n + j] - dilations[j] * (kernel[j] - 1) - 1
            sizes.append(self.strided("positions", span, strides[j]) + 1)
            facts.said += [z.IntVal(1) <= strides[j], z.IntVal(1) <= dilations[j], span >= 0]

        def read(i: Sequence[Any], inner: Sequence[Any]) -> tuple[list[Any], Any]:
            places = [self.strided("step", i[2 + j], strides[j]) + inner[j] * dilations[j] - pads[j] for j in range(n)]
            return places, z.And(*(c for j, p in enumerate(places) for c in (p >= 0, p < x.shape[2 + j])))

        return sizes, read

    def strided(self, name: str, value: Any, stride: Any) -> Any:
        """A value divided by a stride, or multiplied with it: an unknown function, which is all that is needed of them."""
        if not self.z.is_expr(stride) and stride == 1:
            return value
        number = self.z.IntSort()
        return self.function(name, number, number, number)(value, stride)

    def _conv(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        z, (x, w), groups = self.z, args, attrs["groups"]
        if len(x.shape) != len(w.shape) or len(x.shape) < 3:
            raise _Reject
        if x.boolean or w.boolean:
            raise Beyond("a convolution of booleans")
        sizes, read = self.windows(x, w.shape[2:], attrs, facts)
        facts.said += [x.dtype == w.dtype, z.IntVal(1) <= groups, x.shape[1] == w.shape[1] * groups]
        one = not z.is_expr(groups) and groups == 1
        if not one:
            rows = self.function("rows", z.IntSort(), z.IntSort(), z.IntSort())(w.shape[0], groups)
            facts.said.append(w.shape[0] == rows * groups)

        def at(i: Sequence[Any]) -> Any:
            c, *inner = (self.index(size) for size in w.shape[1:])
            channel = c[0]
            if not one:  # an unknown place among those of the group
                channel = self.function("channel", *[z.IntSort()] * 6)(i[1], c[0], *w.shape[:2], groups)
                known = z.And(i[1] >= 0, i[1] < w.shape[0], c[0] >= 0, c[0] < w.shape[1])
                facts.said.append(z.Implies(known, z.And(channel >= 0, channel < x.shape[1])))
            places, inside = read(i, [k for k, _ in inner])

            def product_() -> Any:
                a = self.either(inside, x.at([i[0], channel, *places]), z.RealVal(0))
                return Total.of(a).times(Total.of(w.at([i[1], c[0], *(k for k, _ in inner)])))

            return self.total(product_, facts, [c, *inner])

        return Sym((x.shape[0], w.shape[0], *sizes), x.dtype, at)

    def _avg_pool(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        z, (x,), kernel = self.z, args, attrs["kernel"]
        if x.boolean:
            raise Beyond("a mean of booleans")
        sizes, read = self.windows(x, kernel, attrs, facts)
        facts.said += [z.IntVal(1) <= k for k in kernel]
        share = self.function("share", z.IntSort(), z.RealSort())

        def at(i: Sequence[Any]) -> Any:
            inner = [self.index(z.IntVal(k) if isinstance(k, int) else k) for k in kernel]
            places, inside = read(i, [k for k, _ in inner])
            found = self.total(lambda: self.either(inside, x.at([i[0], i[1], *places]), z.RealVal(0)), facts, inner)
            return found.map(lambda body: reduce(lambda b, k: b * share(k), kernel, body))

        return Sym((x.shape[0], x.shape[1], *sizes), x.dtype, at)

    def _sum(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), axes = args, attrs["axes"]
        if not isinstance(axes, tuple) or any(self.z.is_expr(a) for a in axes):
            raise Beyond("a sum over unknown axes")
        if (
            x.boolean
            or len({a % max(1, len(x.shape)) for a in axes}) < len(axes)
            or any(not -len(x.shape) <= a < len(x.shape) for a in axes)
        ):
            raise _Reject
        chosen = {a % len(x.shape) for a in axes}

        def at(i: Sequence[Any]) -> Any:
            indices = {a: self.index(x.shape[a]) for a in sorted(chosen)}
            where = [indices[d][0] if d in chosen else k for d, k in enumerate(i)]
            return self.total(lambda: x.at(where), facts, list(indices.values()))

        return Sym(tuple(self.z.IntVal(1) if d in chosen else n for d, n in enumerate(x.shape)), x.dtype, at)

    def _mean(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), whole, z = args, self._sum(args, attrs, facts), self.z
        share = self.function("share", z.IntSort(), z.RealSort())
        sizes = [x.shape[a % len(x.shape)] for a in attrs["axes"]]

        def at(i: Sequence[Any]) -> Any:
            found = Total.of(whole.at(i)).map(lambda body: reduce(lambda b, n: b * share(n), sizes, body))
            facts.undefined.extend(n == 0 for n in sizes)
            return found

        return Sym(whole.shape, x.dtype, at)

    def equal_totals(self, assumed: list[Any], left: Total, right: Total) -> bool:
        """Whether two sums are equal: range by range, the terms together are at every index."""
        z = self.z

        def holds(claim: Any, *more: Any) -> bool:
            return bool(self.ask([*assumed, *more, z.Not(claim)]) == z.unsat)

        ranges = {size: None for t in (left, right) for b, _ in t.terms for _, size in b}
        groups: list[tuple[tuple[tuple[Any, Any], ...], list[Any]]] = []
        for sign, side in ((1, left), (-1, right)):
            for bound, body in (part for term in side.terms for part in self.parts(term, list(ranges), holds)):
                for known, bodies in groups:
                    if len(known) != len(bound):
                        continue
                    order = next((o for o in permutations(bound) if holds(z.And(*(p[1] == q[1] for p, q in zip(o, known)), True))),
                                 None)  # fmt: skip
                    if order is not None:
                        same = z.substitute(body, *((p[0], q[0]) for p, q in zip(order, known)))
                        bodies.append(sign * same)
                        break
                else:
                    groups.append((bound, [sign * body]))
        return all(
            holds(reduce(lambda a, b: a + b, bodies) == 0, *(f for k, n in bound for f in (k >= 0, k < n)))
            for bound, bodies in groups
        )

    def parts(self, term: Any, ranges: list[Any], holds: Callable[..., bool]) -> list[Any]:
        """A term without indices of one value; one over a single index as two where its range is that of two others
        together."""
        bound, body = term
        for k, size in bound:
            if holds(size == 1):
                bound = tuple(p for p in bound if p[0] is not k)
                body = self.z.substitute(body, (k, self.z.IntVal(0)))
        for at, (k, size) in enumerate(bound):
            for first, second in product(ranges, repeat=2):
                if not first.eq(size) and not second.eq(size) and holds(size == first + second):
                    halves = (first, body), (second, self.z.substitute(body, (k, k + first)))
                    split = [((*bound[:at], (k, part), *bound[at + 1 :]), each) for part, each in halves]
                    return [found for each in split for found in self.parts(each, ranges, holds)]
        return [(bound, body)]

    def decomposed(self, entry: Op, x: list[Any], attrs: Mapping[str, Any], facts: _Facts) -> Any:
        """A composite by its decomposition, element by element."""
        leaves = [api.input(f"operand{i}", (1,)) for i in range(len(x))]
        done: dict[int, Any] = {id(leaf): v for leaf, v in zip(leaves, x)}
        keep: list[Tensor] = list(leaves)

        def walk(node: Tensor) -> Any:
            keep.append(node)
            if id(node) not in done:
                inner = [walk(a) for a in node.args]
                if node.op == "full":
                    done[id(node)] = self.number(node.attr("value"), self.z.IntVal(OTHER))
                elif node.op in ("reshape", "broadcast_to", "permute"):
                    done[id(node)] = inner[0]
                else:
                    boolean = node.entry.law == "compare"
                    done[id(node)] = self.element(
                        node.entry, inner, dict(node.attrs), facts, boolean, self.z.IntVal(OTHER)
                    )
            return done[id(node)]

        return walk(expand(make(entry.name, leaves, attrs)))

    # ------------------------------------------------------------ the question
    def holds(self, types_only: bool = False) -> bool | None:
        """Whether the rule holds in this world, or only keeps types; None if it never matches here."""
        z = self.z
        lefts = [self.term(t, self.facts) for t in self.rule.lefts]
        guards = []
        for g in self.rule.guards:
            value = self.value(g)
            if value is False:
                return None
            if value is not True:
                guards.append(value)
        shown = _Facts()
        try:
            rights = [self.term(t, shown) for t in self.rule.rights]
        except _Reject:
            rights = []
        index = [[z.Int(f"i{n}.{d}") for d in range(len(s.shape))] for n, s in enumerate(lefts)]
        inside = [z.And(k >= 0, k < d) for i, s in zip(index, lefts) for k, d in zip(i, s.shape)]
        left_values = [s.at(i) for s, i in zip(lefts, index)]
        assumed = [*self.facts.said, *guards]
        if len(rights) != len(lefts) or any(
            len(a.shape) != len(b.shape) or a.boolean != b.boolean for a, b in zip(lefts, rights)
        ):
            return None if self.ask([*assumed]) == z.unsat else False
        types = [a == b for x, y in zip(lefts, rights) for a, b in zip(x.shape, y.shape)]
        types += [x.dtype == y.dtype for x, y in zip(lefts, rights)]
        # a fact that building an element adds (an order of two operands) is a choice, not an obligation
        owed = [*types, *shown.said]
        elements = _Facts()
        shown.said = elements.said
        right_values = [s.at(i) for s, i in zip(rights, index)]
        sums = [(a, b) for a, b in zip(left_values, right_values) if isinstance(a, Total) or isinstance(b, Total)]
        same = [
            a == b for a, b in zip(left_values, right_values) if not isinstance(a, Total) and not isinstance(b, Total)
        ]
        assumed = [*self.facts.said, *guards, *elements.said]
        if self.ask(assumed) == z.unsat:
            return None
        if self.ask([*assumed, z.Not(z.And(*owed))]) != z.unsat:
            return False
        if types_only:
            return True
        nowhere = z.Or(*self.facts.undefined, False), z.Or(*shown.undefined, False)
        given = [*assumed, *inside, z.Not(nowhere[0])]
        if not all(self.equal_totals(given, Total.of(a), Total.of(b)) for a, b in sums):
            return False
        wrong = z.Or(nowhere[0] != nowhere[1], z.And(z.Not(nowhere[0]), z.Not(z.And(*same))))
        return bool(self.ask([*assumed, *inside, wrong]) == z.unsat)

    def ask(self, facts: Sequence[Any]) -> Any:
        """z3's answer."""
        solver = self.z.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(*(f for f in facts if f is not True))
        return solver.check()


#: Functions that are not finite everywhere: a rule over the reals must keep where.
PARTIAL = ("log", "log1p", "sqrt", "rsqrt", "pow", "floordiv", "mod")
_REAL: dict[str, Callable[..., Any]] = {
    "add": lambda z, x, y: x + y,
    "sub": lambda z, x, y: x - y,
    "mul": lambda z, x, y: x * y,
    "neg": lambda z, x: -x,
    "div": lambda z, x, y: x / y,
    "recip": lambda z, x: 1 / x,
    "maximum": lambda z, x, y: z.If(x >= y, x, y),
    "minimum": lambda z, x, y: z.If(x <= y, x, y),
    "abs": lambda z, x: z.If(x >= 0, x, -x),
    "lt": lambda z, x, y: x < y,
    "le": lambda z, x, y: x <= y,
    "eq": lambda z, x, y: x == y,
}


def _reader(function: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda i: function(*i)


def _put(shape: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def booleans(rule: Rule) -> set[str]:
    """Variables that must be booleans: conditions, and what a guard says. `and`, `or`, `not` take integers as well."""
    found = set()
    for side in (*rule.lefts, *rule.rights):
        for t in subterms(side):
            if isinstance(t, Call) and t.op == "where" and isinstance(t.args[0], Var):
                found.add(t.args[0].name)
    for g in rule.guards:
        if isinstance(g, Apply) and g.function == "eq" and g.args[1] == Value("bool"):
            found |= set(attr_names(g.args[0]))
    return found


def _bits(rule: Rule) -> set[str]:
    """The variables of a rule in `and`, `or`, `xor` and layout alone: bits of integers or booleans, one by one."""
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    calls = [t.op for t in terms if isinstance(t, Call)]
    moves = [op for op in LAYOUT if op not in ("pad", "full", "iota")]
    if not set(calls) & set(BITWISE) or any(op not in BITWISE and op not in moves for op in calls):
        return set()
    return set() if any(isinstance(t, Literal) for t in terms) else {t.name for t in terms if isinstance(t, Var)}


# ---------------------------------------------------------------- enumeration
def _bound(rule: Rule) -> dict[str, tuple[str, str]]:
    """Attribute variables of the left sides: (op, attribute) where each is bound."""
    found: dict[str, tuple[str, str]] = {}
    for side in rule.lefts:
        for t in subterms(side):
            if isinstance(t, Call):
                for name, attr in t.attrs:
                    if isinstance(attr, Name):
                        found.setdefault(attr.name, (t.op, name))
    return found


#: Functions of whole shapes or permutations: what they do at one rank says little about the next, so all ranks are tried.
WHOLE = ("swap_last", "identity", "ones", "drop", "insert", "replace", "compose", "inverse", "permuted", "contains", "index",
         "at", "len")  # fmt: skip


def _parts(attr: Attr) -> Iterator[Attr]:
    """An attribute expression and all below it."""
    yield attr
    for a in attr.args if isinstance(attr, Apply) else ():
        yield from _parts(a)


def _named(rule: Rule) -> int:
    """How many ranks decide, from how many axes the attributes and conditions name; Beyond if too many."""
    given = [
        (n, a)
        for side in (*rule.lefts, *rule.rights)
        for t in subterms(side)
        if isinstance(t, Call)
        for n, a in t.attrs
    ]
    axes = {a for n, a in given if n == "axis"}
    asked = [p for a in (*(a for _, a in given), *rule.guards) for p in _parts(a) if isinstance(p, Apply)]
    axes |= {p.args[1] for p in asked if p.function == "size"}
    said = {g.args[0]: _from_end(g.args[1]) for g in rule.guards if isinstance(g, Apply) and g.function == "eq"}
    axes = {said[a] if isinstance(said.get(a), Value) else _from_end(a) for a in axes}
    constants = [abs(a.value) for a in axes if isinstance(a, Value)]
    needed = max(len(axes) + 1, *(c + 2 for c in constants), 2)
    if needed > RANKS:
        raise Beyond("more axes are named than ranks are tried")
    calls = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, Call)}
    reshaped = any(n == "shape" for n, _ in given) or calls & set(CONTRACTIONS)
    return RANKS if reshaped or any(p.function in WHOLE for p in asked) else needed


def _from_end(attr: Attr) -> Attr:
    """An axis counted from the last one as a negative number, however it is written."""
    if isinstance(attr, Apply) and attr.function == "sub" and isinstance(attr.args[1], Value):
        if isinstance(attr.args[0], Apply) and attr.args[0].function == "rank":
            return Value(-attr.args[1].value)
    return attr


def _axes(ranks: Sequence[int]) -> list[Any]:
    return list(range(max(ranks, default=0)))


def _subsets(ranks: Sequence[int]) -> list[Any]:
    return [s for n in range(1, max(ranks, default=0) + 1) for s in combinations(range(max(ranks, default=0)), n)]


def _permutations(ranks: Sequence[int]) -> list[Any]:
    return [p for r in sorted(set(ranks)) for p in permutations(range(r))]


def _any_rank(found: list[Any], ranks: Sequence[int]) -> list[Any]:
    return found


def _images(rule: Rule) -> set[str]:
    """Variables that windows are read of, or whose sizes are those of windows; "" where there are windows, but no such."""
    calls = [
        t for side in rule.lefts for t in subterms(side) if isinstance(t, Call) and OPS[t.op].law in ("conv", "pool")
    ]
    return {a.name if isinstance(a, Var) else "" for t in calls for a in t.args}


def _weights(rule: Rule) -> dict[str, int]:
    """Ranks of the variables that are weights and biases of linear layers."""
    calls = [t for side in rule.lefts for t in subterms(side) if isinstance(t, Call) and t.op == "linear"]
    return {a.name: rank for t in calls for a, rank in zip(t.args[1:], (2, 1)) if isinstance(a, Var)}


def _structures(rule: Rule, real: bool) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Ranks of tensor variables with axes and permutations for attribute variables, and unknowns for the others."""
    module = z3()
    names = list(dict.fromkeys(v for t in rule.lefts for v in variables(t)))
    bound = _bound(rule)
    unknown: dict[str, Any] = {}
    windowed: dict[str, int] = {}
    options: dict[str, Callable[[Sequence[int]], list[Any]]] = {}
    largest = _named(rule)
    for n, (op, a) in bound.items():
        kind = OPS[op].attrs[a]
        if a == "axis":
            options[n] = _axes
        elif a == "axes":
            options[n] = _subsets
        elif a == "perm":
            options[n] = _permutations
            largest = RANKS
        elif a in WINDOWED:
            windowed[n] = WINDOWED[a]
        elif a == "shape":
            lengths = [tuple(module.Int(f"attr {n}.{i}") for i in range(r)) for r in range(RANKS + 1)]
            options[n] = partial(_any_rank, lengths)
        elif kind in ("int", "dtype"):
            unknown[n] = module.Int(f"attr {n}")
        elif kind == "float":
            unknown[n] = module.Real(f"number {n}") if real else module.Int(f"number {n}")
        else:
            raise Beyond(f"the attribute {n} is a {kind}")
    images = _images(rule)
    for spatial in SPATIAL if images else (0,):
        numbers = {n: tuple(module.Int(f"attr {n}.{j}") for j in range(spatial * k)) for n, k in windowed.items()}
        known = dict.fromkeys(images, spatial + 2) | _weights(rule)
        each = [(known[n],) if n in known else range(largest + 1) for n in names]
        for ranks in product(*each):
            for chosen in product(*(f(ranks or range(largest + 1)) for f in options.values())):
                yield dict(zip(names, ranks)), dict(zip(options, chosen)) | unknown | numbers


def prove(rule: Rule) -> tuple[bool, str]:
    """Whether z3 proves a one-way rule at every rank up to the bound; with what it proved, or why not."""
    calls = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, Call)}
    try:
        if rule.exact and calls & set(CONTRACTIONS):
            return False, "sums are looked at over the reals"
        done, said = (False, "") if calls & set(CONTRACTIONS) else _prove(rule, False)
        if not done and not rule.exact:
            if not _reals_only(rule):
                return False, "it holds over the reals at best, but integers match it"
            done, said = _prove(rule, True)
        return done, said
    except Beyond as beyond:
        return False, str(beyond)


def typed(rule: Rule) -> int:
    """At how many patterns of ranks and axes the right sides have the types of the left sides wherever the rule matches; 0 if
    z3 does not show it at one. Beyond: more than it is asked."""
    matched = 0
    for asked, (ranks, fixed) in enumerate(_structures(rule, False)):
        if asked == QUESTIONS:
            raise Beyond("too many ranks, axes and permutations")
        try:
            found = _World(rule, ranks, fixed, False).holds(types_only=True)
        except _Reject:
            continue
        if found is False:
            return 0
        matched += found is True
    return matched


def _reals_only(rule: Rule) -> bool:
    """Whether what holds over the reals holds wherever the rule matches: only ring arithmetic with whole numbers, which
    integers that wrap around obey too, or operands that must be floats."""
    calls = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, Call)]
    numbers = any(isinstance(t, Literal) for side in (*rule.lefts, *rule.rights) for t in subterms(side))
    ring = not numbers and all(t.op in RING or t.op in LAYOUT for t in calls)
    floats = any(isinstance(t, Call) and OPS[t.op].floats_only for side in rule.lefts for t in subterms(side))
    return ring or floats or any(isinstance(g, Apply) and g.function == "floating" for g in rule.guards)


def _prove(rule: Rule, real: bool) -> tuple[bool, str]:
    matched = asked = 0
    for ranks, fixed in _structures(rule, real):
        asked += 1
        if asked > QUESTIONS:
            return False, "too many ranks, axes and permutations"
        try:
            found = _World(rule, ranks, fixed, real).holds()
        except _Reject:
            continue
        if found is False:
            return False, f"z3 does not show it at ranks {ranks}"
        matched += found is True
    functions = "over the reals" if real else "for any elementwise functions"
    return matched > 0, f"z3: all sizes, offsets and elements {functions}, {matched} patterns of ranks and axes"
