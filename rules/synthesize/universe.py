"""Enumerates terms for rule synthesis: terms over chosen ops, smallest first, with fingerprints (values that identify
equal terms).

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...egraph.ops.ops import OPS, Type
from ...egraph.ops.type_laws import infer
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Fact, Name, evaluate
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import ShapeError, UsageError
from .term_values import PRIMES, TermValues, UniverseEntry, residue, rounded
from .tried_attributes import attributes_of, result_sizes

KERNEL, IMAGE = 3, 4  # sizes along both spatial axes
GROWTH = 4  # limit on a term's elements, relative to the largest variable
ALIASES = {"transpose": "permute", "split": "slice", "ewadd": "add", "ewmul": "mul", "conv2d": "conv", "poolmax": "max_pool",
           "poolavg": "avg_pool"}  # fmt: skip
SPATIAL = ("conv", "max_pool", "avg_pool")


@dataclass(frozen=True)
class World:
    """The variables with concrete types at which terms are compared, the ops that apply to them, and a name for
    both."""

    name: str
    types: Mapping[str, Type]
    ops: tuple[str, ...]

    @property
    def extra_rank(self) -> int:
        """A rank at which rules over these variables have to be tested in addition: the largest rank of a variable if
        it exceeds 2, because random instances rarely have such ranks; else 0."""
        rank = max(t.rank for t in self.types.values())
        return rank if rank > 2 else 0

    @property
    def facts(self) -> dict[str, Fact]:
        """Types of the variables, in the form in which attribute expressions take them (`Fact`)."""
        return {n: Fact(t, False) for n, t in self.types.items()}


@dataclass(frozen=True)
class Equality:
    """Two terms of equal value at the types of a `World`. `free`: equal even with elementwise functions
    uninterpreted."""

    left: Term
    right: Term
    free: bool


def worlds(ops: Sequence[str], variables: int, *, broadcast: bool = False) -> list[World]:
    """The worlds (variables with types) that some ops need: square matrices, and images with convolution kernels.

    `variables`: number of matrices, 1 to 4; at most 2 images and 2 kernels. `broadcast` adds a row, a column and a
    scalar to the matrices. Raises UsageError for another number, and for an op that cannot be enumerated.
    """
    names = [ALIASES.get(op, op) for op in ops]
    for op in names:
        if not _is_number(op) and (op not in OPS or OPS[op].kind == "leaf" or attributes_of(op) is None):
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
    return sorted(op for op, entry in OPS.items() if entry.kind != "leaf" and attributes_of(op) is not None)


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


# ---------------------------------------------------------------- enumeration
class Universe:
    """All terms of a `World` up to a size, one per value. `grow` yields the equalities that it encounters."""

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
        return (entry.type, *map(rounded, entry.floats))

    def grow(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Equality]:
        """Enumerate all terms of the next size; yields each equality with an earlier term. `stop`: polled; True ends
        the enumeration."""
        size = len(self.by_size)
        self.by_size.append([])
        for op in (o for o in self.world.ops if not _is_number(o)):
            for args in self._operands(op, size - 1):
                if stop():
                    return
                tried = attributes_of(op)
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
            term, found, result_sizes(op, args, attrs, given, found), exact, floats, pure and exact is not None
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
