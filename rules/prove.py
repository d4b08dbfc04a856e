"""Do the rules prove that terms are equal? Both sides go into one e-graph, which says whether they meet.

A claim is a list of pairs of terms over shared leaves (a multi-pattern rule claims several equalities at once). All terms are
lowered together, the rules run round by round, and after each round the e-graph is asked whether the two sides of every
pair are in one class: the proof may go either way or meet in the middle. Nothing is pruned.

The rules are those in force without the conditions that only say where a rule pays, and those towards a normal form
(normal.py, strides.py) in the place of the few that would go on for ever without such a condition. A second search adds rules that
change the kind of a contraction, behind which associativity finds very many forms. Constants are spelled out first
(spell.py), for rules speak of ops.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..egraph.engine import Bounds, Deadline, EngineError, MemoryLimit, Stop, Stopped, never
from ..egraph.graph import Graph, Tensor, make, rebuild, topological
from ..egraph.lower import Lowered, with_parts
from ..egraph.pricing import Roofline
from ..egraph.program import Program, make_program
from ..egraph.rule import Rule
from ..egraph.saturate import DECLARE_SECONDS, Limits, Session
from ..errors import RuleError, WorkerError
from .check import about_cost
from .spell import known, one_value, spelled_out

Claim = Sequence[tuple[Tensor, Tensor]]

NAMED = ("input", "param", "state")
LIMITS = Limits(nodes=60_000, iterations=16, seconds=5.0, bytes=1 << 30)
"""E-nodes, rounds, seconds and bytes for the claims that are proved together."""

#: Rules that make ever new terms once their condition on cost is gone. What they say follows from the normal form's.
ENDLESS = (
    "merge-matmuls", "merge-linears", "merge-convs", "sum-of-products", "concat-inputs", "enlarge-kernel",
    "pointwise-after-conv", "fold-input-shift", "fold-conv-input-shift", "factor-one",
)  # fmt: skip
#: Rules of the second search.
LATE = ("pointwise-conv-is-matmul", "strided-pointwise-conv")


def for_proofs(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules without conditions that only say where one pays, and without those that would go on for ever."""
    return tuple(_free(r) for r in rules if r.name not in ENDLESS)


@cache
def all_for_proofs() -> tuple[Rule, ...]:
    """`for_proofs` of every rule in force and of those towards the normal form."""
    from . import EVERY

    return for_proofs(EVERY)


def _free(rule: Rule) -> Rule:
    fields = {k: v for k, v in rule.__dict__.items() if k not in ("lefts", "rights", "guards")}
    kept = tuple(text for text, guard in zip(rule.when, rule.guards) if not about_cost(guard))
    return Rule(**{**fields, "when": kept})


@dataclass(frozen=True)
class Proof:
    """Whether a claim was proved, in how many rounds, seconds and e-nodes; `stopped` says what ended the search."""

    proved: bool
    stopped: str
    rounds: int = 0
    seconds: float = 0.0
    nodes: int = 0

    def __bool__(self) -> bool:
        return self.proved


class Prover:
    """Rules for proofs (default: all of ours), and what egglog must know of them for the ops and ranks met so far.

    A session keeps its last declaration: claims over the same ops and ranks are proved fastest in a row.
    """

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        every = all_for_proofs() if rules is None else for_proofs(rules)
        self.searches = (tuple(r for r in every if r.name not in LATE), every)
        self.programs: dict[tuple[int, frozenset[str], frozenset[int]], Program] = {}

    def program(self, graph: Graph, search: int) -> Program:
        """The declaration of a search's rules for graphs of these ops and ranks."""
        nodes = with_parts(graph)[0]
        key = (search, frozenset(n.op for n in nodes), frozenset(n.rank for n in nodes))
        if key not in self.programs:
            self.programs[key] = make_program([graph], self.searches[search], Roofline(), None, parts=True)
        return self.programs[key]

    def prove(self, claims: Sequence[Claim], session: Session, limits: Limits = LIMITS, stop: Stop = never) -> Proof:
        """Whether every claim is proved within the limits. All are searched at once, each over leaves of its own.

        RuleError where a rule of ours gives one value two types.
        """
        pairs = [pair for i, claim in enumerate(claims) for pair in _spelled(claim, f"#{i}" if len(claims) > 1 else "")]
        if any(a.type != b.type for a, b in pairs):
            return Proof(False, "the sides have different types")
        if not pairs:
            return Proof(True, "one term")
        told = known([side for pair in pairs for side in pair])
        graph = Graph.of(list(dict.fromkeys(side for pair in (*pairs, *told) for side in pair)))
        if any(0 in n.shape for n in graph.nodes()):
            return Proof(False, "empty values: no law holds")
        first = _Search(session, limits, stop, told).run(pairs, graph, self.program(graph, 0))
        if first or first.stopped == "interrupted":
            return first
        late = self.program(graph, 1)
        if not {*LATE} & {*late.names}:
            return first
        left = replace(limits, seconds=max(0.0, limits.seconds - first.seconds))
        found = _Search(session, left, stop, told).run(pairs, graph, late)
        return found if found else replace(first, seconds=first.seconds + found.seconds)


class _Search:
    """Claims on their way."""

    def __init__(self, session: Session, limits: Limits, stop: Stop, told: Claim = ()) -> None:
        self.session, self.limits, self.stop, self.told = session, limits, stop, told
        self.rounds = self.nodes = 0

    def run(self, claim: Claim, graph: Graph, program: Program) -> Proof:
        """The proof, or what stopped it."""
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

    def meet(self, claim: Claim, lowered: Lowered, program: Program, end: float) -> str:
        """Rounds until the pairs meet, nothing changes or a limit is met; which of these."""
        number = {n: i for i, n in enumerate(lowered.nodes)}
        pairs = [(number[a], number[b]) for a, b in claim]
        lowered = replace(lowered, equal=[*lowered.equal, *((number[a], number[b]) for a, b in self.told)])
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
        """A request within what is left of the time."""
        left = end - time.perf_counter()
        if left <= 0:
            raise Deadline
        return self.session.request(method, payload, Bounds(left, self.limits.bytes, self.stop))[0]


def _spelled(claim: Claim, mark: str) -> list[tuple[Tensor, Tensor]]:
    """The pairs that are not one term or one value already, constants spelled out, the mark added to the names of leaves."""

    def renamed(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op not in NAMED or not mark:
            return None
        return make(node.op, (), {**dict(node.attrs), "name": f"{node.attr('name')}{mark}"})

    open_pairs = [pair for pair in claim if not one_value(*pair)]
    sides = spelled_out(rebuild([side for pair in open_pairs for side in pair], renamed))
    return [(a, b) for a, b in zip(sides[::2], sides[1::2]) if a is not b]


def size_one_axes(claim: Claim) -> int:
    """How many axes of all terms of a claim have size 1: instances with many are special cases."""
    return sum(d == 1 for node in topological([side for pair in claim for side in pair]) for d in node.shape)
