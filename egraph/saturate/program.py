"""Writes the egglog program for a set of graphs: declarations, type laws, cost rules and rewrite rules as a list of
commands.

Only ops and ranks that can occur are declared: a rule when its ops are in the e-graph, and an op when a graph or a
declared rule has it, because each of their commands costs egglog 0.1 to 1 ms. All blocks (repeated subgraphs) of a
model share one program, so a worker declares it once and loads one block after another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Graph
from ..ir.tensor import LEAVES
from ..patterns.rule import Rule
from .applicable_rules import Shape, applicable, changes_rank, literal_ranks, shapes
from .beam import KILL, subsumption_commands
from .language import Interner, base_declarations, constructors, declare_op, rank_facts, signature
from .rule_compiler import collect_constants, compile_rule
from .tables import LoweredGraph, lower, with_parts
from .term_cost import CAP, OpCosts, Pricing

_OP = re.compile(r"\((?:o|st|d)_(\w+)")  # the name of an op in its constructor or one of its tables


@dataclass(frozen=True, eq=False)
class EgglogProgram:
    """An egglog program and the interned ids it uses.

    `commands`: texts that declare what all ops share. `ops`: constructor of an op -> its declarations, which the engine
    runs when a graph or a rule has the op. `rules`: ruleset of each rule -> its declarations, which the engine runs
    when the rule can match; `uses`: ruleset -> constructors in these. `names` lists the one-directional rules.
    `signatures`: op -> letters of its arguments (`language.signature`). `pruned`: whether e-nodes are pruned, by cost
    or by a beam; `beam`: number of e-nodes per e-class that the beam keeps (0: no beam). `constants`: numbers that
    rules mention. `parts`: whether composite ops are united with their decompositions. `key`: hash of all commands.
    """

    commands: tuple[str, ...]
    ops: dict[str, list[str]]
    uses: dict[str, list[str]]
    rules: dict[str, list[str]]
    signatures: dict[str, str]
    names: tuple[str, ...]
    needs: dict[str, tuple[Shape, ...]]  # ruleset -> op shapes that must be present in an e-graph for the rule to match
    pruned: bool
    beam: int
    interner: Interner
    constants: tuple[float, ...]
    pricing: Pricing
    parts: bool
    key: str

    def lower(self, graph: Graph) -> LoweredGraph:
        """Convert the graph to egglog input tables, encoded with this program's interned ids."""
        return lower(graph, self.interner.copy(), self.constants, self.pricing, self.parts)

    @property
    def declaration(self) -> dict[str, Any]:
        """Payload of the engine's `declare` request (JSON)."""
        return {
            "key": self.key,
            "commands": self.commands,
            "ops": self.ops,
            "uses": self.uses,
            "rules": self.rules,
            "signatures": self.signatures,
            "needs": self.needs,
            "pruned": self.pruned,
            "beam": bool(self.beam),
        }

    @staticmethod
    def job(lowered: LoweredGraph, nodes: int) -> dict[str, Any]:
        """JSON payload of the request `Engine.start`, which loads the subgraph `lowered` into the worker's e-graph.
        `nodes`: limit on the number of live e-nodes."""
        return {
            "tables": lowered.tables(),
            "dims": [list(d) for d in lowered.dims],
            "handles": len(lowered.nodes),
            "own": lowered.own,
            "roots": lowered.roots,
            "nodes": nodes,
        }


def make_program(
    graphs: Iterable[Graph],
    rules: Sequence[Rule],
    pricing: Pricing,
    slack: int | None,
    beam: int = 0,
    parts: bool = False,
) -> EgglogProgram:
    """Make the egglog program for some graphs.

    `slack` (nanoseconds): e-nodes more expensive than the best of their e-class by more than this are pruned; None: no
    cost pruning. `beam`: number of e-nodes per e-class that beam pruning keeps; 0: no beam. `parts`: unite composite
    ops with their decompositions. Raises RuleError if a rule cannot be expressed in egglog.
    """
    nodes = [n for g in graphs for n in (with_parts(g)[0] if parts else g.nodes())]
    usable, reachable = applicable(rules, {n.op for n in nodes if n.op not in LEAVES})
    names = constructors(reachable)
    present = {n.rank for n in nodes}
    near = {r + d for r in present for d in (-1, 1) if r + d >= 0} if any(map(changes_rank, usable)) else set()
    near |= {r for rule in usable for r in literal_ranks(rule)}
    ranks = list(range(max({1, *near, *(r + 1 for r in present)}) + 1))
    interner = Interner()
    constants = collect_constants(usable, interner)
    guarded = slack is not None or bool(beam)
    costs = OpCosts(pricing, 8 * CAP if slack is None else slack) if guarded else None
    commands = [*base_declarations(guarded=guarded), *rank_facts(ranks)]
    commands += [*(costs.shared() if costs else ()), *([KILL] if beam else ())]
    ops = {f"o_{name}": list(declare_op(name, ranks, guarded=guarded)) for name in names}
    for name in names:
        ops[f"o_{name}"] += [*(costs.of(name) if costs else ()), *(subsumption_commands(name) if beam else ())]
    needs: dict[str, tuple[Shape, ...]] = {}
    texts: dict[str, list[str]] = {}
    for number, rule in enumerate(usable):  # one ruleset per rule, so that a round can run only rules that can match
        ruleset = f"r_{number}"
        needs[ruleset] = shapes(rule)
        spelled = compile_rule(rule, interner, sorted(present | near), guarded=guarded, ruleset=ruleset)
        texts[ruleset] = [f"(ruleset {ruleset})", *(text for _, text in spelled)]
    uses = {ruleset: _constructors_in(text, ops) for ruleset, text in texts.items()}
    lines = [*commands, *(line for text in (*ops.values(), *texts.values()) for line in text)]
    key = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
    return EgglogProgram(
        commands=tuple(commands),
        ops=ops,
        uses=uses,
        rules=texts,
        signatures={"Leaf": "I"} | {name: signature(name) for name in names},
        names=tuple(r.name for r in usable),
        needs=needs,
        pruned=guarded,
        beam=beam,
        interner=interner,
        constants=tuple(constants),
        pricing=pricing,
        parts=parts,
        key=key,
    )


def _constructors_in(texts: Sequence[str], ops: Container[str]) -> list[str]:
    """The constructors in `ops` of the ops whose constructors or tables occur in egglog commands, sorted."""
    found = {f"o_{name}" for text in texts for name in _OP.findall(text)}
    return sorted(name for name in found if name in ops)


__all__ = ["EgglogProgram", "make_program"]
