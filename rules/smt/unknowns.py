"""Defines the unknowns of an SMT proof (smt/prove.py).

Tensors with symbolic shapes, attributes, guards, assumptions, and solver queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from math import inf
from time import perf_counter
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import PatternCall, subterms
from ...egraph.patterns.pattern_attrs import FUNCTIONS, Attr, AttrConstant, Name
from ...egraph.patterns.rule import Rule
from ..semantics.function_facts import Functions
from ..semantics.solver import OutOfScope, z3
from ..semantics.structures import bits, booleans
from ..semantics.sums import Many

COST = ("weight", "active", "chained", "original", "ordered")  # where a rule pays, not where it is sound
EFFORT = 1_500_000  # z3 resource limit per query: about half a second, independent of the machine's load
SMALL = 4  # largest size and attribute in examples
MILLISECONDS = 5000  # hard time limit per query
MODELS = 4  # earlier models that are tried before z3 is asked
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


class IllTyped(Exception):
    """Raised when a term has no value at these ranks and axes."""


@dataclass
class Sym:
    """Symbolic value: its shape, `dtype` as a code, and `at`, which maps an index to the z3 term of the element.

    `boolean`: whether elements are booleans.
    """

    shape: tuple[Any, ...]
    dtype: Any
    at: Callable[[Sequence[Any]], Any]
    boolean: bool = False


@dataclass
class SizeFacts:
    """Formulas collected while a term is encoded.

    `conditions`: facts about the terms that occur, and conditions under which they are well typed (assumed of a left
    side, to be proved of a right side). Where a formula in `undefined` holds, an element has no finite value.
    """

    conditions: list[Any] = field(default_factory=list)
    undefined: list[Any] = field(default_factory=list)


class _Model:
    """A model that z3 found; remembers which formulas it satisfies."""

    def __init__(self, z: Any, model: Any) -> None:
        self.z, self.model = z, model
        self.known: dict[int, tuple[Any, bool]] = {}  # by formula id; holding the formula keeps its id valid

    def satisfies(self, facts: Sequence[Any]) -> bool:
        """Whether all formulas are true in the model; the last ones are evaluated first, as they are the new ones."""
        return all(self._is_true(f) for f in reversed(facts))

    def _is_true(self, fact: Any) -> bool:
        if not self.z.is_expr(fact):
            return bool(fact)
        if fact.get_id() not in self.known:
            self.known[fact.get_id()] = (fact, self.z.is_true(self.model.eval(fact, model_completion=True)))
        return self.known[fact.get_id()][1]


class Unknowns:
    """The unknowns of a rule at given ranks, axes and permutations, and the attribute expressions' values.

    `fixed`: values of the attribute variables (`structures`). `real`: elements are real numbers, else values of which
    nothing is known. `until`: deadline of all queries (`perf_counter`).
    """

    def __init__(
        self, rule: Rule, ranks: Mapping[str, int], fixed: Mapping[str, Any], real: bool, until: float = inf
    ) -> None:
        self.until = until
        self.z, self.rule, self.real = z3(), rule, real
        self.facts = SizeFacts()
        z = self.z
        self.sort = z.RealSort() if real else z.DeclareSort("Value")
        self.env: dict[str, Any] = dict(fixed)
        self.opened = _has_unknown_attributes(rule)  # whether composite ops are decomposed
        self.summed = count()
        self.functions = Functions(z)
        self.given: list[Any] = []  # guards, and bounds of the index at which elements are read
        self.ranges: dict[str, tuple[Any, Any]] = {}  # index variables by name, with their sizes
        self.names: list[tuple[Many, list[Any], Any]] = []
        self.models: list[_Model] = []  # of earlier queries, the last used first
        self.ones: dict[int, tuple[Any, bool]] = {}
        self.mentioned: dict[int, tuple[Any, frozenset[str]]] = {}  # by term id; holding the term keeps its id valid
        binary = bits(rule)
        self.booleans = booleans(rule) | binary
        for name, rank in ranks.items():
            shape = tuple(z.Int(f"{name}.{i}") for i in range(rank))
            self.facts.conditions += [d >= 0 for d in shape]
            boolean = name in self.booleans
            function = z.Function(name, *[z.IntSort()] * rank, z.BoolSort() if boolean else self.sort)
            code = z.IntVal(BOOL) if boolean and name not in binary else z.Int(f"dtype.{name}")
            if not boolean:
                self.facts.conditions.append(code > OTHER)
            self.env[name] = Sym(shape, code, _reader(function), boolean)

    def function(self, name: str, *sorts: Any) -> Any:
        """z3 function symbol of an uninterpreted function."""
        return self.z.Function(name, *sorts)

    def impossible(self, facts: Sequence[Any]) -> bool:
        """Whether z3 proves that some facts cannot hold together. Raises OutOfScope after the rule's time limit.

        Nearly all queries of a proof share their assumptions: a model of an earlier query often answers one at once.
        """
        if perf_counter() > self.until:
            raise OutOfScope("it takes too long")
        z, facts = self.z, [f for f in facts if f is not True]
        for at, model in enumerate(self.models):
            if model.satisfies(facts):
                self.models.insert(0, self.models.pop(at))
                return False
        solver = z.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.set("rlimit", EFFORT)
        solver.add(*facts)
        answer = solver.check()
        if answer == z.sat:
            self.models = [_Model(z, solver.model()), *self.models[: MODELS - 1]]
        return bool(answer == z.unsat)

    def example(self, facts: Sequence[Any]) -> dict[str, Any] | None:
        """A model with small sizes and attributes, by the names of the rule's variables (shapes for tensors).

        None if z3 finds none.
        """
        z, found = self.z, {}
        unknown = [
            n
            for v in self.env.values()
            for n in (v.shape if isinstance(v, Sym) else v if isinstance(v, tuple) else (v,))
        ]
        solver = z.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.set("rlimit", EFFORT)
        solver.add(
            *(f for f in facts if f is not True),
            *(z.And(n >= (-SMALL if n.is_real() else 0), n <= SMALL) for n in unknown if z.is_expr(n)),
        )
        if solver.check() != z.sat:
            return None
        model = solver.model()

        def number(n: Any) -> Any:
            if not z.is_expr(n):
                return n
            value = model.eval(n, model_completion=True)
            return (
                value.as_long()
                if z.is_int_value(value)
                else float(value.approx(20).as_fraction() if z.is_algebraic_value(value) else value.as_fraction())
            )

        for name, value in self.env.items():
            parts = value.shape if isinstance(value, Sym) else value
            found[name] = tuple(map(number, parts)) if isinstance(parts, tuple) else number(parts)
        return found

    def value(self, attr: Attr) -> Any:
        """The value of an attribute expression over unknowns. Raises OutOfScope if unsupported. Raises Reject if it has
        no value."""
        z = self.z
        if isinstance(attr, AttrConstant):
            return attr.value
        if isinstance(attr, Name):
            if attr.name not in self.env:
                raise OutOfScope(f"{attr.name} has no value")
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
            self.facts.conditions.append(args[1] > 0)
            return args[0] / args[1]
        if f in ("min", "max") and symbolic:
            return z.If((args[0] <= args[1]) == (f == "min"), *args)
        if f in ("at", "drop", "insert", "replace", "compose", "permuted", "index", "inverse", "contains", "identity"):
            places = args[1:2] if f not in ("compose", "permuted", "inverse", "identity", "index", "contains") else args
            if f != "permuted" and any(
                z.is_expr(p) or (isinstance(p, tuple) and any(map(z.is_expr, p))) for p in places
            ):
                raise OutOfScope(f"{f} at an unknown index")
        try:
            return FUNCTIONS[f](*args)
        except (IndexError, ValueError, ZeroDivisionError, KeyError) as error:
            raise IllTyped from error

    def about(self, f: str, args: Sequence[Any]) -> Any:
        """Value of the function `f` of a tensor's type: rank, size, shape, volume, dtype, or a condition on them.

        Raises OutOfScope if unsupported, IllTyped for an axis that does not exist.
        """
        z, x = self.z, args[0]
        if f == "rank":
            return len(x.shape)
        if f == "size":
            if z.is_expr(args[1]):
                raise OutOfScope("the size of an unknown axis")
            if not -len(x.shape) <= args[1] < len(x.shape):
                raise IllTyped
            return x.shape[args[1]]
        if f == "shape":
            return x.shape
        if f == "volume":
            found = reduce(lambda a, b: a * b, x.shape, z.IntVal(1))
            for k, size in enumerate(x.shape):  # consequences that z3 does not find by itself
                others = z.And(*(d == 1 for j, d in enumerate(x.shape) if j != k), True)
                self.facts.conditions.append(z.Implies(z.And(found == size, size > 0), others))
            return found
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
        """Equality of numbers, vectors or dtypes, as a formula or a Python bool.

        Raises OutOfScope for other kinds of values.
        """
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
            raise OutOfScope("a condition on a number")
        return a == b

    def code(self, dtype: str) -> Any:
        """The integer code of a dtype."""
        return self.z.IntVal(BOOL if dtype == "bool" else OTHER + 1 + NAMES.index(dtype))

    def number(self, value: Any, dtype: Any) -> Any:
        """A constant or unknown number as an element of a dtype, to which it may be rounded.

        Raises OutOfScope for a number that the dtype does not represent.
        """
        z = self.z
        if self.real:
            if z.is_expr(value):
                return value
            if value != value or value in (float("inf"), float("-inf")):
                raise OutOfScope("an infinite constant")
            return z.RealVal(value)
        code = value if z.is_expr(value) else z.Int(f"number {float(value)!r}")
        return self.function("number", z.IntSort(), z.IntSort(), self.sort)(code, dtype)


def _reader(function: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda i: function(*i)


def _has_unknown_attributes(rule: Rule) -> bool:
    """Whether an elementwise composite op has an attribute that is not a literal value."""
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, PatternCall)]
    return any(
        OPS[t.op].composite
        and OPS[t.op].law == "pointwise"
        and any(not isinstance(a, AttrConstant) for _, a in t.attrs)
        for t in terms
    )
