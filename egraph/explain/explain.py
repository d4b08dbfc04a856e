"""Explains why two terms of one e-class are equal, as a chain of named rule applications.

egglog 13.2 keeps no proofs, so they are reconstructed from the e-graph view (arrays of its e-nodes and e-classes).
Every rule is matched on the view once. Each match becomes an equation between two terms (with one term chosen per
e-class), and so does each composite with its decomposition. Congruence closure (congruence.py) finds the consequences
with proofs. The proof is unfolded into steps; each step rewrites one subterm at all places where the proof needs it, by
one rule in one direction.

If the equations do not connect two subterms (because a term between them was pruned from the e-graph), the step is a
gap: it is listed as such, checked by value only, and the explanation is not `complete`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ..composites.recurrent import parts_of
from ..ir.graph import Graph
from ..ir.tensor import LEAVES, Tensor, topological
from ..patterns.pattern import build
from ..patterns.pattern_attrs import holds
from ..patterns.rule import Rule
from ..saturate.saturate import Limits, saturate_block
from ..saturate.sessions import SaturationSession
from ..view.match import Binding, Matcher
from ..view.view import EGraphView
from .congruence import Congruence, Equation, ShortProofs
from .proof_steps import GAP, MOST_STEPS, TooDeep, position, unfold
from .rule_instance import FAILURES, op_key

MANY_TERMS = 20_000  # from this number of terms on, proofs are shortened once instead of twice
DEFINITION = "definition of "


@dataclass(frozen=True)
class ProofStep:
    """One rule application: `before` becomes `after` within the whole terms `old` and `new`.

    `position` is the operand path from the root to the first occurrence. `forward` is false for a rule applied right to
    left.
    """

    rule: str
    forward: bool
    position: tuple[int, ...]
    before: Tensor
    after: Tensor
    old: Tensor
    new: Tensor

    @property
    def reconstructed(self) -> bool:
        """Whether a rule, a definition or rounding justifies the step; False for a gap (a step whose reason was not
        found)."""
        return self.rule != GAP

    def __str__(self) -> str:
        arrow = self.rule if self.forward else f"{self.rule}, right to left"
        place = "the whole" if not self.position else "operand " + ".".join(map(str, self.position))
        return f"{arrow}: {place}\n    {spelled(self.before)}\n  = {spelled(self.after)}"


@dataclass(frozen=True)
class Explanation:
    """A chain of rule applications (`steps`) that rewrites the term `original` into `chosen`."""

    original: Tensor
    chosen: Tensor
    steps: tuple[ProofStep, ...]

    @property
    def complete(self) -> bool:
        """Whether no step is a gap."""
        return all(s.reconstructed for s in self.steps)

    @property
    def rules(self) -> dict[str, int]:
        """Number of applications of each rule."""
        found: dict[str, int] = {}
        for s in self.steps:
            found[s.rule] = found.get(s.rule, 0) + 1
        return found

    def __str__(self) -> str:
        gaps = sum(not s.reconstructed for s in self.steps)
        head = f"{len(self.steps)} step{'s' * (len(self.steps) != 1)}" + (
            f", {gaps} of them not reconstructed" if gaps else ""
        )
        return "\n".join([head, *(f"{i:>3}. {s}" for i, s in enumerate(self.steps, 1))])

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-compatible data."""
        return {
            "complete": self.complete,
            "steps": [
                {"rule": s.rule, "forward": s.forward, "position": list(s.position), "before": spelled(s.before),
                 "after": spelled(s.after)} for s in self.steps
            ],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{i}</td><td>{escape(s.rule)}{'' if s.forward else ' (right to left)'}</td>"
            f"<td><code>{escape(spelled(s.before))}</code></td><td><code>{escape(spelled(s.after))}</code></td></tr>"
            for i, s in enumerate(self.steps, 1)
        )
        return f"<table><tr><th></th><th>rule</th><th>before</th><th>after</th></tr>{rows}</table>"


def spelled(term: Tensor, depth: int = 6) -> str:
    """Text of a term; subterms below `depth` are shown as their type."""
    if term.op in LEAVES[:3]:
        return str(term.attr("name"))
    if term.op == "constant" or depth == 0:
        return f"<{term.type}>"
    if term.op == "full":
        value = term.attrs[0][1]
        return f"{value:g}" if all(d == 1 for d in term.shape) else f"full({value:g}, {list(term.shape)})"
    shown = [f"{k}={list(v) if isinstance(v, tuple) else v}" for k, v in term.attrs if term.entry.defaults.get(k) != v]
    return f"{term.op}({', '.join([*(spelled(a, depth - 1) for a in term.args), *shown])})"


