"""Proves rewrite rules by SMT: for all sizes, offsets and values at once, one pattern of ranks at a time.

For given ranks, axes and permutations, every size, offset, stride and index is an integer unknown of z3, and an element
of a value is a term over elements of the variables: layout ops select the element, elementwise ops are functions. A
rule is proved at these ranks if no sizes, attributes and index satisfy the types of the left side and the guards while
the right side is ill typed, has another type, or has another element there. Functions are uninterpreted first (which
proves bitwise equality in any dtype). If that does not suffice and the rule does not claim `exact`, + - * / maximum
minimum and comparisons are those of the reals, and a division by zero must happen on both sides or on neither.

Why a few ranks suffice: every op supported here acts elementwise along an axis that no attribute names, so a result for
one such axis holds for any number of them. The relative positions of the named axes form finitely many patterns, and
all of them occur at a rank one above the number of names. A reshape is an uninterpreted map of indices that depends on
the two shapes, whatever their ranks. Rules about permutations compare words of a few permutations, and no word of one
to six letters in two permutations and their inverses is trivial on all permutations of four axes.

Matrix products and sums over axes are sums of terms over indices (`Total`). Products distribute over sums, a
conditional of two sums is a sum of conditionals, and a sum over the rows of a concat splits into one sum per part. Two
sums are equal if their terms agree range by range; z3 is queried at an arbitrary index. Convolutions and means over
windows are sums whose terms are zero outside of the image; spatial axes are treated alike, so one and two of them stand
for any number. A sum whose terms vanish at all indices but one equals that term. Maxima and minima (`Extreme`) are
those of sets: two are equal if each contains the other's terms; summands, nonnegative factors and increasing functions
move inside. Where an op that is neither linear nor increasing reads a sum or a maximum, it reads a name (an
uninterpreted function of the free indices) instead; sums that are equal everywhere share a name.
semantics/function_facts.py holds the axioms about elementwise functions over the reals; norms, softmax, attention and
other composite ops over axes are their decompositions (smt/decompositions.py). Gathers are not supported, nor are sums
whose terms are not finite everywhere.

Modules: smt/unknowns.py (unknowns and attributes), smt/equal_sums.py (equality of sums and maxima),
smt/sum_arithmetic.py (their arithmetic), smt/elementwise.py, smt/layout.py and smt/contractions.py (semantics of ops);
this module has terms and the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from ...egraph.ops.ops import OPS, Op, Type
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var, subterms
from ...egraph.patterns.pattern_attrs import Apply, AttrConstant
from ...egraph.patterns.rule import Rule
from ..semantics.function_facts import is_whole
from ..semantics.instance import Instance
from ..semantics.solver import OutOfScope
from ..semantics.structures import CONTRACTIONS, CREATED, bound, folds, is_contraction, is_layout, is_view, structures
from ..semantics.sums import Extreme, Total
from .contractions import Contractions
from .decompositions import VECTORS, names_of, pattern_of, size_name
from .equal_sums import QUESTIONS
from .unknowns import IllTyped, SizeFacts, Sym

SECONDS = 120.0  # per rule


class _World(Contractions):
    """A rule at given ranks, axes and permutations: builds symbolic terms and decides whether the rule holds."""

    def term(self, term: Term, facts: SizeFacts, like: Sym | None = None) -> Sym:
        """The symbolic value of a term; its type conditions are added to the facts.

        Raises OutOfScope for an unsupported op.
        """
        if isinstance(term, Var):
            found = self.env[term.name]
            assert isinstance(found, Sym)
            return found
        if isinstance(term, Literal):
            tensor = self.env[term.like] if term.like else like
            rank = len(tensor.shape) if tensor is not None else 0
            if tensor is None or tensor.boolean:
                raise OutOfScope("a number without a dtype")
            value = self.number(term.value, tensor.dtype)
            return Sym((1,) * rank, tensor.dtype, lambda i: value)
        built = [None if isinstance(a, Literal) and not a.like else self.term(a, facts) for a in term.args]
        sibling = next((b for b in reversed(built) if b is not None), None)
        args = [b if b is not None else self.term(a, facts, sibling) for a, b in zip(term.args, built)]
        attrs = {n: self.value(a) for n, a in term.attrs}
        entry = OPS[term.op]
        if folds(term.op):
            return self.reduced(entry.monoid, args, attrs, facts)
        if is_view(term.op):
            return self.view(entry, args, attrs, facts)
        if term.op in CREATED or term.op in CONTRACTIONS:
            law: Callable[..., Sym] = getattr(self, f"_{term.op}")
            return law(args, attrs, facts)
        if entry.pointwise or (entry.composite and entry.law == "pointwise"):
            return self.pointwise(entry, args, attrs, facts)
        if entry.composite:
            return self.over_axes(entry, args, attrs, facts)
        raise OutOfScope(f"{term.op} is no layout or elementwise op")

    def over_axes(self, entry: Op, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        """The symbolic value of a composite op over axes, from its decomposition in the op table; conditions are
        added to `facts`.

        Raises OutOfScope if unsupported, IllTyped if ill typed.
        """
        if not self.real:
            raise OutOfScope(f"{entry.name} of uninterpreted elements")
        every = {**entry.defaults, **attrs}
        pattern = pattern_of(entry, [len(a.shape) for a in args], every)
        sizes = {size_name(axis): size for axis, size in enumerate(args[0].shape)}
        outer, self.env = self.env, {**dict(zip(names_of(entry), args)), **every, **sizes}
        try:
            found = self.term(pattern, facts)
        finally:
            self.env = outer
        if entry.law in VECTORS:
            facts.conditions += [a.shape[0] == args[0].shape[VECTORS[entry.law]] for a in args[1:]]
        if entry.law == "rope":
            facts.conditions += [found.shape[-1] % 2 == 0, *(n == m for n, m in zip(found.shape, args[0].shape))]
        return found

    wrong: dict[str, Any] | None = None  # sizes and attributes at which z3 finds that the sides differ

    def holds(self, types_only: bool = False) -> bool | None:
        """Whether the rule holds here (or only its types, with `types_only`); None if the rule never matches here."""
        z = self.z
        lefts = [self.term(t, self.facts) for t in self.rule.lefts]
        guards = []
        for g in self.rule.guards:
            value = self.value(g)
            if value is False:
                return None
            if value is not True:
                if not z.is_bool(value):
                    raise OutOfScope("a condition that is no boolean")
                guards.append(value)
        shown = SizeFacts()
        try:
            rights = [self.term(t, shown) for t in self.rule.rights]
        except IllTyped:
            rights = []
        index = [[z.Int(f"i{n}.{d}") for d in range(len(s.shape))] for n, s in enumerate(lefts)]
        inside = [z.And(k >= 0, k < d) for i, s in zip(index, lefts) for k, d in zip(i, s.shape)]
        self.given = [*guards, *inside]
        left_values = [] if types_only else [s.at(i) for s, i in zip(lefts, index)]
        if len(rights) != len(lefts) or any(
            len(a.shape) != len(b.shape) or a.boolean != b.boolean for a, b in zip(lefts, rights)
        ):
            return None if self.impossible([*self.facts.conditions, *guards]) else False
        types = [a == b for x, y in zip(lefts, rights) for a, b in zip(x.shape, y.shape)]
        types += [x.dtype == y.dtype for x, y in zip(lefts, rights)]
        owed = [*types, *shown.conditions]
        assumed = [*self.facts.conditions, *guards]
        if self.impossible(assumed):
            return None
        if not self.impossible([*assumed, z.Not(z.And(*owed))]):
            self.wrong = self.example([*assumed, z.Not(z.And(*owed))])
            return False
        if types_only:
            return True
        # facts added while an element is built (such as an order of two operands) are assumptions, not obligations;
        # they may use the types
        elements = SizeFacts(conditions=list(owed))
        shown.conditions = elements.conditions
        right_values = [s.at(i) for s, i in zip(rights, index)]
        sides = list(zip(left_values, right_values))
        many = [(a, b) for a, b in sides if isinstance(a, Total | Extreme) or isinstance(b, Total | Extreme)]
        same = [a == b for a, b in sides if not any(isinstance(v, Total | Extreme) for v in (a, b))]
        assumed = [*self.facts.conditions, *guards, *elements.conditions]
        nowhere = z.Or(*self.facts.undefined, False), z.Or(*shown.undefined, False)
        given = [*assumed, *inside, z.Not(nowhere[0])]
        for a, b in many:
            if not self.equal_many(given, *self.alike(a, b)):
                same.append(self.name(a, elements) == self.name(b, elements))
        assumed = [*assumed, *elements.conditions, *(f for f in self.facts.conditions if f is not True)]
        wrong = z.Or(nowhere[0] != nowhere[1], z.And(z.Not(nowhere[0]), z.Not(z.And(*same, True))))
        if self.impossible([*assumed, *inside, wrong]):
            return True
        self.wrong = self.example([*assumed, *inside, wrong])
        return False


def _is_decomposed(entry: Op) -> bool:
    """Whether proofs know an op by its decomposition into ops over axes."""
    return entry.composite and not (entry.pointwise or is_contraction(entry.name))


def prove(rule: Rule, suspects: list[Instance] | None = None) -> tuple[bool, str]:
    """Attempt to prove a one-way rule with z3 at every pattern of ranks; returns (proved, text of the proved claim or
    the reason why there is no proof).

    Where z3 finds sizes and attributes at which the sides differ, they are appended to `suspects`: either evaluation
    refutes the rule there, or the encoding was too weak.
    """
    suspects = [] if suspects is None else suspects
    calls = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, PatternCall)}
    try:
        summed = any(is_contraction(op) or _is_decomposed(OPS[op]) for op in calls)
        if rule.exact and summed:
            return False, "sums are looked at over the reals"
        done, conditions = (False, "") if summed else _prove(rule, real=False, suspects=suspects)
    except OutOfScope as beyond:
        done, conditions = False, str(beyond)
    if done or rule.exact:
        return done, conditions
    if not _reals_only(rule):
        return False, "it holds over the reals at best, but integers match it"
    try:
        return _prove(rule, real=True, suspects=suspects)
    except OutOfScope as beyond:
        return False, str(beyond)


def typed(rule: Rule, suspects: list[Instance] | None = None, questions: int = QUESTIONS) -> int:
    """Number of patterns of ranks and axes at which z3 proves equal types of both sides wherever the rule matches.

    0 if the proof fails at one pattern, which is appended to `suspects` (see `prove`). Raises OutOfScope if there are
    more than `questions` patterns.
    """
    matched = asked = 0
    for tried, (ranks, fixed) in enumerate(structures(rule, False)):
        if tried == QUESTIONS or asked == questions:
            raise OutOfScope("too many ranks, axes and permutations")
        try:
            world = _World(rule, ranks, fixed, False)
            found = world.holds(types_only=True)
        except IllTyped:
            continue
        asked += 1
        if found is False:
            if suspects is not None and world.wrong is not None:
                suspects.append(_instance(rule, ranks, world))
            return 0
        matched += found is True
    return matched


def _reals_only(rule: Rule) -> bool:
    """Whether a proof over the reals covers every dtype that the rule can match.

    True for ring arithmetic with integer constants, whose laws wrap-around integers satisfy too, and if the operands
    must be floats.
    """
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    calls = [t for t in terms if isinstance(t, PatternCall)]
    numbers = [t.value for t in terms if isinstance(t, Literal)]
    numbers += [a.value for t in calls for n, a in t.attrs if n == "value" and isinstance(a, AttrConstant)]
    powers = [t.args[1] for t in calls if t.op == "pow"]
    ring = is_whole(numbers) and all(
        OPS[t.op].algebra == "ring" or is_layout(t.op) or t.op in ("pow", "cast", "eq") for t in calls
    )
    ring = ring and all(isinstance(p, Literal) and p.value >= 0 for p in powers) and _counting(calls)
    order = not numbers and all(OPS[t.op].algebra == "order" or is_layout(t.op) for t in calls)
    left = [t for side in rule.lefts for t in subterms(side)]
    floats = any(isinstance(t, PatternCall) and OPS[t.op].floats_only for t in left)
    floats = floats or any(isinstance(t, Literal) and not is_whole([t.value]) for t in left)  # a fraction
    return ring or order or floats or any(isinstance(g, Apply) and g.function == "floating" for g in rule.guards)


def _counting(calls: Sequence[PatternCall]) -> bool:
    """Whether all comparisons are between indices, and only their results are cast (to zeros and ones)."""
    cast = [t for t in calls if t.op == "cast"]
    compared = [t for t in calls if t.op == "eq"]
    return all(isinstance(a, PatternCall) and a.op == "iota" for t in compared for a in t.args) and all(
        isinstance(t.args[0], PatternCall) and t.args[0].op == "eq" for t in cast
    )


def _instance(rule: Rule, ranks: Mapping[str, int], world: _World) -> Instance:
    """The instance at which z3 finds that the sides differ; float32 where the rule leaves dtypes open."""
    values = world.wrong or {}
    dtypes = {n: "bool" if n in world.booleans else "float32" for n in ranks}
    attrs = {n: v for n, v in values.items() if n not in ranks}
    attrs |= {n: "float32" for n, (op, a) in bound(rule).items() if OPS[op].attrs[a] == "dtype"}
    return Instance({n: Type(values[n], dtypes[n]) for n in ranks}, attrs, frozenset())


def _prove(rule: Rule, real: bool, suspects: list[Instance]) -> tuple[bool, str]:
    matched = asked = 0
    until = perf_counter() + SECONDS
    for ranks, fixed in structures(rule, real):
        asked += 1
        if asked > QUESTIONS:
            return False, "too many ranks, axes and permutations"
        try:
            world = _World(rule, ranks, fixed, real, until)
            found = world.holds()
        except IllTyped:
            continue
        if found is False:
            if world.wrong is not None:
                suspects.append(_instance(rule, ranks, world))
            return False, f"z3 does not show it at ranks {ranks}"
        matched += found is True
    functions = "over the reals" if real else "for any elementwise functions"
    return matched > 0, f"z3: all sizes, offsets and elements {functions}, {matched} patterns of ranks and axes"
