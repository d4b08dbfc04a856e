"""Proves equalities by saturation: both sides of a claim go into one e-graph, and equal e-classes prove the claim.

A claim is a list of pairs of terms over shared leaves (a multi-pattern rule claims several equalities at once). All
terms are lowered together and the rules run in rounds. After each round, the claim is proved if the two sides of every
pair are in one e-class, so a proof may rewrite either side or meet in the middle. Nothing is pruned.

The rule set consists of the rules for models without their profitability guards, and of the canonical-form rules
(tables/normal_form.py, strides.py) in place of the few rules that never terminate without such a guard. A second search
adds rules that convert one kind of contraction into another, after which associativity generates very many terms. A
third search, for claims with reshapes of contractions or reductions, adds the loop rules (tables/loops.py): loops are
split, merged and interchanged, which proves split-K, im2col, online softmax and attention in one pass. Constant arrays
are first expressed by ops (smt/spelling.py), because rules match ops.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, make, rebuild, topological
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.engine_bounds import Bounds, Deadline, EngineError, MemoryLimit, Stop, Stopped, never
from ...egraph.saturate.program import EgglogProgram, make_program
from ...egraph.saturate.saturate import DECLARE_SECONDS, Limits
from ...egraph.saturate.sessions import SaturationSession
from ...egraph.saturate.tables import LoweredGraph, with_parts
from ...egraph.saturate.term_cost import Roofline
from ...egraph.types.dims import concrete
from ...errors import RuleError, WorkerError
from ..check.check import about_cost
from ..smt.spelling import known, one_value, spelled_out
from ..tables import loops

Claim = Sequence[tuple[Tensor, Tensor]]

NAMED = ("input", "param", "state")
LIMITS = Limits(nodes=60_000, iterations=16, seconds=5.0, bytes=1 << 30)
"""Limits on e-nodes, saturation rounds, seconds and bytes for the claims that are proved together."""

#: Rules that never saturate without their profitability guard; the canonical-form rules imply them.
ENDLESS = (
    "merge-matmuls", "merge-linears", "merge-convs", "sum-of-products", "concat-inputs", "enlarge-kernel",
    "pointwise-after-conv", "fold-input-shift", "fold-conv-input-shift", "factor-one",
)  # fmt: skip
#: Rules of the second search only.
LATE = ("pointwise-conv-is-matmul", "strided-pointwise-conv")
BLOCK_SIZES = 2  # of the third search
#: A claim gets the third search if it has an op of each set.
LOOPED = frozenset({"matmul", "linear", "conv", "sum", "max", "min"})
REGROUPED = frozenset({"reshape", "windows"})


def for_proofs(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules without their profitability guards, and without those that then never saturate (`ENDLESS`)."""
    return tuple(_free(r) for r in rules if r.name not in ENDLESS)


@cache
def all_for_proofs() -> tuple[Rule, ...]:
    """All rules that suit proofs (`for_proofs`): those applied to models and those towards canonical forms."""
    from .. import EVERY

    return for_proofs(EVERY)


def _free(rule: Rule) -> Rule:
    return replace(rule, when=tuple(text for text, guard in zip(rule.when, rule.guards) if not about_cost(guard)))


@dataclass(frozen=True)
class Proof:
    """The result of a proof attempt, with the number of rounds, seconds and e-nodes.

    `stopped` says why the search ended ("proved", "saturated", or the limit that was reached).
    """

    proved: bool
    stopped: str
    rounds: int = 0
    seconds: float = 0.0
    nodes: int = 0

    def __bool__(self) -> bool:
        return self.proved


class Prover:
    """Equality prover with a rule set (default: all built-in rules).

    Caches the egglog declarations per set of ops and ranks.

    A session keeps its last declaration, so consecutive claims over the same ops and ranks are proved fastest.
    """

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        every = all_for_proofs() if rules is None else for_proofs(rules)
        self.searches = (tuple(r for r in every if r.name not in LATE), every)
        self.with_loops = rules is None
        self.programs: dict[tuple[tuple[str, ...], frozenset[str], frozenset[int]], EgglogProgram] = {}

    def program(self, graph: Graph, rules: tuple[Rule, ...]) -> EgglogProgram:
        """The egglog program with these rules, for graphs with these ops and ranks."""
        nodes = with_parts(graph)[0]
        key = (tuple(r.name for r in rules), frozenset(n.op for n in nodes), frozenset(n.rank for n in nodes))
        if key not in self.programs:
            self.programs[key] = make_program([graph], rules, Roofline(), None, parts=True)
        return self.programs[key]

    def further_searches(self, graph: Graph) -> Iterator[tuple[Rule, ...]]:
        """Rule sets of the searches after the first, as far as they differ from the first for this graph."""
        every = self.searches[1]
        if {*LATE} & {*self.program(graph, every).names}:
            yield every
        ops = {n.op for n in with_parts(graph)[0]}
        if self.with_loops and ops & LOOPED and ops & REGROUPED:
            yield (*every, *loops.RULES, *(rule for size in _blocks(graph) for rule in loops.splits(size)))

    def prove(
        self, claims: Sequence[Claim], session: SaturationSession, limits: Limits = LIMITS, stop: Stop = never
    ) -> Proof:
        """The result of an attempt to prove all claims within the limits, in one e-graph, each claim over its own
        leaves.

        Raises RuleError if a rule gives one value two types.
        """
        pairs = [pair for i, claim in enumerate(claims) for pair in _spelled(claim, f"#{i}" if len(claims) > 1 else "")]
        if any(a.type != b.type for a, b in pairs):
            return Proof(False, "the sides have different types")
        if not pairs:
            return Proof(True, "one term")
        known_equal = known([side for pair in pairs for side in pair])
        graph = Graph.of(list(dict.fromkeys(side for pair in (*pairs, *known_equal) for side in pair)))
        if any(0 in n.shape for n in graph.nodes()):
            return Proof(False, "empty values: no law holds")
        first = _Search(session, limits, stop, known_equal).run(pairs, graph, self.program(graph, self.searches[0]))
        if first or first.stopped == "interrupted":
            return first
        seconds = first.seconds
        for rules in self.further_searches(graph):
            left = replace(limits, seconds=max(0.0, limits.seconds - seconds))
            found = _Search(session, left, stop, known_equal).run(pairs, graph, self.program(graph, rules))
            if found or found.stopped == "interrupted":
                return found
            seconds += found.seconds
        return replace(first, seconds=seconds)


