"""Lists the ranks, axes and permutations at which SMT proofs check a rule; smt/prove.py says why these cover all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import Literal, PatternCall, Var, subterms, variables
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name, attr_names
from ...egraph.patterns.rule import Rule
from .solver import OutOfScope, z3

CREATED = ("full", "iota", "gather")  # layout ops without an index map
#: Shape laws of ops with an index map that smt/layout.py knows.
VIEW_LAWS = ("permute", "slice", "along", "concat", "pad", "broadcast_to", "reshape")
CONTRACTIONS = ("matmul", "linear", "mean", "conv", "avg_pool", "max_pool")  # besides reductions
FOLDS = ("add", "maximum", "minimum")  # binary ops whose reductions proofs know
RANKS = 4
WINDOWED = {
    "strides": 1,
    "dilations": 1,
    "kernel": 1,
    "pads": 2,
}  # entries per spatial axis of each attribute
SPATIAL = (1, 2)  # numbers of spatial axes to check: spatial axes are treated alike


def is_view(op: str) -> bool:
    """Whether SMT proofs know both an op's index map (which operand element each result element is) and its result
    shape."""
    return OPS[op].index_map is not None and OPS[op].law in VIEW_LAWS


def is_layout(op: str) -> bool:
    """Whether SMT proofs know an op as one that moves elements (a view), or creates them without arithmetic (a fill, an
    iota)."""
    return op in CREATED or is_view(op)


def folds(op: str) -> bool:
    """Whether an op is a reduction whose combining operation (sum, maximum, …) SMT proofs can express."""
    return OPS[op].law == "reduce" and OPS[op].monoid in FOLDS


def is_contraction(op: str) -> bool:
    """Whether SMT proofs express an op as a sum or maximum over indices."""
    return op in CONTRACTIONS or folds(op)


def _is_bitwise(op: str) -> bool:
    """Whether an op of two operands works bit by bit."""
    return OPS[op].logic is not None and OPS[op].arity == 2


def booleans(rule: Rule) -> set[str]:
    """Variables of a rule that must be booleans: conditions of `where`, and those with a dtype guard.

    `and`, `or`, `not` also take integers.
    """
    found = set()
    for side in (*rule.lefts, *rule.rights):
        for t in subterms(side):
            if isinstance(t, PatternCall) and t.op == "where" and isinstance(t.args[0], Var):
                found.add(t.args[0].name)
    for g in rule.guards:
        if isinstance(g, Apply) and g.function == "eq" and g.args[1] == AttrConstant("bool"):
            found |= set(attr_names(g.args[0]))
    return found


def bits(rule: Rule) -> set[str]:
    """The tensor variables of a rule that consists of bitwise ops (`and`, `or`, `xor`) and views alone; empty for other
    rules.

    Such a rule holds for integers if it holds for each bit, so that a proof over booleans suffices.
    """
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    calls = [t.op for t in terms if isinstance(t, PatternCall)]
    if not any(map(_is_bitwise, calls)) or any(
        not _is_bitwise(op) and (OPS[op].law == "pad" or not is_view(op)) for op in calls
    ):
        return set()
    return set() if any(isinstance(t, Literal) for t in terms) else {t.name for t in terms if isinstance(t, Var)}


def bound(rule: Rule) -> dict[str, tuple[str, str]]:
    """Attribute variables that the left sides bind, each with its (op, attribute)."""
    found: dict[str, tuple[str, str]] = {}
    for side in rule.lefts:
        for t in subterms(side):
            if isinstance(t, PatternCall):
                for name, attr in t.attrs:
                    if isinstance(attr, Name):
                        found.setdefault(attr.name, (t.op, name))
    return found


#: Functions of whole shapes or permutations: behaviour at one rank does not carry over to the next, so all ranks are
#: checked.
WHOLE = ("swap_last", "identity", "ones", "drop", "insert", "replace", "compose", "inverse", "permuted", "contains", "index",
         "at", "len")  # fmt: skip


def _parts(attr: Attr) -> Iterator[Attr]:
    """An attribute expression and all its subexpressions."""
    yield attr
    for a in attr.args if isinstance(attr, Apply) else ():
        yield from _parts(a)


def _named(rule: Rule) -> int:
    """The largest rank to check, derived from the number of axes that attributes and guards name.

    Raises OutOfScope if above `RANKS`.
    """
    given = [
        (n, a)
        for side in (*rule.lefts, *rule.rights)
        for t in subterms(side)
        if isinstance(t, PatternCall)
        for n, a in t.attrs
    ]
    axes = {a for n, a in given if n == "axis"}
    asked = [p for a in (*(a for _, a in given), *rule.guards) for p in _parts(a) if isinstance(p, Apply)]
    axes |= {p.args[1] for p in asked if p.function == "size"}
    guarded = {g.args[0]: _from_end(g.args[1]) for g in rule.guards if isinstance(g, Apply) and g.function == "eq"}
    axes = {guarded[a] if isinstance(guarded.get(a), AttrConstant) else _from_end(a) for a in axes}
    constants = [abs(a.value) for a in axes if isinstance(a, AttrConstant)]
    needed = max(len(axes) + 1, *(c + 2 for c in constants), 2)
    if needed > RANKS and not _ranked(rule):
        raise OutOfScope("an axis is named beyond the largest rank tried")
    calls = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, PatternCall)}
    reshaped = any(n == "shape" for n, _ in given) or any(map(is_contraction, calls))
    return RANKS if reshaped or any(p.function in WHOLE for p in asked) else min(needed, RANKS)


def _ranked(rule: Rule) -> bool:
    """Whether the ops and guards fix the rank of every variable."""
    given = {
        g.args[0].args[0].name
        for g in rule.guards
        if isinstance(g, Apply) and g.function == "eq" and isinstance(g.args[1], AttrConstant)
        and isinstance(g.args[0], Apply) and g.args[0].function == "rank" and isinstance(g.args[0].args[0], Name)
    }  # fmt: skip
    return {v for t in rule.lefts for v in variables(t)} <= {*given, *_images(rule), *_weights(rule)}


def _from_end(attr: Attr) -> Attr:
    """An axis given relative to the rank, as a negative number; other expressions unchanged."""
    if isinstance(attr, Apply) and attr.function == "sub" and isinstance(attr.args[1], AttrConstant):
        if isinstance(attr.args[0], Apply) and attr.args[0].function == "rank":
            return AttrConstant(-attr.args[1].value)
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
    """Variables that are operands of convolutions and pools; contains "" if such an operand is not a variable."""
    calls = [
        t
        for side in rule.lefts
        for t in subterms(side)
        if isinstance(t, PatternCall) and OPS[t.op].law in ("conv", "pool")
    ]
    return {a.name if isinstance(a, Var) else "" for t in calls for a in t.args}


def _weights(rule: Rule) -> dict[str, int]:
    """Ranks of the variables that are weights and biases of linear layers."""
    calls = [t for side in rule.lefts for t in subterms(side) if isinstance(t, PatternCall) and t.op == "linear"]
    return {a.name: rank for t in calls for a, rank in zip(t.args[1:], (2, 1)) if isinstance(a, Var)}


def structures(rule: Rule, real: bool) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """The choices of ranks and axes for each of which a rule is to be proved: yields (rank of each tensor variable,
    value of each attribute variable).

    Axes and permutations get concrete values, all other attribute variables are z3 unknowns: reals with `real`, else
    integers. Raises OutOfScope for rules that SMT proofs do not support.
    """
    module = z3()
    names = list(dict.fromkeys(v for t in rule.lefts for v in variables(t)))
    places = bound(rule)
    unknown: dict[str, Any] = {}
    windowed: dict[str, int] = {}
    options: dict[str, Callable[[Sequence[int]], list[Any]]] = {}
    largest = _named(rule)
    for n, (op, a) in places.items():
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
            raise OutOfScope(f"the attribute {n} is a {kind}")
    images = _images(rule)
    for spatial in SPATIAL if images else (0,):
        numbers = {n: tuple(module.Int(f"attr {n}.{j}") for j in range(spatial * k)) for n, k in windowed.items()}
        known = dict.fromkeys(images, spatial + 2) | _weights(rule)
        each = [(known[n],) if n in known else range(largest + 1) for n in names]
        for ranks in product(*each):
            for chosen in product(*(f(ranks or range(largest + 1)) for f in options.values())):
                yield dict(zip(names, ranks)), dict(zip(options, chosen)) | unknown | numbers