# ---------------------------------------------------------------- terms of classes
class _Terms:
    """One representative term per e-class of a view: the preferred one if given, otherwise the one with
    fewest e-nodes.
    """

    def __init__(self, view: EGraphView, preferred: Mapping[int, Tensor], cheapest: Sequence[int]) -> None:
        self.view, self.built, self.cheapest = view, dict(preferred), cheapest

    def of(self, cls: int) -> Tensor | None:
        """The term of an e-class; None if it has no finite term."""
        stack = [cls]
        while stack:
            c = stack[-1]
            node = self.cheapest[c]
            if c in self.built:
                stack.pop()
                continue
            if node < 0:
                return None
            children = self.view.children(node).tolist()
            missing = [k for k in children if k not in self.built]
            if missing:
                stack += missing
                continue
            self.built[c] = self.view.node_tensor(node, [self.built[k] for k in children])
        return self.built[cls]


def classes_of(view: EGraphView, roots: Iterable[Tensor]) -> dict[Tensor, int]:
    """E-classes of all subterms of the terms `roots` that the e-graph `view` contains.

    A slice is also found where the e-graph contains it only as a slice of another slice.
    """
    index: dict[tuple[Any, ...], int] = {}
    for i in range(len(view)):
        leaf = view.tensors.get(i)
        own = ("leaf", id(leaf)) if leaf is not None else op_key(view.op[i], view.attrs[i])
        index.setdefault((own, *view.children(i).tolist()), int(view.cls[i]))
    found, slices = dict(view.classes), _Slices(view)
    for node in topological(roots):
        if node not in found and all(a in found for a in node.args):
            own = ("leaf", id(node)) if node.op in LEAVES else op_key(node.op, node.attrs)
            cls = index.get((own, *(found[a] for a in node.args)))
            # kernels with several slice outputs write slices of slices as one slice
            if cls is None and node.op == "slice":
                cls = slices.find(found[node.args[0]], node)
            if cls is not None:
                found[node] = cls
    return found


class _Slices:
    """Unit-step slices per e-class, to resolve a slice as a slice of slices along the same axis."""

    def __init__(self, view: EGraphView) -> None:
        self.of: dict[int, list[tuple[int, int, int, int]]] = {}
        for i in (i for i, op in enumerate(view.op) if op == "slice"):
            cut = dict(view.attrs[i])
            if cut["step"] == 1:
                (whole,) = view.children(i).tolist()
                self.of.setdefault(whole, []).append((cut["axis"], cut["start"], cut["stop"], int(view.cls[i])))

    def find(self, whole: int, slice_: Tensor) -> int | None:
        """The e-class of the slice `slice_` of the e-class `whole`, found through slices of slices; None if unknown."""
        wanted = dict(slice_.attrs)
        todo, seen = [(whole, 0)], {whole}
        while todo and wanted["step"] == 1:
            source, offset = todo.pop()
            for axis, start, stop, made in self.of.get(source, ()):
                if axis == wanted["axis"] and made not in seen:
                    if (offset + start, offset + stop) == (wanted["start"], wanted["stop"]):
                        return made
                    seen.add(made)
                    todo.append((made, offset + start))
        return None


# ---------------------------------------------------------------- equations
def matches(matcher: Matcher, rule: Rule) -> list[Binding]:
    """All bindings of the left sides of a one-directional rule on the e-graph of `matcher`; several left sides are
    joined on shared variables."""
    if len(rule.lefts) == 1:
        return [b for _, b in matcher.find(rule.lefts[0], rule.guards)]
    found: list[Binding] = [{}]
    for left in rule.lefts:
        more = [b for _, b in matcher.find(left)]
        shared = sorted(found[0].keys() & more[0].keys()) if found and more else []
        index: dict[tuple[Any, ...], list[Binding]] = {}
        for b in more:
            index.setdefault(tuple(b[k] for k in shared), []).append(b)
        found = [{**a, **b} for a in found for b in index.get(tuple(a[k] for k in shared), ())]
    return [b for b in found if holds(rule.guards, matcher.environment(b))]


