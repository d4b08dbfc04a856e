"""Counts independent rules: which rules follow from the others.

A rule is derivable if, on each of a few instances, saturating the left side alone with the remaining rules yields an
e-class that contains the right side within the limits (for two-way rules: in both directions). Rules are tried in turn,
and a derivable rule is removed before the next is tried, so every removed rule follows from the kept ones. The limits
are small: a rule counted as independent may still follow by a longer proof, but a rule counted as derivable always
follows.

    python -m tensor_graphs.rules.derive.independent          prints the table, in a few minutes
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import LEAVES, Tensor, attrs_key, topological
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.saturate import Limits, saturate_block
from ...egraph.saturate.sessions import InProcess
from ...egraph.view.view import EGraphView
from ...errors import ShapeError
from ..semantics.instance import FAILURES, Instance
from ..semantics.sample import instances

LIMITS = Limits(nodes=1500, iterations=5, seconds=5.0)


def holds(view: EGraphView, term: Tensor) -> int | None:
    """Id of the e-class in a view that contains a term; None if the view does not contain the term."""
    nodes = {}
    for i in range(len(view)):
        leaf = view.tensors.get(i)
        children = tuple(view.children(i).tolist())
        nodes[("leaf", id(leaf)) if leaf is not None else (view.op[i], children, attrs_key(view.attrs[i]))] = int(
            view.cls[i]
        )
    found: dict[int, int] = {}
    for node in topological([term]):
        children = tuple(found[id(a)] for a in node.args)
        key = ("leaf", id(node)) if node.op in LEAVES else (node.op, children, attrs_key(node.attrs))
        if key not in nodes:
            return None
        found[id(node)] = nodes[key]
    return found[id(term)]


def chosen(rule: Rule, *, seed: int = 0, among: int = 24, count: int = 5) -> list[Instance]:
    """Instances of a one-way rule at which to derive it: up to `count` of `among` random ones.

    The first has the fewest axes of size 1 and usual dtypes. Several, because a single instance may be a special case
    (a slice of a whole axis, a factor of 1) that follows from rules for that case only.
    """

    def narrow(x: Instance) -> int:
        return sum(d == 1 for t in x.types.values() for d in t.shape) + 9 * any(
            t.dtype not in ("float32", "bool") for t in x.types.values()
        )

    found = list(instances(rule, random.Random(seed), among, accept=lambda x: _full(rule, x)))
    return sorted(found[:among], key=narrow)[:1] + found[: count - 1]


def _full(rule: Rule, found: Instance) -> bool:
    """Whether both sides are well typed and no value in them is empty (lowering folds empty values to constants)."""
    try:
        sides = [side for pair in found.sides(rule) for side in pair]
    except (ShapeError, *FAILURES):
        return False
    return all(0 not in node.shape for node in topological(sides))


def derives(rules: Sequence[Rule], rule: Rule, *, limits: Limits = LIMITS, seed: int = 0) -> bool:
    """Whether the rules rewrite the left sides of a one-way rule into its right sides, on all instances of `chosen`."""
    found = chosen(rule, seed=seed)
    return bool(found) and all(_proves(rules, rule, x, limits) for x in found)


def _proves(rules: Sequence[Rule], rule: Rule, found: Instance, limits: Limits) -> bool:
    pairs = found.sides(rule)
    lefts = list(dict.fromkeys(left for left, _ in pairs))
    graph = Graph.of(lefts if len(lefts) > 1 else lefts[0])
    view = saturate_block(graph, rules, limits, guard=False, session=InProcess())
    at = dict(zip(lefts, view.roots, strict=True))
    return all(holds(view, right) == at[left] for left, right in pairs)


@dataclass(frozen=True)
class IndependentRules:
    """The result of `independent`: the kept rules, and the rules that follow from them."""

    kept: tuple[Rule, ...]
    derived: tuple[Rule, ...]

    def table(self) -> str:
        """Markdown table of rules per family: all, one-way, shortcuts, derivable and kept rules.

        Shortcuts are rules that others derive, kept because they save saturation rounds (`Rule.shortcut`).
        """
        every = (*self.kept, *self.derived)
        families = list(dict.fromkeys(r.family for r in sorted(every, key=lambda r: (r.phase, r.family))))
        rows = [(f, [r for r in every if r.family == f], [r for r in self.derived if r.family == f]) for f in families]
        lines = ["| family | rules | one-way | shortcuts | derivable | independent |", "|---|---|---|---|---|---|"]
        for family, all_, derived in [*rows, ("**all**", list(every), list(self.derived))]:
            one_way = sum(len(r.directions) for r in all_)
            shortcuts = sum(r.shortcut for r in all_)
            lines.append(
                f"| {family} | {len(all_)} | {one_way} | {shortcuts} | {len(derived)} | {len(all_) - len(derived)} |"
            )
        return "\n".join(lines) + "\n"


def steps(rules: Sequence[Rule], *, limits: Limits = LIMITS) -> Iterator[tuple[Rule, bool]]:
    """Decide rule by rule whether the rules still kept derive it; yields (rule, whether they do).

    Rules marked `shortcut` come first, then rules from the last table to the first.
    """
    kept = list(rules)
    late = rules[::-1]
    for rule in (*(r for r in late if r.shortcut), *(r for r in late if not r.shortcut)):
        rest = [r for r in kept if r is not rule]
        derived = all(derives(rest, one, limits=limits) for one in rule.directions)
        if derived:
            kept = rest
        yield rule, derived


def independent(rules: Sequence[Rule], *, limits: Limits = LIMITS) -> IndependentRules:
    """The rules, split into a kept set and the rules that the kept set derives."""
    derived = {rule.name for rule, found in steps(rules, limits=limits) if found}
    return IndependentRules(
        tuple(r for r in rules if r.name not in derived), tuple(r for r in rules if r.name in derived)
    )


if __name__ == "__main__":
    from .. import ALL

    result = independent(ALL)
    print(result.table())
    print("derivable:", ", ".join(r.name for r in result.derived))
