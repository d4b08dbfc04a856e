"""Proves elementwise rules bit by bit in z3's floating-point and bit-vector theories.

An elementwise rule without layout ops makes the same claim for every element at any shape, so one symbolic element is
enough. The type condition (both sides have equal types) is proved as in smt/prove.py, for every pattern of ranks. z3 is
queried in IEEE 754 arithmetic with round-to-nearest-even for the four float formats, and modulo 2**n for the integer
formats that the rule can match. Two float results are equal if their bits are equal or both are NaN. NumPy, Torch and
hardware disagree on the maximum or minimum of 0.0 and -0.0, so the rule must hold under all three tie rules: the first
operand is returned, the second is, or 0.0 counts as larger. A rule that does not claim `exact` is checked for finite
operands with 0.0 == -0.0, which is at least as strong as its claim over the reals. Functions outside of this arithmetic
are uninterpreted, except that exp and sqrt are known to be nonnegative. A rule that consists of casts between float
formats is checked in the format that its guard names.

A bitwise proof covers every operand value, so it needs no random evaluation in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from time import perf_counter
from typing import Any

from ...egraph.builders import builders as api
from ...egraph.composites.composite import expand
from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var, subterms, variables
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ...egraph.patterns.rule import Rule
from ..semantics.solver import OutOfScope, z3
from ..semantics.structures import booleans
from ..smt.prove import typed

FLOATS = {"float16": (5, 11), "bfloat16": (8, 8), "float32": (8, 24), "float64": (11, 53)}
INTS = {f"{sign}int{n}": (n, not sign) for n in (8, 16, 32, 64) for sign in ("", "u")}
TIES = ("first", "second", "positive")
MILLISECONDS = 5000  # per solver query
SECONDS = 30.0  # per rule
NEVER_NEGATIVE = ("exp", "sqrt")


class _Floats:
    """z3 encoding of one float format, with one tie rule for maximum and minimum of 0.0 and -0.0 (`TIES`).

    `exact` demands bitwise equality; otherwise operands are finite and results are compared as numbers. `signs`
    abstracts products, quotients and reciprocals to their sign and an uninterpreted magnitude, which z3 decides much
    faster. `facts` collects the assumptions to add to the query.
    """

    def __init__(self, name: str, ties: str, exact: bool, signs: bool = False) -> None:
        self.z, self.ties, self.exact, self.signs, self.facts = z3(), ties, exact, signs, list[Any]()
        self.sort = self.z.FPSort(*FLOATS[name])
        self.nearest = self.z.RNE()

    def variable(self, name: str) -> Any:
        """A fresh symbolic element of an operand."""
        found = self.z.FP(name, self.sort)
        if not self.exact:
            self.facts.append(self.z.Not(self.z.Or(self.z.fpIsNaN(found), self.z.fpIsInf(found))))
        return found

    def number(self, value: float) -> Any:
        """A constant in this format."""
        return self.z.FPVal(value, self.sort)

    def equal(self, a: Any, b: Any) -> Any:
        """Formula for equality: bitwise with all NaN equal if the rule claims `exact`, else equality of numbers."""
        z = self.z
        if not self.exact:
            return z.fpEQ(a, b)
        return z.Or(z.And(z.fpIsNaN(a), z.fpIsNaN(b)), z.And(z.Not(z.fpIsNaN(a)), z.Not(z.fpIsNaN(b)), a == b))

    def larger(self, x: Any, y: Any, most: bool) -> Any:
        """Formula for the maximum (`most`) or minimum; NaN propagates."""
        z = self.z
        positive = z.If(z.fpIsNegative(x) == most, y, x)
        tie = {"first": x, "second": y, "positive": positive}[self.ties]
        above, below = (z.fpGT, z.fpLT) if most else (z.fpLT, z.fpGT)
        found = z.If(above(x, y), x, z.If(below(x, y), y, tie))
        return z.If(z.fpIsNaN(x), x, z.If(z.fpIsNaN(y), y, found))

    def signed(self, name: str, x: Sequence[Any]) -> Any:
        """Sound abstraction of a product, quotient or reciprocal.

        Exact sign, magnitude an uninterpreted function of the operands' magnitudes.
        """
        z, sizes = self.z, [self.z.fpAbs(v) for v in x]
        found = z.Function(f"size of {name}", *[self.sort] * len(x), self.sort)(*sizes)
        self.facts += [z.Or(z.fpIsNaN(found), z.fpIsPositive(found))]
        self.facts += [z.Implies(z.fpIsNaN(v), z.fpIsNaN(found)) for v in x]
        return z.If(reduce(z.Xor, map(z.fpIsNegative, x)), z.fpNeg(found), found)

    def apply(self, name: str, x: Sequence[Any]) -> Any:
        """Formula for an atomic elementwise op applied to elements.

        Uninterpreted if the op has no IEEE definition here.
        """
        z, rounded = self.z, self.nearest
        if self.signs and name in ("mul", "div", "recip"):
            return self.signed(name, x)
        laws: dict[str, Callable[..., Any]] = {
            "neg": z.fpNeg, "abs": z.fpAbs, "add": partial(z.fpAdd, rounded), "sub": partial(z.fpSub, rounded),
            "mul": partial(z.fpMul, rounded), "div": partial(z.fpDiv, rounded),
            "recip": lambda a: z.fpDiv(rounded, self.number(1.0), a),
            "maximum": lambda a, b: self.larger(a, b, most=True), "minimum": lambda a, b: self.larger(a, b, most=False),
            "lt": z.fpLT, "le": z.fpLEQ, "eq": z.fpEQ, "is_nan": z.fpIsNaN, "is_inf": z.fpIsInf,
        }  # fmt: skip
        if name in laws:
            return laws[name](*x)
        found = z.Function(name, *[self.sort] * len(x), self.sort)(*x)
        if name in NEVER_NEGATIVE:
            self.facts.append(z.Or(z.fpIsNaN(found), z.fpIsPositive(found), z.And(z.fpIsZero(found), name == "sqrt")))
        return found


class _Ints:
    """z3 bit-vector encoding of one integer format."""

    def __init__(self, name: str) -> None:
        self.z, self.facts = z3(), list[Any]()
        self.size, self.signed = INTS[name]
        self.sort = self.z.BitVecSort(self.size)

    def variable(self, name: str) -> Any:
        """A fresh symbolic element of an operand."""
        return self.z.BitVec(name, self.size)

    def number(self, value: float) -> Any:
        """A constant. Raises OutOfScope if it is not an integer."""
        if value != int(value):
            raise OutOfScope("a fraction among integers")
        return self.z.BitVecVal(int(value), self.size)

    def equal(self, a: Any, b: Any) -> Any:
        """Formula for bitwise equality."""
        return a == b

    def apply(self, name: str, x: Sequence[Any]) -> Any:
        """Formula for an atomic elementwise op; sums and products wrap around.

        Raises OutOfScope if the op has no integer encoding.
        """
        z = self.z
        lt, le = (lambda a, b: a < b, lambda a, b: a <= b) if self.signed else (z.ULT, z.ULE)
        laws: dict[str, Callable[..., Any]] = {
            "neg": lambda a: -a, "abs": lambda a: z.If(a < 0, -a, a) if self.signed else a,
            "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
            "maximum": lambda a, b: z.If(lt(a, b), b, a), "minimum": lambda a, b: z.If(lt(b, a), b, a),
            "lt": lt, "le": le, "eq": lambda a, b: a == b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
            "xor": lambda a, b: a ^ b, "not": lambda a: ~a,
        }  # fmt: skip
        if name not in laws:
            raise OutOfScope(f"{name} of integers")
        return laws[name](*x)


class _Elements:
    """Evaluates the terms of a rule at one symbolic element, in one number format."""

    def __init__(self, rule: Rule, numbers: Any) -> None:
        self.numbers, conditions = numbers, booleans(rule)
        z = numbers.z
        names = dict.fromkeys(v for t in rule.lefts for v in variables(t))
        self.env = {n: z.Bool(n) if n in conditions else numbers.variable(n) for n in names}

    def of(self, term: Term) -> Any:
        """The formula for a term. Raises OutOfScope if there is none."""
        if isinstance(term, Var):
            return self.env[term.name]
        if isinstance(term, Literal):
            return self.numbers.number(term.value)
        if term.op == "full":
            value = dict(term.attrs)["value"]
            if not isinstance(value, AttrConstant):
                raise OutOfScope("an unknown number")
            return self.numbers.number(value.value)
        if term.op == "cast":
            return self.cast(self.of(term.args[0]), dict(term.attrs)["dtype"])
        return self.op(term.op, [self.of(a) for a in term.args])

    def cast(self, x: Any, dtype: Attr) -> Any:
        """The value cast to a named float format, or unchanged if the dtype is the operand's own (see `_casts`)."""
        z, numbers = self.numbers.z, self.numbers
        sort = z.FPSort(*FLOATS[dtype.value]) if isinstance(dtype, AttrConstant) else numbers.sort
        return x if x.sort() == sort else z.fpToFP(numbers.nearest, x, sort)

    def op(self, name: str, x: Sequence[Any]) -> Any:
        """The formula for an op applied to values, booleans included. Raises OutOfScope if there is none."""
        z, entry = self.numbers.z, OPS[name]
        if name == "where":
            return z.If(*x)
        logic = {"and": z.And, "or": z.Or, "xor": z.Xor, "not": z.Not}
        if all(z.is_bool(v) for v in x):
            if name not in logic:
                raise OutOfScope(f"{name} of booleans")
            return logic[name](*x)
        return self.decomposed(name, x) if entry.composite else self.numbers.apply(name, x)

    def decomposed(self, name: str, x: Sequence[Any]) -> Any:
        """The formula for a composite op, from its decomposition into atomic ops."""
        leaves = [api.input(f"operand{i}", (1,)) for i in range(len(x))]
        done: dict[Tensor, Any] = dict(zip(leaves, x))

        def walk(node: Tensor) -> Any:
            if node not in done:
                if node.op == "full":
                    done[node] = self.numbers.number(node.attr("value"))
                elif node.op in ("reshape", "broadcast_to"):
                    done[node] = walk(node.args[0])
                else:
                    done[node] = self.op(node.op, [walk(a) for a in node.args])
            return done[node]

        return walk(expand(make(name, leaves)))


