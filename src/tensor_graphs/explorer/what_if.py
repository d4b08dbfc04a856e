"""Answers what-if questions about a choice of kernels: extraction again with some kernels forbidden, forced or
repriced.

Nothing is rewritten, matched or measured again: only the extraction problem is changed and solved, in milliseconds to
seconds. Questions name kernels, e-nodes, e-classes and rules by text (*selectors*):

    k17            candidate kernel 17
    n45            e-node 45
    c12            e-class 12
    c12@1,64       e-class 12 stored with strides 1, 64
    rule:NAME      a rewrite rule in both directions, or a pattern of names such as rule:distribute*
    np.matmul      all kernels of this name, or a pattern of names such as c.*
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from html import escape
from re import compile as compiled
from typing import TYPE_CHECKING, Any

from ..egraph.patterns.rule import REVERSED
from ..errors import NoPlanError, Unpicklable, UsageError
from ..extract.model.pricing import Priced
from ..extract.search.encoding import EncodedHypergraph
from ..extract.search.search import Choice
from ..plain import as_float
from .derivations import without_rules
from .forced import forced
from .names import value_name

if TYPE_CHECKING:
    from .explorer import Explorer

SOLVE_SECONDS = 5.0
_NUMBERED = compiled(r"([knc])(\d{1,18})(?:@(-?\d{1,18}(?:,-?\d{1,18})*)?)?\Z")
RULE = "rule:"


@dataclass(frozen=True)
class KernelChange:
    """A kernel of which a changed plan has more or fewer calls.

    `us`: µs of one call; `source`: origin of that price. `name`: of the kernel; `made`: the values that it computes.
    """

    kernel: str  # selector, "k17"
    name: str
    made: str
    us: float
    source: str


@dataclass(frozen=True)
class WhatIf(Unpicklable):
    """Answer to a what-if question: the plan before and after.

    `forbid`, `pin`, `cost`: the question, kernels forbidden, forced, and with another cost in µs, by selector.
    `before_us`, `after_us`: estimated times in µs. `error_before`, `error_after`: sums of the kernels' measured
    relative errors; None if some kernel of the plan has no recorded error. `removed`, `added`: the kernels that differ;
    views are left out. `unused`: forced kernels whose results no output needs in any plan that was found. `choice`: the
    plan after. `seconds`: time of the answer.
    """

    forbid: tuple[str, ...]
    pin: tuple[str, ...]
    cost: Mapping[str, float]
    before_us: float
    after_us: float
    removed: tuple[KernelChange, ...]
    added: tuple[KernelChange, ...]
    choice: Choice = field(repr=False)
    error_before: float | None = None
    error_after: float | None = None
    unused: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def difference_us(self) -> float:
        """Time after minus time before, in µs: positive if the plan became slower."""
        return self.after_us - self.before_us

    @property
    def optimal(self) -> bool:
        """Whether the plan after is proven optimal under the question's conditions."""
        return self.choice.extraction.optimal and not self.unused

    @property
    def question(self) -> str:
        """The conditions of the question as text: "without rule:a, if k3 cost 2 µs" or "no change"."""
        parts = [f"without {', '.join(self.forbid)}"] if self.forbid else []
        parts += [f"with {', '.join(self.pin)}"] if self.pin else []
        parts += [f"if {k} cost {us:g} µs" for k, us in self.cost.items()]
        return ", ".join(parts) or "no change"

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON values, without the plan."""
        return {
            "question": self.question, "before_us": self.before_us, "after_us": self.after_us,
            "difference_us": self.difference_us, "optimal": self.optimal, "lower_bound_us": self.choice.extraction.lower_bound,
            "error_before": self.error_before, "error_after": self.error_after, "unused": list(self.unused),
            "removed": [vars(k) for k in self.removed], "added": [vars(k) for k in self.added], "seconds": self.seconds,
        }  # fmt: skip

    def __str__(self) -> str:
        proof = "optimal" if self.optimal else f"proven bound {self.choice.extraction.lower_bound:.2f} µs"
        lines = [
            f"{self.question}: {self.before_us:.2f} -> {self.after_us:.2f} µs ({self.difference_us:+.2f}, {proof})"
        ]
        if self.error_before is not None and self.error_after is not None:
            lines.append(f"  error, sum over kernels: {self.error_before:.2e} -> {self.error_after:.2e}")
        lines += [f"  - {k.kernel:>6}  {k.us:>9.2f} µs {k.source:<9}  {k.name} -> {k.made}" for k in self.removed]
        lines += [f"  + {k.kernel:>6}  {k.us:>9.2f} µs {k.source:<9}  {k.name} -> {k.made}" for k in self.added]
        lines += [f"  {k}: no output needs its result" for k in self.unused]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{sign}</td><td>{escape(k.kernel)}</td><td>{escape(k.name)}</td><td>{escape(k.made)}</td>"
            f"<td>{k.us:.2f} µs</td><td>{escape(k.source)}</td></tr>"
            for sign, kernels in (("−", self.removed), ("+", self.added))
            for k in kernels
        )
        head = "<tr><th></th><th>kernel</th><th>name</th><th>makes</th><th>time</th><th>price</th></tr>"
        return f"<p>{escape(str(self).splitlines()[0])}</p><table>{head}{rows}</table>"


class Question:
    """The extraction problem of an explorer's e-graph, encoded once and solved again for each what-if question."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.hypergraph = explorer.choice.hypergraph
        self.prices = explorer.choice.prices
        self.names: dict[str, list[int]] = {}
        for i, c in enumerate(self.hypergraph.candidates):
            self.names.setdefault(c.template.name, []).append(i)

    def ask(
        self, forbid: Sequence[str], pin: Sequence[str], cost: Mapping[str, float], *, seconds: float = SOLVE_SECONDS
    ) -> WhatIf:
        """Solve the problem under the given conditions; returns the plan before and after (`Explorer.what_if`)."""
        began = time.perf_counter()
        costs = self._costs(forbid, pin, cost)
        named = [p for p in pin if self._forces(p)]
        choice, unused = self._solved(costs, [int(p[1:]) for p in named], seconds)
        before, after = self.explorer.choice, choice
        old, new = set(before.chosen), set(after.chosen)
        return WhatIf(
            tuple(forbid), tuple(pin), dict(cost), before.cost, after.cost, self._changes(old - new, before.prices),
            self._changes(new - old, after.prices), after, self._error(old), self._error(new),
            tuple(p for p, n in zip(named, unused) if n),
            time.perf_counter() - began,
        )  # fmt: skip

    # ------------------------------------------------------------ selectors
    def _costs(self, forbid: Iterable[str], pin: Iterable[str], cost: Mapping[str, float]) -> list[float]:
        """The time of each candidate under the question's conditions: infinite where it is forbidden."""
        costs = [p.us for p in self.prices]
        for selector, us in cost.items():
            if not as_float(us) >= 0:
                raise UsageError(
                    f"the cost {str(us)[:40]} of {selector} is no time in µs", where="what_if", hint="0 or more"
                )
            for i in self._kernels(selector):
                costs[i] = float(us)
        rules = [s for s in forbid if s.startswith(RULE)]
        dead = {i for s in forbid if not s.startswith(RULE) for i in self._kernels(s)}
        if rules:
            dead |= self._using(without_rules(self.explorer.view, self.explorer.derivations, self._rules(rules)))
        for selector in pin:
            dead |= self._excluded_by(selector)
        for i in dead:
            costs[i] = math.inf
        return costs

    def _kernels(self, selector: str) -> list[int]:
        """The candidates that a selector names."""
        view, candidates = self.explorer.view, self.hypergraph.candidates
        if (found := _NUMBERED.match(selector)) is None:
            return self._named(selector)
        kind, number, strides = found[1], int(found[2]), found[3]
        limit = {"k": len(candidates), "n": len(view), "c": view.n_classes}[kind]
        if number >= limit:
            raise UsageError(f"there is no {selector}", where="what_if", hint=f"{kind}0 to {kind}{limit - 1}")
        if kind == "k":
            return [number]
        if kind == "n":
            return sorted(self._using({number}))
        wanted = None if "@" not in selector else tuple(int(s) for s in strides.split(",")) if strides else ()
        return [i for i, c in enumerate(candidates)
                if any(v.cls == number and wanted in (None, v.strides) for v in c.outputs)]  # fmt: skip

    def _named(self, pattern: str) -> list[int]:
        found = [i for name, ids in self.names.items() if fnmatchcase(name, pattern) for i in ids]
        if not found:
            close = get_close_matches(pattern, self.names, 3)
            raise UsageError(f"no candidate kernel is called {pattern[:80]!r}", where="what_if",
                             hint=f"{'did you mean ' + ', '.join(close) + '? ' if close else ''}k17, n45, c12, rule:NAME")  # fmt: skip
        return found

    def _rules(self, selectors: Sequence[str]) -> frozenset[str]:
        known = {d.rule for d in self.explorer.derivations} | set(self.explorer.view.report.matches)
        found: set[str] = set()
        for selector in selectors:
            pattern = selector.removeprefix(RULE)
            named = {r for r in known if any(fnmatchcase(n, pattern) for n in (r, r.removesuffix(REVERSED)))}
            if not named:
                close = get_close_matches(pattern, known, 3)
                raise UsageError(f"no rule made anything under the name {pattern[:80]!r}", where="what_if",
                                 hint=f"did you mean {', '.join(close)}?" if close else f"rules here: {', '.join(sorted(known)[:12])}" if known
                                 else "no rule was applied to this e-graph: saturate with a larger budget")  # fmt: skip
            found |= named
        return frozenset(found)

    def _using(self, nodes: Collection[int]) -> set[int]:
        """The candidates that compute any of some e-nodes."""
        return {i for i, used in enumerate(self.explorer.covered) if not used.isdisjoint(nodes)}

    @staticmethod
    def _forces(selector: str) -> bool:
        """Whether a pinned selector forces a kernel to run (an e-node or a layout only excludes others)."""
        found = _NUMBERED.match(selector)
        return found is not None and found[1] == "k"

    def _excluded_by(self, pinned: str) -> set[int]:
        """The candidates that a pinned selector excludes: other e-nodes of the same e-class, other layouts, or other
        kernels of the same values.
        """
        found = _NUMBERED.match(pinned)
        if found is None:
            raise UsageError(f"{pinned[:80]!r} cannot be pinned", where="what_if", hint="pin one kernel k17, e-node n45, or layout c12@1,64")  # fmt: skip
        wanted = set(self._kernels(pinned))
        candidates, view = self.hypergraph.candidates, self.explorer.view
        number = int(found[2])
        if found[1] == "k":
            made = set(candidates[number].outputs)
            return {i for i, c in enumerate(candidates) if i not in wanted and not made.isdisjoint(c.outputs)}
        if found[1] == "n":
            others = set(view.nodes_of(int(view.cls[number])).tolist()) - {number}
            return self._using(others)
        if found[3] is None:
            raise UsageError(
                f"{pinned} names no layout", where="what_if", hint="c12@1,64, or pin a kernel or an e-node"
            )
        strides = tuple(int(s) for s in found[3].split(","))
        every = {v for c in candidates for v in (*c.outputs, *(x for _, x in c.inputs)) if v.cls == number}
        other = {v for v in every if v.strides != strides}
        if other == every:
            raise UsageError(f"no kernel stores {pinned}", where="what_if", hint=f"layouts: {sorted(v.strides for v in every)}")  # fmt: skip
        return {i for i, c in enumerate(candidates)
                if not other.isdisjoint((*c.outputs, *(v for _, v in c.inputs)))}  # fmt: skip

    # ------------------------------------------------------------ solving
    def _solved(self, costs: list[float], needed: Sequence[int], seconds: float) -> tuple[Choice, list[bool]]:
        """(the choice at these costs in which the forced candidates run, whether each is unused)."""
        rows = EncodedHypergraph(self.hypergraph, costs, self.explorer.choice.budgets)
        where = {i: row for row, i in enumerate(rows.candidate) if i >= 0}
        for i in needed:
            if i not in where:
                raise NoPlanError(f"k{i} cannot run: it failed when measured, or is forbidden", where="what_if")
        until = time.perf_counter() + seconds
        found, unused = forced(rows.problem, [where[i] for i in needed], until)
        prices = [p if p.us == us else Priced(us, us, us, "given" if us < math.inf else "forbidden")
                  for p, us in zip(self.prices, costs)]  # fmt: skip
        bound = min(found.lower_bound, found.cost)
        return Choice(self.hypergraph, rows.ordered(found), prices, replace(found, lower_bound=bound)), unused

    def _changes(self, kernels: Iterable[int], prices: Sequence[Priced]) -> tuple[KernelChange, ...]:
        found = []
        for i in sorted(kernels, key=lambda i: -prices[i].us):
            c = self.hypergraph.candidates[i]
            if not c.is_view:
                made = " + ".join(value_name(self.explorer.view, v) for v in c.outputs)
                found.append(KernelChange(f"k{i}", c.template.name, made, prices[i].us, prices[i].source))
        return tuple(found)

    def _error(self, chosen: Iterable[int]) -> float | None:
        errors = [self.explorer.error_of(i) for i in chosen if not self.hypergraph.candidates[i].is_view]
        return None if any(e is None for e in errors) else math.fsum(e for e in errors if e is not None)


__all__ = ["KernelChange", "Question", "WhatIf"]
