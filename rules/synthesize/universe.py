"""Term enumeration for rule synthesis: terms over chosen ops, smallest first, with fingerprints.

A `World` fixes a few variables with concrete types. Terms are enumerated bottom up. Only the first term of each class
of equal values is extended, since the others follow by congruence (as in QuickSpec, TAP 2010,
https://doi.org/10.1007/978-3-642-13977-2_3, and Ruler, OOPSLA 2021, https://doi.org/10.1145/3485496). Fingerprints
(characteristic vectors) identify equal values: float64 on two random draws and, within ring arithmetic, exact values
modulo two primes, which distinguish terms that differ by less than rounding. Other elementwise functions are evaluated
modulo the primes as uninterpreted functions (a hash of their operands): equality then holds for every such function.

Sizes are tracked as expressions (`size(a, 0)`, sums of sizes after a concat), so that the offset of a split is
expressed by the variables instead of a concrete number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...egraph.ir import atomic_ops as atomic
from ...egraph.ir import builders as api
from ...egraph.ir import dtypes
from ...egraph.ir.dims import concrete
from ...egraph.ir.graph import make, topological
from ...egraph.ir.interpret import apply, expand_all
from ...egraph.ir.ops import OPS, Type
from ...egraph.ir.pattern import Apply, Attr, AttrConstant, Fact, Literal, Name, PatternCall, Term, Var, evaluate
from ...egraph.ir.type_laws import infer
from ...errors import ShapeError, UsageError

Array = np.ndarray[Any, Any]
Sizes = tuple[tuple[Attr, ...], ...]  # per axis, parts whose sum is the size
PRIMES = (268435399, 268435367)  # below 2**28, so that sums of 64 products of residues fit an int64
DRAWS = ("positive", "mixed")
KERNEL, IMAGE = 3, 4  # sizes along both spatial axes
GROWTH = 4  # limit on a term's elements, relative to the largest variable
ALIASES = {"transpose": "permute", "split": "slice", "ewadd": "add", "ewmul": "mul", "conv2d": "conv", "poolmax": "max_pool",
           "poolavg": "avg_pool"}  # fmt: skip
SPATIAL = ("conv", "max_pool", "avg_pool")


@dataclass(frozen=True)
class World:
    """The variables with concrete types at which terms are compared, and the ops that apply to them."""

    name: str
    types: Mapping[str, Type]
    ops: tuple[str, ...]

    @property
    def home(self) -> int:
        """Rank of the variables if random instances rarely have that rank (rules are then tested at it, too), else 0."""
        rank = max(t.rank for t in self.types.values())
        return rank if rank > 2 else 0

    @property
    def facts(self) -> dict[str, Fact]:
        """The environment for evaluating attribute expressions."""
        return {n: Fact(t, False) for n, t in self.types.items()}


@dataclass(frozen=True, slots=True)
class UniverseEntry:
    """An enumerated term with its type, symbolic sizes and fingerprint.

    `exact` holds the values modulo the primes (None outside exact arithmetic), `floats` those in float64. `pure` means
    that `exact` involves no uninterpreted function.
    """

    term: Term
    type: Type
    sizes: Sizes
    exact: tuple[Array, ...] | None
    floats: tuple[Array, ...]
    pure: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The concrete shape."""
        return concrete(self.type.shape)


@dataclass(frozen=True)
class Equality:
    """Two terms of equal value in a world. `free`: equal even with elementwise functions uninterpreted."""

    left: Term
    right: Term
    free: bool