def prove_bits(rule: Rule) -> tuple[bool, str]:
    """Tries to prove a one-way elementwise rule bitwise with z3. Returns (proved, text of the proved claim or the
    reason why there is no proof)."""
    try:
        worlds, until = list(_formats(rule)), perf_counter() + SECONDS
        for _, *ways in worlds:
            if perf_counter() > until or not any(_always(rule, numbers) for numbers in ways):
                return False, "z3 does not show it bit by bit"
        patterns = typed(rule)
    except OutOfScope as beyond:
        return False, str(beyond)
    formats = ", ".join(dict.fromkeys(str(name) for name, *_ in worlds))
    which = "bit by bit for every operand" if rule.exact else "equal numbers for every finite operand"
    return patterns > 0, f"z3: {which} in {formats}, types at {patterns} patterns of ranks"


def _always(rule: Rule, numbers: Any) -> bool:
    """Whether z3 proves that the sides are equal in one number format. Raises OutOfScope for what z3 cannot spell."""
    try:
        elements = _Elements(rule, numbers)
        for left, right in zip(rule.lefts, rule.rights):
            a, b = elements.of(left), elements.of(right)
            solver = numbers.z.Solver()
            solver.set("timeout", MILLISECONDS)
            solver.add(*numbers.facts, numbers.z.Not(a == b if numbers.z.is_bool(a) else numbers.equal(a, b)))
            if solver.check() != numbers.z.unsat:
                return False
    except numbers.z.Z3Exception as error:  # values of two kinds, such as a number and a truth value
        raise OutOfScope(f"z3: {error}") from None
    return True