class _Search:
    """One saturation run for a set of claims."""

    def __init__(self, session: SaturationSession, limits: Limits, stop: Stop, known_equal: Claim = ()) -> None:
        self.session, self.limits, self.stop, self.known_equal = session, limits, stop, known_equal
        self.rounds = self.nodes = 0

    def run(self, claim: Claim, graph: Graph, program: EgglogProgram) -> Proof:
        """Runs the search; a Proof with the reason why it ended.

        Raises RuleError if a rule gives one value two types.
        """
        begin = time.perf_counter()
        try:
            self.session.prepare()
            self.session.request("declare", program.declaration, Bounds(DECLARE_SECONDS, 0, self.stop))
            begin = time.perf_counter()
            reason = self.meet(claim, program.lower(graph), program, begin + self.limits.seconds)
        except Deadline:
            reason = "seconds"
        except MemoryLimit:
            reason = "bytes"
        except (KeyboardInterrupt, Stopped):
            reason = "interrupted"
        except WorkerError as error:
            reason = f"the worker died: {error.message}"
        except EngineError as error:
            raise RuleError(
                f"egglog found two types for one value: {error}",
                hint="a rule is unsound or its guard is too weak: run `tensor-graphs rules check`",
            ) from None
        return Proof(reason == "proved", reason, self.rounds, time.perf_counter() - begin, self.nodes)

    def meet(self, claim: Claim, lowered: LoweredGraph, program: EgglogProgram, end: float) -> str:
        """Saturates round by round until all pairs are equal, nothing changes, a limit is reached, or at time `end`.

        Returns the reason.
        """
        number = {n: i for i, n in enumerate(lowered.nodes)}
        pairs = [(number[a], number[b]) for a, b in claim]
        lowered = replace(lowered, equal=[*lowered.equal, *((number[a], number[b]) for a, b in self.known_equal)])
        self.ask("start", program.job(lowered, self.limits.nodes), end)
        while self.rounds < self.limits.iterations:
            found = self.ask("meet", pairs, end)
            self.rounds, self.nodes = self.rounds + 1, int(found["live"])
            if found["equal"]:
                return "proved"
            if not found["updated"]:
                return "saturated"
            if self.nodes > self.limits.nodes:
                return "nodes"
        return "iterations"

    def ask(self, method: str, payload: Any, end: float) -> dict[str, Any]:
        """Sends a request to the session within the remaining time; raises Deadline if none is left."""
        left = end - time.perf_counter()
        if left <= 0:
            raise Deadline
        return self.session.request(method, payload, Bounds(left, self.limits.bytes, self.stop))[0]


def _blocks(graph: Graph) -> list[int]:
    """Block sizes b of reshapes between an axis of size a * b and the axes (a, b); the smallest two."""
    found: set[int] = set()
    for node in graph.nodes():
        if node.op == "reshape":
            shapes = concrete(node.shape), concrete(node.args[0].shape)
            for long, short in (shapes, shapes[::-1]):
                found |= {b for a, b in pairwise(long) if a != 1 != b and a * b in short}
    return sorted(found)[:BLOCK_SIZES]


def _spelled(claim: Claim, mark: str) -> list[tuple[Tensor, Tensor]]:
    """(left, right) of each pair that is not trivially equal, with constants expressed by ops and `mark` appended to
    the names of leaves."""

    def renamed(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op not in NAMED or not mark:
            return None
        return make(node.op, (), {**dict(node.attrs), "name": f"{node.attr('name')}{mark}"})

    open_pairs = [pair for pair in claim if not one_value(*pair)]
    sides = spelled_out(rebuild([side for pair in open_pairs for side in pair], renamed))
    return [(a, b) for a, b in zip(sides[::2], sides[1::2]) if a is not b]


def size_one_axes(claim: Claim) -> int:
    """Number of axes of size 1 in all terms of a claim; instances with many are special cases."""
    return sum(d == 1 for node in topological([side for pair in claim for side in pair]) for d in node.shape)