def worlds(ops: Sequence[str], variables: int, *, broadcast: bool = False) -> list[World]:
    """The worlds that some ops need: square matrices, and images with convolution kernels.

    `broadcast` adds a row, a column and a scalar to the matrices. Raises UsageError for an op that cannot be
    enumerated.
    """
    names = [ALIASES.get(op, op) for op in ops]
    for op in names:
        if not _is_number(op) and (op not in OPS or OPS[op].kind == "leaf" or _attributes(op) is None):
            raise UsageError(f"cannot enumerate terms over {op!r}", hint=f"ops such as {', '.join(_known())}, numbers")
    if not 1 <= variables <= 4:
        raise UsageError(f"--variables {variables} is not 1 to 4")
    if all(map(_is_number, names)):
        raise UsageError("numbers alone make no terms", hint="--ops add,mul,0,1")
    found = []
    spatial = [op for op in names if op in SPATIAL]
    matrix = Type((3, 3), "float32")
    rest = tuple(op for op in names if op not in SPATIAL)
    if "matmul" in rest or not spatial:
        types = dict.fromkeys("abcd"[:variables], matrix)
        if broadcast:
            types |= {"r": Type((1, 3), "float32"), "k": Type((3, 1), "float32"), "s": Type((1, 1), "float32")}
        if "where" in rest:
            types["m"] = Type((3, 3), "bool")
        found.append(World("matrices", types, rest))
    if spatial:
        types = dict.fromkeys("xyz"[: min(variables, 2)], Type((2, 3, IMAGE, IMAGE), "float32"))
        if "conv" in spatial:
            types |= dict.fromkeys("uvw"[: min(variables, 2)], Type((3, 3, KERNEL, KERNEL), "float32"))
        found.append(World("images", types, tuple(op for op in names if op != "matmul")))
    return found


def _known() -> list[str]:
    return sorted(op for op, entry in OPS.items() if entry.kind != "leaf" and _attributes(op) is not None)


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


# ---------------------------------------------------------------- attributes to try
def _total(parts: Sequence[Attr]) -> Attr:
    found = parts[0]
    for part in parts[1:]:
        found = Apply("add", (found, part))
    return found


def _vec(*items: int) -> Attr:
    return Apply("vec", tuple(map(AttrConstant, items)))