def _formats(rule: Rule) -> Iterator[tuple[Any, ...]]:
    """Yields (format name, encodings to try, cheapest first) for each number format in which the rule may match.

    Raises OutOfScope for a rule that is not elementwise. Guards on shapes are checked with the types (smt/prove.py): an
    equality that holds for every element also holds under them.
    """
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    calls = [t for t in terms if isinstance(t, PatternCall)]
    if any(t.op == "cast" for t in calls):
        yield from _casts(rule, calls)
        return
    for t in calls:
        entry = OPS[t.op]
        if t.op == "full":
            continue
        if t.attrs or not (entry.pointwise or (entry.composite and entry.law == "pointwise")):
            raise OutOfScope(f"{t.op} is not elementwise, or has attributes")
    rounded = any(OPS[t.op].composite or t.op in ("mul", "div", "recip") for t in calls)
    for name in FLOATS:
        for ties in _ties(calls):
            zero_signs = (True, False) if rounded else (False,)
            yield name, *(_Floats(name, ties, rule.exact, signs) for signs in zero_signs)
    left = {t.op for side in rule.lefts for t in subterms(side) if isinstance(t, PatternCall)}
    floats = any(isinstance(g, Apply) and g.function == "floating" for g in rule.guards)
    if not floats and not any(OPS[op].floats_only for op in left):
        yield from ((name, _Ints(name)) for name in INTS)


def _casts(rule: Rule, calls: Sequence[PatternCall]) -> Iterator[tuple[Any, ...]]:
    """Yields (format name, encoding) for a rule that consists of casts alone.

    The formats that its only operand may have.

    Raises OutOfScope if a cast's dtype is neither a named float format nor the operand's own, or if the rule has other
    ops.
    """
    names = {v for t in rule.lefts for v in variables(t)}
    equal = [g.args for g in rule.guards if isinstance(g, Apply) and g.function == "eq"]
    own = {a for pair in equal for a, b in (pair, pair[::-1]) if isinstance(b, Apply) and b.function == "dtype"}
    targets = {dict(t.attrs)["dtype"] for t in calls if t.op == "cast"}
    named = {a.value for a in own if isinstance(a, AttrConstant)}
    if len(names) != 1 or any(t.op != "cast" for t in calls) or len(named) > 1 or len(equal) != len(rule.guards):
        raise OutOfScope("casts together with other ops or guards")
    if not all(
        (isinstance(t, Name) and t in own) or (isinstance(t, AttrConstant) and t.value in FLOATS) for t in targets
    ):
        raise OutOfScope("a cast to an unknown dtype")
    if not named <= FLOATS.keys() or (not named and any(isinstance(t, AttrConstant) for t in targets)):
        raise OutOfScope("a cast of an unknown dtype")
    yield from ((n, _Floats(n, TIES[0], rule.exact)) for n in FLOATS if n in named or not named)
    if not named:
        yield from ((n, _Ints(n)) for n in INTS)


def _ties(calls: Sequence[PatternCall]) -> Sequence[str]:
    """The tie rules for 0.0 and -0.0 to check: all of `TIES` if the rule contains a maximum or minimum, else one."""
    return TIES if any(OPS[t.op].composite or t.op in ("maximum", "minimum") for t in calls) else TIES[:1]


__all__ = ["prove_bits"]
