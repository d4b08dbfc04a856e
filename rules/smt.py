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
terms are zero outside of the image; spatial axes are treated alike, so that one and two stand for any number. A term that is zero
at all indices but one is its value there. Maxima and minima (`Extreme`) are those of sets: two are equal if each has the other's terms;
summands, factors that are not negative and increasing functions go inside. Where something that is neither linear nor increasing
reads a sum or a maximum, it reads a name for it: two have one name if they are equal everywhere. What is known of elementwise
functions over the reals is in functions.py; norms, softmax and attention are what `DEFINITIONS` says. Look-ups are beyond this method,
as is a sum of what is not finite everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations, count, permutations, product, repeat
from math import inf
from time import perf_counter
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
    parse_term,
    subterms,
)
from ..egraph.rule import Rule
from .functions import INCREASING, Functions, is_whole
from .solver import Beyond, z3
from .structures import CONTRACTIONS, LAYOUT, bits, booleans, structures
from .sums import Extreme, Many, Total, bodies, factors, product_of, same_size, sum_of, summands, unknowns

COST = ("weight", "active", "chained", "original", "ordered")  # where a rule pays, not where it is true
LATTICE = ("maximum", "minimum", "max", "min", "max_pool")
MILLISECONDS = 400  # per question to z3
QUESTIONS = 4000
SECONDS = 120.0  # for one rule
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
#: Numbers that an op of them alone is, in every number format.
KEPT = {"mul": (0.0, 1.0), "add": (0.0,), "maximum": (0.0, 1.0), "relu": (0.0, 1.0), "abs": (0.0, 1.0), "tanh": (0.0,), "erf": (0.0,),
        "sin": (0.0,), "atan": (0.0,)}  # fmt: skip
BOOL, OTHER = 0, 1000  # codes of dtypes; those of variables are unknowns above OTHER
RING = ("add", "sub", "mul", "neg", "matmul", "linear", "sum", "conv")
NAMED = 24  # sums and maxima that something else reads
_MAX = "max(x, axes=(axis,))"
#: Operands, and what an op is of them.
DEFINITIONS = {
    "softmax": ("x", f"exp(x - {_MAX}) / sum(exp(x - {_MAX}), axes=(axis,))"),
    "log_softmax": ("x", f"(x - {_MAX}) - log(sum(exp(x - {_MAX}), axes=(axis,)))"),
    "rms_norm": ("x g", "x * rsqrt(mean(x * x, axes=(rank(x) - 1,)) + full(value=eps, shape=ones(rank(x)), dtype=dtype(x)))"
                 " * reshape(g, shape=replace(ones(rank(x)), -1, size(g, 0)))"),
    "layer_norm": ("x g b", "(x - mean(x, axes=(rank(x) - 1,))) * rsqrt(mean((x - mean(x, axes=(rank(x) - 1,))) * (x - mean(x, axes=(rank(x) - 1,))),"
                   " axes=(rank(x) - 1,)) + full(value=eps, shape=ones(rank(x)), dtype=dtype(x)))"
                   " * reshape(g, shape=replace(ones(rank(x)), -1, size(g, 0))) + reshape(b, shape=replace(ones(rank(x)), -1, size(b, 0)))"),
    "batch_norm": ("x g b m v", "x * reshape(g * rsqrt(v + full(value=eps, shape=(1,), dtype=dtype(v))), shape=replace(ones(rank(x)), 1, size(x, 1)))"
                   " + reshape(b - m * (g * rsqrt(v + full(value=eps, shape=(1,), dtype=dtype(v)))), shape=replace(ones(rank(x)), 1, size(x, 1)))"),
    "attention": ("q k v", "softmax((q @ permute(k, perm=swap_last(rank(k)))) * full(value=scale, shape=ones(rank(q)), dtype=dtype(q)), axis=rank(q) - 1) @ v"),
    "masked_attention": ("q k v m", "softmax((q @ permute(k, perm=swap_last(rank(k)))) * full(value=scale, shape=ones(rank(q)), dtype=dtype(q)) + m,"
                         " axis=rank(q) - 1) @ v"),
}  # fmt: skip
#: Attributes at which a definition says what the op is.
PLAIN = {"causal": False, "window": 0, "softcap": 0.0}


class _Reject(Exception):
    """No value at these ranks and axes."""


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