def _axis(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        yield {"axis": AttrConstant(i)}


def _axes(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        if x.type.shape[i] != 1:
            yield {"axes": _vec(i)}


_PERMS: dict[int, tuple[tuple[int, ...], ...]] = {2: ((1, 0),), 3: ((0, 2, 1),), 4: ((1, 0, 2, 3), (0, 1, 3, 2))}


def _perm(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for perm in _PERMS.get(x.type.rank, ()):
        yield {"perm": _vec(*perm)}


def _cuts(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    """Attributes of the slices to try: both parts at every concat boundary of every axis.

    For an axis without a boundary: its first element and the rest.
    """
    for i, parts in enumerate(x.sizes):
        whole = _total(parts)
        spots: list[Attr] = [_total(parts[:k]) for k in range(1, len(parts))]
        if len(parts) == 1 and x.shape[i] > 1:
            spots = [AttrConstant(1)]
        for spot in spots:
            yield {"axis": AttrConstant(i), "start": AttrConstant(0), "stop": spot, "step": AttrConstant(1)}
            yield {"axis": AttrConstant(i), "start": spot, "stop": whole, "step": AttrConstant(1)}


def _pads(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        for lo, hi in ((1, 0), (0, 1)):
            yield {"axis": AttrConstant(i), "lo": AttrConstant(lo), "hi": AttrConstant(hi), "value": AttrConstant(0.0)}


def _conv(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for pad in (1, 0):
        yield {"strides": _vec(1, 1), "pads": _vec(*(pad,) * 4), "dilations": _vec(1, 1), "groups": AttrConstant(1)}


def _pool(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for kernel, stride, pad in ((3, 1, 1), (2, 2, 0)):
        yield {"kernel": _vec(kernel, kernel), "strides": _vec(stride, stride), "pads": _vec(*(pad,) * 4),
               "dilations": _vec(1, 1)}  # fmt: skip


_TRIED: dict[tuple[str, ...], Callable[[UniverseEntry], Iterator[dict[str, Attr]]]] = {
    (): lambda x: iter(({},)), ("axis",): _axis, ("axes",): _axes, ("perm",): _perm,
    ("axis", "start", "stop", "step"): _cuts, ("axis", "lo", "hi", "value"): _pads,
    ("strides", "pads", "dilations", "groups"): _conv, ("kernel", "strides", "pads", "dilations"): _pool,
}  # fmt: skip


def _attributes(op: str) -> Callable[[UniverseEntry], Iterator[dict[str, Attr]]] | None:
    """Generator of attribute values to try for an op, given its first operand; None for an op not enumerated."""
    entry = OPS[op]
    if entry.law in (
        "gather",
        "gather_elements",
        "scatter_elements",
        "cross_entropy",
        "rope",
        "attention",
        "channel_norm",
    ):
        return None
    return _TRIED.get(tuple(entry.attrs))


# ---------------------------------------------------------------- sizes
def _sizes(
    op: str, args: Sequence[UniverseEntry], attrs: Mapping[str, Any], given: Mapping[str, Attr], result: Type
) -> Sizes:
    """The result's sizes as expressions where they follow from the operands' sizes, else as numbers."""
    law, x = OPS[op].law, args[0]
    same = x.type.rank == result.rank
    found: list[tuple[Attr, ...]] = list(x.sizes) if same else [(AttrConstant(d),) for d in result.shape]
    if law == "matmul":
        found = [*x.sizes[:-1], args[1].sizes[-1]]
    elif law == "conv":
        found = [x.sizes[0], args[1].sizes[0], *x.sizes[2:]]
    elif law == "permute":
        found = [x.sizes[p] for p in attrs["perm"]]
    elif law == "concat":
        found[attrs["axis"]] = x.sizes[attrs["axis"]] + args[1].sizes[attrs["axis"]]
    elif law == "slice":
        found[attrs["axis"]] = _part(x.sizes[attrs["axis"]], given["start"], given["stop"])
    elif law == "pad":
        lo, hi = (((given[n],) if attrs[n] else ()) for n in ("lo", "hi"))
        found[attrs["axis"]] = (*lo, *x.sizes[attrs["axis"]], *hi)
    elif law in ("pointwise", "compare", "where"):
        for i, size in enumerate(result.shape):
            found[i] = next(a.sizes[i] for a in args if a.type.shape[i] == size)
    elif law == "reduce":
        for i in attrs["axes"]:
            found[i] = (AttrConstant(1),)
    return tuple(found)


def _part(parts: tuple[Attr, ...], start: Attr, stop: Attr) -> tuple[Attr, ...]:
    """The size of a slice: the parts between two concat boundaries, or the difference of the bounds."""
    for k in range(1, len(parts)):
        if stop == _total(parts[:k]) and start == AttrConstant(0):
            return parts[:k]
        if start == _total(parts[:k]):
            return parts[k:]
    return (stop,) if start == AttrConstant(0) else (Apply("sub", (stop, start)),)


# ---------------------------------------------------------------- values
def _inverse(x: Array, p: int) -> Array:
    found, power, base = np.ones_like(x), p - 2, x % p
    while power:
        found = found * base % p if power & 1 else found
        base, power = base * base % p, power >> 1
    return found  # 1 / 0 is 0 here; the float64 values distinguish this


_RING: dict[str, Callable[..., Array]] = {
    "add": lambda a, x, y: x + y,
    "sub": lambda a, x, y: x - y,
    "mul": lambda a, x, y: x * y,
    "neg": lambda a, x: -x,
    "matmul": lambda a, x, y: np.matmul(x, y),
    "conv": lambda a, x, w: atomic.conv(a, x, w),
    "sum": lambda a, x: np.sum(x, axis=a["axes"], keepdims=True),
    "cumsum": lambda a, x: np.cumsum(x, axis=a["axis"]),
}
_MOVES = tuple(op.name for op in OPS.values() if op.moves and op.name != "pad")


def residue(value: float, p: int) -> int:
    """A constant modulo p; a float equal to the reciprocal of an integer stands for the exact fraction."""
    exact = Fraction(value)
    if exact.denominator > 1 and 1.0 / round(1 / exact) == value:
        exact = Fraction(1, round(1 / exact))
    return int(exact.numerator * pow(exact.denominator, -1, p)) % p


def _hashed(op: str, arrays: Sequence[Array], p: int) -> Array:
    """An uninterpreted function of the operands' elements: a hash below p."""
    mixed: Array = np.full((), zlib.crc32(op.encode()) | 1, np.uint64)
    with np.errstate(over="ignore"):
        for x in arrays:
            mixed = (mixed ^ x.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(20)) % np.uint64(p)).astype(np.int64)


def _exactly(op: str, attrs: Mapping[str, Any], arrays: Sequence[Array], p: int) -> tuple[Array | None, bool]:
    """(value of an atomic op modulo p, whether the op was interpreted); None for an unsupported op."""
    if op in _RING:
        return _RING[op](attrs, *arrays) % p, True
    if op == "div":
        return arrays[0] * _inverse(arrays[1], p) % p, True
    if op == "recip":
        return _inverse(arrays[0], p), True
    if op == "full":
        return (
            (np.full(attrs["shape"], residue(attrs["value"], p)), True) if np.isfinite(attrs["value"]) else (None, True)
        )
    if op == "pad" and np.isfinite(attrs["value"]):
        widths = [(attrs["lo"], attrs["hi"]) if i == attrs["axis"] else (0, 0) for i in range(arrays[0].ndim)]
        return np.pad(arrays[0], widths, constant_values=residue(attrs["value"], p)), True
    if op in _MOVES:
        numpy = OPS[op].numpy
        assert numpy is not None
        return np.asarray(numpy(attrs, *arrays)), True
    return (_hashed(op, arrays, p), False) if OPS[op].pointwise and op != "cast" else (None, False)


@dataclass
class TermValues:
    """Evaluator of ops on the values of enumerated terms.

    Composites are decomposed; each decomposition is built once per type.
    """

    plans: dict[Any, list[Any]] = field(default_factory=dict)

    def plan(self, op: str, attrs: Mapping[str, Any], types: Sequence[Type]) -> list[Any]:
        """The atomic nodes of an op over leaves 0, 1, …, operands first."""
        key = (op, tuple(attrs.items()), tuple(types))
        if key not in self.plans:
            leaves = [api.input(str(i), t.shape, t.dtype) for i, t in enumerate(types)]
            self.plans[key] = topological(expand_all([make(op, leaves, attrs)]))
        return self.plans[key]

    def of(self, op: str, attrs: Mapping[str, Any], args: Sequence[UniverseEntry]) -> tuple[Any, Any, bool]:
        """Values of an op applied to entries, on every drawn assignment.

        Returns (values modulo each prime, or None if an operand or the result has none; float64 values; whether the result was computed
        without uninterpreted functions).
        """
        plan = self.plan(op, attrs, [a.type for a in args])
        floats = tuple(self.run(plan, [a.floats[k] for a in args], None)[0] for k in range(len(DRAWS)))
        if any(a.exact is None for a in args):
            return None, floats, False
        exact, pure = [], all(a.pure for a in args)
        for k, p in enumerate(PRIMES):
            value, interpreted = self.run(plan, [a.exact[k] for a in args if a.exact is not None], p)
            if value is None:
                return None, floats, False
            exact.append(value)
            pure = pure and interpreted
        return tuple(exact), floats, pure

    def run(self, plan: Sequence[Any], arrays: Sequence[Array], p: int | None) -> tuple[Any, bool]:
        """(value of a plan modulo p, or in float64 if p is None; whether all ops were interpreted)."""
        live: dict[int, Any] = {}
        pure = True
        for node in plan:
            if node.is_leaf:
                live[id(node)] = arrays[int(node.attr("name"))]
                continue
            given = [live[id(a)] for a in node.args]
            if p is None:
                with np.errstate(all="ignore"):
                    live[id(node)] = apply(node, given, float64=True)
            else:
                live[id(node)], interpreted = _exactly(node.op, dict(node.attrs), given, p)
                pure = pure and interpreted
                if live[id(node)] is None:
                    return None, False
        return live[id(plan[-1])], pure


def _rounded(x: Array) -> bytes:
    """A byte string that is equal for arrays that are equal up to rounding."""
    if x.dtype.kind != "f":
        return x.tobytes()
    finite = np.isfinite(x)
    top = float(np.max(np.abs(x), where=finite, initial=0.0))
    scaled = np.where(finite, x / top if top else 0.0, 0.0)
    marks = np.where(finite, np.round(scaled, 7) + 0.0, np.where(np.isnan(x), 3.0, np.sign(x) * 2))
    return np.float32(top).tobytes()[1:] + marks.tobytes() if top < 1e-30 else _magnitude(top) + marks.tobytes()


def _magnitude(top: float) -> bytes:
    return repr(float(f"{top:.7g}")).encode()


# ---------------------------------------------------------------- enumeration
class Universe:
    """All terms of a world up to a size, one per value. `grow` yields the equalities that it encounters."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.values = world, TermValues()
        self.classes: dict[Any, list[UniverseEntry]] = {}
        self.by_size: list[list[UniverseEntry]] = []
        self.terms = 0
        rng = np.random.default_rng(seed)
        self.volume = GROWTH * max(prod(concrete(t.shape)) for t in world.types.values())
        self.by_size.append([self._leaf(n, t, rng) for n, t in world.types.items()])
        self.numbers = self._numbers()
        for entry in self.by_size[0]:
            self.classes.setdefault(self.key(entry), []).append(entry)

    def _leaf(self, name: str, t: Type, rng: np.random.Generator) -> UniverseEntry:
        sizes = tuple((Apply("size", (Name(name), AttrConstant(i))),) for i in range(t.rank))
        shape = concrete(t.shape)
        if t.dtype == "bool":
            value = rng.random(shape) < 0.5
            return UniverseEntry(Var(name), t, sizes, (value.astype(np.int64),) * 2, (value,) * 2, True)
        exact = tuple(rng.integers(0, p, shape) for p in PRIMES)
        return UniverseEntry(
            Var(name), t, sizes, exact, (rng.uniform(0.2, 2.0, shape), rng.standard_normal(shape)), True
        )

    def _numbers(self) -> list[UniverseEntry]:
        """The constants among the ops, one per rank of the variables."""
        found = []
        for text in filter(_is_number, self.world.ops):
            for rank in {t.rank for t in self.world.types.values()}:
                value = float(text)
                exact = tuple(np.full((1,) * rank, residue(value, p)) for p in PRIMES)
                found.append(UniverseEntry(Literal(value), Type((1,) * rank, "float32"), ((AttrConstant(1),),) * rank, exact,
                                   (np.full((1,) * rank, value),) * 2, True))  # fmt: skip
        return found

    def key(self, entry: UniverseEntry) -> Any:
        """Fingerprint of a term: equal for terms of equal type and value up to rounding."""
        return (entry.type, *map(_rounded, entry.floats))

    def grow(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Equality]:
        """Enumerate all terms of the next size; yields each equality with an earlier term."""
        size = len(self.by_size)
        self.by_size.append([])
        for op in (o for o in self.world.ops if not _is_number(o)):
            for args in self._operands(op, size - 1):
                if stop():
                    return
                tried = _attributes(op)
                assert tried is not None
                for given in tried(args[0]):
                    entry = self._entry(op, args, given)
                    if entry is not None:
                        yield from self._add(entry, size)

    def _operands(self, op: str, size: int) -> Iterator[tuple[UniverseEntry, ...]]:
        """Yields operand tuples of a total size; constants occur only beside non-constants, in elementwise ops."""
        arity = OPS[op].arity
        for split in product(range(size + 1), repeat=arity):
            if sum(split) == size:
                rows = [self.by_size[k] + (self.numbers if k == 0 and OPS[op].pointwise else []) for k in split]
                for args in product(*rows):
                    if not all(isinstance(a.term, Literal) for a in args[OPS[op].law == "where" :]):
                        yield args

    def _entry(self, op: str, args: tuple[UniverseEntry, ...], given: Mapping[str, Attr]) -> UniverseEntry | None:
        """The term as a UniverseEntry; None if it is ill typed or too large."""
        if isinstance(args[0].term, Literal) and OPS[op].attrs:
            return None
        if op == "conv" and not args[1].type.shape[2:3] < (KERNEL + 1,) <= args[0].type.shape[2:3]:
            return None  # images and kernels are not interchanged
        attrs = {n: evaluate(a, self.world.facts) for n, a in given.items()}
        try:
            found = infer(OPS[op], [a.type for a in args], attrs)
        except ShapeError:
            return None
        if not 0 < prod(concrete(found.shape)) <= self.volume:
            return None
        self.terms += 1
        exact, floats, pure = self.values.of(op, attrs, args)
        if not dtypes.is_float(found.dtype):
            exact = None
        term = PatternCall(op, tuple(a.term for a in args), tuple(given.items()))
        return UniverseEntry(
            term, found, _sizes(op, args, attrs, given, found), exact, floats, pure and exact is not None
        )

    def _add(self, entry: UniverseEntry, size: int) -> Iterator[Equality]:
        known = self.classes.setdefault(self.key(entry), [])
        for other in known:
            same = entry.exact is not None and other.exact is not None and all(
                np.array_equal(a, b) for a, b in zip(entry.exact, other.exact)
            )  # fmt: skip
            if same or not (entry.pure and other.pure):
                yield Equality(entry.term, other.term, same and not (entry.pure and other.pure))
                return
        known.append(entry)
        self.by_size[size].append(entry)