def _instances(rule: Rule, bindings: Sequence[Binding], terms: _Terms) -> Iterator[Equation]:
    """The equations that a rule states over the terms of its bindings."""
    name = rule.name
    for binding in bindings:
        tensors = {k: terms.of(v) for k, v in binding.items() if k[0] != "@"}
        if any(t is None for t in tensors.values()):
            continue
        known = {k: t for k, t in tensors.items() if t is not None}
        attrs = {k[1:]: v for k, v in binding.items() if k[0] == "@"}
        for left, right in zip(rule.lefts, rule.rights):
            try:
                yield Equation(name, build(left, known, attrs), build(right, known, attrs))
            except FAILURES:  # the right side is invalid at these sizes
                continue


def _definitions(roots: Iterable[Tensor]) -> Iterator[Equation]:
    """composite == decomposition, for all composites below the roots and in their decompositions."""
    waiting, done = list(topological(roots)), set[Tensor]()
    while waiting:
        node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        if (parts := parts_of(node)) is not None:
            yield Equation(DEFINITION + node.op, node, parts)
            waiting += topological([parts])


def explain(
    view: EGraphView,
    rules: Iterable[Rule],
    original: Sequence[Tensor],
    chosen: Sequence[Tensor],
) -> list[Explanation]:
    """Explanation of each pair (original, chosen) of terms in one e-class: a chain of rule applications.

    Equations are added in three batches (over subterms of the originals, of the chosen terms, and over smallest terms)
    until all pairs are connected; remaining unconnected parts become gaps. Raises UsageError if the lists differ in
    length or types.
    """
    if [t.type for t in original] != [t.type for t in chosen]:
        raise UsageError("the terms to be connected have different types")
    pairs, directions = list(zip(original, chosen)), [d for r in rules for d in r.directions]
    closure = Congruence()
    for term in (*original, *chosen):
        closure.add(term)
    if not all(closure.equal(*p) for p in pairs):
        for equation in _definitions([*original, *chosen]):
            closure.equate(equation)
        _connect(closure, view, directions, original, chosen)
    by_name = {r.name: r for r in directions}
    proofs = ShortProofs(closure, rounds=2 if closure.terms < MANY_TERMS else 1)
    return [Explanation(a, b, tuple(_steps(proofs, by_name, a, b))) for a, b in pairs]


def _connect(
    closure: Congruence, view: EGraphView, rules: Sequence[Rule], original: Sequence[Tensor], chosen: Sequence[Tensor]
) -> None:
    """Add the instances of the rules, one choice of representative terms at a time, until all pairs are equal."""
    matcher = Matcher(view)
    present = set(view.op)
    bound = [
        (rule, matches(matcher, rule)) for rule in rules if all(getattr(t, "op", "") in present for t in rule.lefts)
    ]
    cheapest = view.cheapest([1.0] * len(view))[1]
    stated: set[tuple[int, int]] = set()
    for family in (original, chosen, ()):
        known = classes_of(view, family)
        preferred: dict[int, Tensor] = {}
        for node in topological(family):
            if node in known:
                preferred.setdefault(known[node], node)
        terms = _Terms(view, preferred, cheapest)
        for rule, bindings in bound:
            for equation in _instances(rule, bindings, terms):
                pair = (id(equation.left), id(equation.right))
                if equation.left is not equation.right and pair not in stated:
                    stated.add(pair)  # the closure keeps the terms alive, so their ids stay valid
                    closure.equate(equation)
        if all(closure.equal(a, b) for a, b in zip(original, chosen)):
            return


def _steps(proofs: ShortProofs, rules: Mapping[str, Rule], a: Tensor, b: Tensor) -> Iterator[ProofStep]:
    try:
        chain = unfold(proofs, rules, a, b)
    except TooDeep:
        raise UsageError(f"the explanation has more than {MOST_STEPS} steps") from None
    for (name, forward, before, after), old, new in zip(chain.reasons, chain.terms, chain.terms[1:]):
        yield ProofStep(name, forward, position(old, new, before), before, after, old, new)


# ---------------------------------------------------------------- deriving
def derive(
    start: Tensor,
    goal: Tensor,
    rules: Sequence[Rule],
    limits: Limits | None = None,
    *,
    session: SaturationSession | None = None,
) -> Explanation | None:
    """Find steps from the term `start` to `goal` by saturating both in one e-graph without pruning.

    None if the rules do not connect them within the limits. Raises UsageError if the types differ.
    """
    if start.type != goal.type:
        raise UsageError(f"{start.type} and {goal.type} cannot be equal")
    view = saturate_block(Graph.of([start, goal]), rules, limits, guard=False, session=session)
    if view.roots[0] != view.roots[1]:
        return None
    return explain(view, rules, [start], [goal])[0]


__all__ = ["Explanation", "ProofStep", "classes_of", "derive", "explain", "matches", "spelled"]