# ---------------------------------------------------------------- one structure
class _World:
    """A rule at chosen ranks, axes and permutations."""

    def __init__(
        self, rule: Rule, ranks: Mapping[str, int], fixed: Mapping[str, Any], real: bool, until: float = inf
    ) -> None:
        self.until = until
        self.z, self.rule, self.real = z3(), rule, real
        self.facts = _Facts()
        z = self.z
        self.sort = z.RealSort() if real else z.DeclareSort("Value")
        self.env: dict[str, Any] = dict(fixed)
        self.summed = count()
        self.functions = Functions(z)
        self.given: list[Any] = []  # conditions and what is known of the index at which elements are read
        self.ranges: dict[str, tuple[Any, Any]] = {}  # index variables by name, with their sizes
        self.names: list[tuple[Many, list[Any], Any]] = []
        self.ones: dict[int, tuple[Any, bool]] = {}
        binary = bits(rule)
        self.booleans = booleans(rule) | binary
        for name, rank in ranks.items():
            shape = tuple(z.Int(f"{name}.{i}") for i in range(rank))
            self.facts.said += [d >= 0 for d in shape]
            boolean = name in self.booleans
            function = z.Function(name, *[z.IntSort()] * rank, z.BoolSort() if boolean else self.sort)
            code = z.IntVal(BOOL) if boolean and name not in binary else z.Int(f"dtype.{name}")
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
        if term.op in DEFINITIONS:
            return self.defined(term.op, args, attrs, facts)
        if term.op in LAYOUT or term.op in CONTRACTIONS:
            law: Callable[..., Sym] = getattr(self, f"_{term.op}")
            return law(args, attrs, facts)
        entry = OPS[term.op]
        if entry.pointwise or (entry.composite and entry.law == "pointwise"):
            return self.pointwise(entry, args, attrs, facts)
        raise Beyond(f"{term.op} is no layout or elementwise op")

    def defined(self, op: str, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        """An op by its definition."""
        names, text = DEFINITIONS[op]
        entry = OPS[op]
        every = {**entry.defaults, **attrs}
        if not self.real:
            raise Beyond(f"{op} of elements that nothing is known of")
        if any(every.get(n, v) != v for n, v in PLAIN.items()):
            raise Beyond(f"{op} with such attributes")
        outer, self.env = self.env, {**dict(zip(names.split(), args)), **every}
        try:
            found = self.term(parse_term(text), facts)
        finally:
            self.env = outer
        if op.endswith("_norm") and op != "batch_norm":
            facts.said += [a.shape[0] == args[0].shape[-1] for a in args[1:]]
        return found

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
        self.facts.said += [
            self.z.Implies(same, volumes[0] == volumes[1]) for same, _ in self.beside_ones(x.shape, shape)
        ]
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
            else:
                for same, mapped in self.beside_ones(x.shape, shape):
                    facts.said += [
                        self.z.Implies(same, w == (i[mapped[d]] if d in mapped else 0)) for d, w in enumerate(where)
                    ]
            return x.at(where)

        return Sym(shape, x.dtype, at, x.boolean)

    def beside_ones(self, old: Sequence[Any], new: Sequence[Any]) -> list[tuple[Any, dict[int, int]]]:
        """The ways in which a reshape may only add or drop axes of size 1: what must hold, and the axes that are kept."""
        z, found = self.z, []
        axes = [[d for d, n in enumerate(s) if z.is_expr(n) or n != 1] for s in (old, new)]
        few, many = sorted(axes, key=len)
        for chosen in combinations(many, len(few)):
            kept = dict(zip(few, chosen) if few is axes[0] else zip(chosen, few))
            ones = [old[d] == 1 for d in axes[0] if d not in kept] + [
                new[d] == 1 for d in axes[1] if d not in kept.values()
            ]
            found.append((z.And(*ones, *(old[p] == new[q] for p, q in kept.items()), True), kept))
        return found

    def _iota(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        shape, axis = tuple(attrs["shape"]), attrs["axis"]
        if self.z.is_expr(axis):
            raise Beyond("an unknown axis")
        if not -len(shape) <= axis < len(shape):
            raise _Reject
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        facts.said += [d >= 0 for d in shape]
        number = self.z.IntSort()
        place = self.z.ToReal if self.real else lambda k: self.function("place", number, number, self.sort)(k, dtype)
        return Sym(shape, dtype, lambda i: place(i[axis] if self.z.is_expr(i[axis]) else self.z.IntVal(i[axis])))

    def narrowed(self, shape: Sequence[Any], i: Sequence[Any], whole: Sequence[Any] = ()) -> list[Any]:
        """An index with 0 where the operand's axis has size 1; where it has the size that the result has, `whole`, the index
        is that already."""
        z = self.z

        def narrow(d: Any, k: Any, size: Any) -> Any:
            if d is k or (size is not None and same_size(d, size)):
                return k
            if z.is_expr(d):
                return z.IntVal(0) if self.one(d) else z.If(d == 1, 0, k)
            return 0 if d == 1 else k

        return [narrow(d, k, size) for d, k, size in zip(shape, i, whole or repeat(None))]

    def one(self, size: Any) -> bool:
        """Whether a size is known to be 1."""
        if not self.real or not self.given:
            return False
        if size.get_id() not in self.ones:
            self.ones[size.get_id()] = (size, self.ask([*self.facts.said, *self.given, size != 1]) == self.z.unsat)
        return self.ones[size.get_id()][1]

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
            boolean = False

        def at(i: Sequence[Any]) -> Any:
            kind = dtype if entry.law == "cast" else values[0].dtype
            if entry.law == "cast" and values[0].boolean:
                there = values[0].at(self.narrowed(values[0].shape, i))
                return z.If(there, self.number(1.0, kind), self.number(0.0, kind))
            return self.element(
                entry, [a.at(self.narrowed(a.shape, i, shape)) for a in args], attrs, facts, boolean, kind
            )

        return Sym(tuple(shape), dtype, at, boolean)

    # ------------------------------------------------------------ elements
    def element(
        self, entry: Op, x: list[Any], attrs: Mapping[str, Any], facts: _Facts, boolean: bool, dtype: Any
    ) -> Any:
        """An elementwise op of elements."""
        z, name = self.z, entry.name
        if name == "where":
            return self.either(*x)
        if any(isinstance(v, Total | Extreme) for v in x):
            if self.real and entry.composite:
                return self.decomposed(entry, x, attrs, facts)
            if (found := self.inside(name, x, facts)) is not None:
                return found
            x = [self.name(v, facts) for v in x]
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
        if (
            self.real
            and name == "pow"
            and (power := self.functions.power(x[0], x[1], facts.said, facts.undefined)) is not None
        ):
            return power
        if self.real and not attrs and (known := self.functions.of(name)):
            return known(*x, facts.said, facts.undefined)
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
        for value in KEPT.get(name, ()) if not self.real and not attrs else ():
            one = self.number(value, dtype)
            facts.said.append(function(*[one] * len(x), dtype) == one)
        return function(*x, z.IntVal(0) if self.real else dtype)  # rounding depends on the dtype

    # ------------------------------------------------------------ sums
    def either(self, condition: Any, x: Any, y: Any) -> Any:
        """One of two values."""
        z = self.z
        if isinstance(condition, Total | Extreme):
            raise Beyond("a condition on a sum")
        if isinstance(x, Extreme) or isinstance(y, Extreme):
            most = (x if isinstance(x, Extreme) else y).most
            a, b = self.extreme(x, most), self.extreme(y, most)
            if a is None or b is None:
                raise Beyond("a choice between a maximum and something else")
            return Extreme(most, a.only(z, condition).terms + b.only(z, z.Not(condition)).terms, a.some and b.some)
        if not isinstance(x, Total) and not isinstance(y, Total):
            return z.If(condition, x, y)
        first = Total.of(x).map(lambda body: z.If(condition, body, z.RealVal(0)))
        return first.plus(Total.of(y).map(lambda body: z.If(condition, z.RealVal(0), body)))

    def linear(self, name: str, x: list[Total]) -> Total | None:
        """A linear op of sums, None for one that is not."""
        if name in ("add", "sub"):
            return x[0].plus(x[1] if name == "add" else x[1].map(lambda body: -body))
        if name == "neg":
            return x[0].map(lambda body: -body)
        if name == "mul":
            own = [{str(k) for bound, _ in v.terms for k, _ in bound} for v in x]
            return x[0].times(x[1] if not own[0] & own[1] else self.moved(x[1], []))
        return None

    def inside(self, name: str, x: list[Any], facts: _Facts) -> Any:
        """An elementwise op as one of what is summed, or of what a maximum is taken of; None if it is not such an op."""
        z = self.z
        if not any(isinstance(v, Extreme) for v in x):
            if name == "div" and not isinstance(x[1], Total):
                facts.undefined.append(x[1] == 0)
                return Total.of(x[0]).map(lambda body: body / x[1])
            return self.linear(name, list(map(Total.of, x)))
        if name in ("maximum", "minimum"):
            return self.joined(name == "maximum", *x)
        if len(x) == 1:
            (one,) = x
            assert isinstance(one, Extreme)
            if name == "neg":
                return one.map(lambda body: -body, turned=True)
            one = self.there(one, facts)
            if name == "recip" and all(
                self.ask([*self.assumed(facts, c, b), c, b <= 0]) == z.unsat for _, c, b in one.terms
            ):
                return one.map(lambda body: 1 / body, turned=True)
            law = self.functions.of(name)
            return one.map(lambda body: law(body, facts.said, facts.undefined)) if law and name in INCREASING else None
        if sum(isinstance(v, Total) for v in x):
            return None
        if sum(isinstance(v, Extreme) for v in x) == 2:
            same = (
                name == "add"
                and x[0].most == x[1].most
                and self.equal_extremes(self.assumed(facts, *bodies(x[0]), *bodies(x[1])), x[0], x[1])
            )
            return x[0].map(lambda body: body + body) if same else None
        one, other = x if isinstance(x[0], Extreme) else x[::-1]
        if name in ("add", "sub"):
            signs = [-1 if name == "sub" and v is x[1] else 1 for v in (one, other)]
            return one.map(lambda body: signs[0] * body + signs[1] * other, turned=signs[0] < 0)
        if name in ("mul", "div") and (name == "mul" or one is x[0]):
            bad = other < 0 if one.some else other <= 0
            if self.ask([*self.assumed(facts, other), bad]) == z.unsat:
                if name == "div":
                    facts.undefined.append(other == 0)
                return one.map(lambda body: body * other if name == "mul" else body / other)
        return None

    def extreme(self, x: Any, most: bool) -> Extreme | None:
        """A value as a set of values of which the largest (or least) is taken, None for a sum or the other kind."""
        if isinstance(x, Total):
            return None
        found = x if isinstance(x, Extreme) else Extreme(most, (((), self.z.BoolVal(True), x),), True)
        return found if found.most == most else None

    def joined(self, most: bool, *x: Any) -> Extreme | None:
        """The larger (or smaller) of values, at least one of them of that kind."""
        found = [self.extreme(v, most) for v in x]
        sets = [f for f in found if f is not None]
        terms = tuple(t for f in sets for t in f.terms)
        return Extreme(most, terms, any(f.some for f in sets)) if len(sets) == len(x) else None

    def there(self, value: Extreme, facts: _Facts) -> Extreme:
        """A set with a value in it. Beyond if that depends on more than sizes; where these are 0 it is not finite."""
        z = self.z
        if value.some:
            return value
        if not all(z.is_true(condition) for _, condition, _ in value.terms):
            raise Beyond("a function of a maximum of what may be nothing")
        facts.undefined.append(z.And(*(z.Or(*(n <= 0 for _, n in bound), False) for bound, *_ in value.terms)))
        return replace(value, some=True)

    def assumed(self, facts: _Facts, *read: Any) -> list[Any]:
        """What is known where an element is read, and of the summed indices that occur in what is read."""
        found = dict.fromkeys(n for e in read for n in unknowns(self.z, e) if n in self.ranges)
        inside = [c for n in found for c in (self.ranges[n][0] >= 0, self.ranges[n][0] < self.ranges[n][1])]
        return [*self.facts.said, *self.given, *facts.said, *inside]

    def name(self, value: Any, facts: _Facts) -> Any:
        """A name for a sum or maximum, without what is the same at all its indices: the same name for those that are equal
        wherever they are read."""
        z = self.z
        if not isinstance(value, Total | Extreme):
            return value
        if isinstance(value, Extreme):
            value = self.there(value, facts)
        if len(value.terms) == 1:
            ((bound, *rest),) = value.terms
            own = {str(k) for k, _ in bound}
            parts = factors(z, rest[-1]) if isinstance(value, Total) else summands(z, rest[-1])
            outer = [p for p in parts if not own & set(unknowns(z, p[0]))]
            if outer and len(outer) < len(parts):
                inner = [p for p in parts if not any(p is o for o in outer)]
                if isinstance(value, Total):
                    return product_of(z, outer) * self.name(Total(((bound, product_of(z, inner)),)), facts)
                return sum_of(z, outer) + self.name(
                    Extreme(value.most, ((bound, rest[0], sum_of(z, inner)),), True), facts
                )
        own = {str(k) for bound, *_ in value.terms for k, _ in bound}
        read = dict.fromkeys(n for e in bodies(value) for n in unknowns(z, e) if n in self.ranges and n not in own)
        free = [self.ranges[n][0] for n in read]
        assumed = self.assumed(facts, *free)
        for known, places, function in self.names:
            if type(known) is not type(value) or len(places) != len(free):
                continue
            for order in permutations(free):
                if self.equal_many(assumed, self.moved(known, list(zip(places, order))), value):
                    return function(*order) if order else function
        if len(self.names) == NAMED:
            raise Beyond("too many sums and maxima")
        label, number = f"named {len(self.names)}", z.IntSort()
        function = self.function(label, *[number] * len(free), z.RealSort()) if free else z.Real(label)
        self.names.append((value, free, function))
        found = function(*free) if free else function
        if isinstance(value, Total):
            within = [[c for k, n in bound for c in (k >= 0, k < n)] for bound, _ in value.terms]
            if all(self.ask([*assumed, *i, body < 0]) == z.unsat for i, (_, body) in zip(within, value.terms)):
                facts.said.append(found >= 0)
        return found

    def moved(self, value: Any, places: list[tuple[Any, Any]]) -> Any:
        """A sum or maximum read at other indices, its own indices renamed."""
        z, terms = self.z, []
        for bound, *rest in value.terms:
            sizes = [z.substitute(n, *places) if places and z.is_expr(n) else n for _, n in bound]
            fresh = [self.index(n) for n in sizes]
            swap = [*places, *((k, f) for (k, _), (f, _) in zip(bound, fresh))]
            terms.append((tuple(fresh), *(z.substitute(e, *swap) if swap else e for e in rest)))
        return Total(tuple(terms)) if isinstance(value, Total) else Extreme(value.most, tuple(terms), value.some)

    def equal_many(self, assumed: list[Any], a: Many, b: Many) -> bool:
        """Whether two sums or two maxima are equal."""
        if isinstance(a, Total) and isinstance(b, Total):
            return self.equal_totals(assumed, a, b)
        return isinstance(a, Extreme) and isinstance(b, Extreme) and self.equal_extremes(assumed, a, b)

    def equal_extremes(self, assumed: list[Any], a: Extreme, b: Extreme) -> bool:
        """Whether two maxima are of the same values: range by range, each has all that the other has."""
        z = self.z
        if a.most != b.most:
            return False

        def holds(claim: Any, *more: Any) -> bool:
            return bool(self.ask([*assumed, *more, z.Not(claim)]) == z.unsat)

        ranges = list(
            {n.get_id() if z.is_expr(n) else n: n for t in (a, b) for bound, *_ in t.terms for _, n in bound}.values()
        )
        first, second = (
            [p for bound, *rest in t.terms for p in self.parts((bound, tuple(rest)), ranges, holds)] for t in (a, b)
        )

        def contained(one: Any, others: list[Any]) -> bool:
            bound, (condition, body) = one
            inside = [c for k, n in bound for c in (k >= 0, k < n)]
            if holds(z.Not(condition), *inside):
                return True
            found = []
            for known, (where, there) in others:
                for order in permutations(bound) if len(known) == len(bound) else ():
                    if holds(z.And(*(p[1] == q[1] for p, q in zip(order, known)), True)):
                        swap = [(q[0], p[0]) for p, q in zip(order, known)]
                        w, t = (z.substitute(e, *swap) if swap else e for e in (where, there))
                        found.append(z.And(w, t == body))
            return bool(found) and holds(z.Implies(condition, z.Or(*found)), *inside)

        return all(contained(t, second) for t in first) and all(contained(t, first) for t in second)

    def summand(self, value: Any, facts: _Facts) -> Total:
        """A value as a sum; a maximum by its name."""
        return Total.of(self.name(value, facts) if isinstance(value, Extreme) else value)

    def index(self, size: Any) -> tuple[Any, Any]:
        """A new summed index of a range."""
        found = self.z.Int(f"sum.{next(self.summed)}")
        self.ranges[str(found)] = (found, size)
        return found, size

    def total(self, read: Callable[[], Any], facts: _Facts, indices: Sequence[tuple[Any, Any]]) -> Total:
        """The sum of what is read over indices; it must be finite everywhere."""
        if not self.real:
            raise Beyond("a sum of elements that nothing is known of")
        before = len(facts.undefined)
        found = self.summand(read(), facts).over(*indices)
        self.everywhere(facts, before, indices)
        return found

    def largest(
        self, read: Callable[[], Any], facts: _Facts, indices: Sequence[tuple[Any, Any]], most: bool
    ) -> Extreme:
        """The largest or least of what is read over indices; it must be finite everywhere."""
        if not self.real:
            raise Beyond("a maximum of elements that nothing is known of")
        before = len(facts.undefined)
        found = read()
        if self.extreme(found, most) is None:
            found = self.name(found, facts)
        sets = self.extreme(found, most)
        assert sets is not None
        self.everywhere(facts, before, indices)
        return Extreme(most, tuple(((*indices, *bound), c, body) for bound, c, body in sets.terms))

    def everywhere(self, facts: _Facts, before: int, indices: Sequence[tuple[Any, Any]]) -> None:
        """What is undefined at one index must be at all of them; then that is said without the index."""
        z = self.z
        inside = z.And(*(n > 0 for _, n in indices), True)
        for at in range(before, len(facts.undefined)):
            condition = facts.undefined[at]
            moved = z.substitute(condition, *((k, z.Int(f"other {k}")) for k, _ in indices))
            if not moved.eq(condition):
                others = [c for k, n in indices for c in (z.Int(f"other {k}") >= 0, z.Int(f"other {k}") < n)]
                if self.ask([*self.assumed(facts, condition), *others, condition != moved]) != z.unsat:
                    raise Beyond("a sum of what is not finite everywhere")
                condition = z.substitute(condition, *((k, z.IntVal(0)) for k, _ in indices))
            facts.undefined[at] = z.And(condition, inside)

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
                return self.summand(a, facts).times(self.summand(b, facts))

            return self.total(read, facts, [k])

        return Sym((*lead, x.shape[-2], y.shape[-1]), x.dtype, at)

    def _linear(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        x, w, b = args
        if len(w.shape) != 2 or len(b.shape) != 1 or b.boolean:
            raise _Reject
        whole = self._matmul([x, w], attrs, facts)
        facts.said += [b.shape[0] == w.shape[1], b.dtype == x.dtype]
        return Sym(whole.shape, x.dtype, lambda i: whole.at(i).plus(self.summand(b.at([i[-1]]), facts)))

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
                weight = w.at([i[1], c[0], *(k for k, _ in inner)])
                return self.summand(a, facts).times(self.summand(weight, facts))

            return self.total(product_, facts, [c, *inner])

        return Sym((x.shape[0], w.shape[0], *sizes), x.dtype, at)

    def _avg_pool(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        share, kernel = self.share(), attrs["kernel"]
        self.facts.said += [share(k) > 0 for k in kernel]

        def mean(value: Callable[[], Any], inside: Any, inner: list[Any]) -> Any:
            found = self.total(lambda: self.either(inside, value(), self.z.RealVal(0)), facts, inner)
            return found.map(lambda body: reduce(lambda b, k: b * share(k), kernel, body))

        return self._pool(args, attrs, facts, "a mean", mean)

    def _pool(
        self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts, what: str,
        joined: Callable[[Callable[[], Any], Any, list[Any]], Any],
    ) -> Sym:  # fmt: skip
        """What a window's values become: `joined` has a value, whether its place is inside, and the indices of the window."""
        z, (x,), kernel = self.z, args, attrs["kernel"]
        if x.boolean:
            raise Beyond(f"{what} of booleans")
        sizes, read = self.windows(x, kernel, attrs, facts)
        facts.said += [z.IntVal(1) <= k for k in kernel]

        def at(i: Sequence[Any]) -> Any:
            inner = [self.index(z.IntVal(k) if isinstance(k, int) else k) for k in kernel]
            places, inside = read(i, [k for k, _ in inner])
            return joined(lambda: x.at([i[0], i[1], *places]), inside, inner)

        return Sym((x.shape[0], x.shape[1], *sizes), x.dtype, at)

    def share(self) -> Any:
        """One over a number of summands, of which little is known."""
        found = self.function("share", self.z.IntSort(), self.z.RealSort())
        self.facts.said.append(found(1) == 1)
        return found

    def _max_pool(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        def most(value: Callable[[], Any], inside: Any, inner: list[Any]) -> Any:
            return self.largest(value, facts, inner, True).only(self.z, inside)

        return self._pool(args, attrs, facts, "a maximum", most)

    def _max(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        return self._sum(args, attrs, facts, most=True)

    def _min(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        return self._sum(args, attrs, facts, most=False)

    def _sum(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts, most: bool | None = None) -> Sym:
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
            if most is not None:
                return self.largest(lambda: x.at(where), facts, list(indices.values()), most)
            return self.total(lambda: x.at(where), facts, list(indices.values()))

        return Sym(tuple(self.z.IntVal(1) if d in chosen else n for d, n in enumerate(x.shape)), x.dtype, at)

    def _mean(self, args: list[Sym], attrs: Mapping[str, Any], facts: _Facts) -> Sym:
        (x,), whole = args, self._sum(args, attrs, facts)
        share = self.share()
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
                for known, together in groups:
                    if len(known) != len(bound):
                        continue
                    order = next((o for o in permutations(bound) if holds(z.And(*(p[1] == q[1] for p, q in zip(o, known)), True))),
                                 None)  # fmt: skip
                    if order is not None:
                        same = z.substitute(body, *((p[0], q[0]) for p, q in zip(order, known)))
                        together.append(sign * same)
                        break
                else:
                    groups.append((bound, [sign * body]))

        def cancel(bound: Any, together: list[Any]) -> bool:
            inside = [f for k, n in bound for f in (k >= 0, k < n)]
            whole = reduce(lambda a, b: a + b, together)
            return holds(whole == 0, *inside) or holds(self.merged(whole, [*assumed, *inside]) == 0, *inside)

        return all(cancel(bound, together) for bound, together in groups)

    def merged(self, expr: Any, assumed: list[Any]) -> Any:
        """An expression in which reads of equal places are one term, and choices that are known are made: products of unknowns that z3
        has to find equal first are beyond it."""
        z = self.z
        for _ in range(QUESTIONS):
            calls: dict[Any, list[Any]] = {}
            choices, rest, seen = [], [expr], set[int]()
            while rest:
                e = rest.pop()
                if e.get_id() in seen:
                    continue
                seen.add(e.get_id())
                rest += e.children()
                if z.is_app(e) and e.num_args() and e.decl().kind() == z.Z3_OP_UNINTERPRETED:
                    calls.setdefault(e.decl().get_id(), []).append(e)
                elif z.is_app_of(e, z.Z3_OP_ITE):
                    choices.append(e)
            change = next(((e, e.arg(1 if yes else 2)) for e in choices for yes in (True, False)
                           if self.ask([*assumed, z.Not(e.arg(0)) if yes else e.arg(0)]) == z.unsat), None)  # fmt: skip
            pairs = [pair for group in calls.values() for pair in combinations(group, 2)]
            change = change or next(
                (
                    (b, a)
                    for a, b in pairs
                    if self.ask([*assumed, z.Or(*(p != q for p, q in zip(a.children(), b.children())))]) == z.unsat
                ),
                None,
            )
            if change is None:
                return z.simplify(expr, som=True)
            expr = z.substitute(expr, change)
        return expr

    def parts(self, term: Any, ranges: list[Any], holds: Callable[..., bool]) -> list[Any]:
        """A term without indices of one value; one over a single index as two where its range is that of two others
        together; a summed one that is zero but at one index as its value there. A body may be a tuple."""
        z, (bound, body) = self.z, term

        def put(k: Any, value: Any) -> Any:
            return (
                tuple(z.substitute(e, (k, value)) for e in body)
                if isinstance(body, tuple)
                else z.substitute(body, (k, value))
            )

        for k, size in bound:
            if holds(size == 1):
                bound, body = tuple(p for p in bound if p[0] is not k), put(k, z.IntVal(0))
        for k, size in bound if not isinstance(body, tuple) else ():
            if (place := self.only_place(k, body, holds)) is not None:
                bound = tuple(p for p in bound if p[0] is not k)
                body = z.If(z.And(place >= 0, place < size), put(k, place), z.RealVal(0))
        for at, (k, size) in enumerate(bound):
            for first, second in product(ranges, repeat=2):
                if not same_size(first, size) and not same_size(second, size) and holds(size == first + second):
                    halves = (first, body), (second, put(k, k + first))
                    split = [((*bound[:at], (k, part), *bound[at + 1 :]), each) for part, each in halves]
                    return [found for each in split for found in self.parts(each, ranges, holds)]
        return [(bound, body)]

    def only_place(self, k: Any, body: Any, holds: Callable[..., bool]) -> Any:
        """Where a body is not zero, if that is at one value of an index at most; None if z3 does not show it."""
        z = self.z
        rest, seen = [body], set[int]()
        while rest:
            e = rest.pop()
            if e.get_id() in seen:
                continue
            seen.add(e.get_id())
            rest += e.children()
            if z.is_eq(e) and z.is_arith(e.arg(0)):
                a, b = (x.arg(0) if z.is_app_of(x, z.Z3_OP_TO_REAL) else x for x in e.children())
                if z.is_int(a) and z.is_int(b):
                    place = next(
                        (
                            p
                            for p in (z.simplify(k - a + b), z.simplify(k + a - b))
                            if z.substitute(p, (k, k + 1)).eq(p)
                        ),
                        None,
                    )
                    if place is not None and holds(z.Implies(k != place, body == 0)):
                        return place
        return None

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
        self.given = [*guards, *inside]
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
        many = [
            (a, b)
            for a, b in zip(left_values, right_values)
            if isinstance(a, Total | Extreme) or isinstance(b, Total | Extreme)
        ]
        same = [
            a == b for a, b in zip(left_values, right_values) if not any(isinstance(v, Total | Extreme) for v in (a, b))
        ]
        assumed = [*self.facts.said, *guards, *elements.said]
        if self.ask(assumed) == z.unsat:
            return None
        if self.ask([*assumed, z.Not(z.And(*owed))]) != z.unsat:
            return False
        nowhere = z.Or(*self.facts.undefined, False), z.Or(*shown.undefined, False)
        given = [*assumed, *inside, z.Not(nowhere[0])]
        if types_only:
            return True
        for a, b in many:
            if not self.equal_many(given, *self.alike(a, b)):
                same.append(self.name(a, elements) == self.name(b, elements))
        assumed = [*assumed, *elements.said, *(f for f in self.facts.said if f is not True)]
        wrong = z.Or(nowhere[0] != nowhere[1], z.And(z.Not(nowhere[0]), z.Not(z.And(*same, True))))
        return bool(self.ask([*assumed, *inside, wrong]) == z.unsat)

    def alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Two values in one form, if there is one."""
        if isinstance(a, Extreme) or isinstance(b, Extreme):
            most = (a if isinstance(a, Extreme) else b).most
            return self.extreme(a, most) or a, self.extreme(b, most) or b
        return Total.of(a), Total.of(b)

    def ask(self, facts: Sequence[Any]) -> Any:
        """z3's answer; Beyond after the time for the rule."""
        if perf_counter() > self.until:
            raise Beyond("it takes too long")
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


def prove(rule: Rule) -> tuple[bool, str]:
    """Whether z3 proves a one-way rule at every rank up to the bound; with what it proved, or why not."""
    calls = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, Call)}
    try:
        if rule.exact and calls & {*CONTRACTIONS, *DEFINITIONS}:
            return False, "sums are looked at over the reals"
        done, said = (False, "") if calls & {*CONTRACTIONS, *DEFINITIONS} else _prove(rule, False)
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
    for asked, (ranks, fixed) in enumerate(structures(rule, False)):
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
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    calls = [t for t in terms if isinstance(t, Call)]
    numbers = [t.value for t in terms if isinstance(t, Literal)]
    numbers += [a.value for t in calls for n, a in t.attrs if n == "value" and isinstance(a, Value)]
    powers = [t.args[1] for t in calls if t.op == "pow"]
    ring = is_whole(numbers) and all(t.op in RING or t.op in LAYOUT or t.op in ("pow", "cast", "eq") for t in calls)
    ring = ring and all(isinstance(p, Literal) and p.value >= 0 for p in powers) and _counting(calls)
    order = not numbers and all(t.op in LATTICE or t.op in LAYOUT for t in calls)
    left = [t for side in rule.lefts for t in subterms(side)]
    floats = any(isinstance(t, Call) and OPS[t.op].floats_only for t in left)
    floats = floats or any(isinstance(t, Literal) and not is_whole([t.value]) for t in left)  # which no integer is
    return ring or order or floats or any(isinstance(g, Apply) and g.function == "floating" for g in rule.guards)


def _counting(calls: Sequence[Call]) -> bool:
    """Whether comparisons are those of indices, and only what they say is cast: to zeros and ones."""
    cast = [t for t in calls if t.op == "cast"]
    compared = [t for t in calls if t.op == "eq"]
    return all(isinstance(a, Call) and a.op == "iota" for t in compared for a in t.args) and all(
        isinstance(t.args[0], Call) and t.args[0].op == "eq" for t in cast
    )


def _prove(rule: Rule, real: bool) -> tuple[bool, str]:
    matched = asked = 0
    until = perf_counter() + SECONDS
    for ranks, fixed in structures(rule, real):
        asked += 1
        if asked > QUESTIONS:
            return False, "too many ranks, axes and permutations"
        try:
            found = _World(rule, ranks, fixed, real, until).holds()
        except _Reject:
            continue
        if found is False:
            return False, f"z3 does not show it at ranks {ranks}"
        matched += found is True
    functions = "over the reals" if real else "for any elementwise functions"
    return matched > 0, f"z3: all sizes, offsets and elements {functions}, {matched} patterns of ranks and axes"
