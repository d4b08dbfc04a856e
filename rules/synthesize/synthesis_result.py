"""Holds the result of a rule synthesis: rules with verdict (proved, tested, refuted or unknown) and origin, as JSON,
text and rule lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...egraph.patterns.rule import Rule
from ..check.check import Verdict


@dataclass(frozen=True)
class SynthesizedRule:
    """A synthesized rule, the result of its soundness check (`verdict`) and its origin.

    `known`: whether existing rules derive it (None: not compared). `size`: size of terms at which it was found.
    `world`: name of the set of typed variables and ops in which it was found. `free`: whether it holds with elementwise
    functions uninterpreted.
    """

    rule: Rule
    verdict: Verdict
    size: int
    world: str
    free: bool
    known: bool | None = None


@dataclass
class Synthesis:
    """The result of a synthesis run.

    The arguments of the run are `ops` to `broadcast`. `found`: the rules. `counts` counts terms, equalities, candidates
    and their outcomes; `reached` is the size completed in each world (set of typed variables and ops). `stopped`:
    "complete", "interrupted" or "out of time".
    """

    ops: tuple[str, ...]
    size: int
    variables: int
    seed: int
    broadcast: bool
    found: list[SynthesizedRule] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reached: dict[str, int] = field(default_factory=dict)
    stopped: str = "complete"
    seconds: float = 0.0

    @property
    def rules(self) -> list[Rule]:
        """The synthesized rules, in the order in which they were found."""
        return [f.rule for f in self.found]

    @property
    def command(self) -> str:
        """The command line that repeats this run."""
        broadcast = " --broadcast" if self.broadcast else ""
        return (f"tensor-graphs rules synthesize --ops {','.join(self.ops)} --size {self.size} --variables {self.variables}"
                f" --seed {self.seed}{broadcast}")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The run's entry in a JSON document."""
        rows = [
            {"name": f.rule.name, "text": rule_line(f.rule), "left": f.rule.left, "right": f.rule.right, "when": list(f.rule.when),
             "both": f.rule.both, "exact": f.rule.exact, "growth": f.rule.growth, "verdict": f.verdict.status,
             "detail": f.verdict.detail, "size": f.size, "world": f.world, "uninterpreted": f.free, "known": f.known}
            for f in self.found
        ]  # fmt: skip
        return {"command": self.command, "rules": rows, "counts": dict(self.counts), "reached": self.reached,
                "stopped": self.stopped, "seconds": self.seconds}  # fmt: skip

    def text(self) -> str:
        """The rules in the rule language, with verdicts (proved, tested, refuted or unknown) and origin in comments;
        `rules check` reads this format."""
        reached = ", ".join(f"{w} up to size {s}" for w, s in self.reached.items())
        lines = [f"# {self.command}", f"# {len(self.found)} rules; {reached}; {self.stopped}",
                 "# " + ", ".join(f"{n} {k}" for k, n in self.counts.items())]  # fmt: skip
        for one in self.found:
            known = {True: "derived by the rules in force", False: "new", None: "not compared"}[one.known]
            scope = ", for any elementwise functions" if one.free else ""
            lines += ["", f"# {one.verdict.status} ({one.verdict.detail}); size {one.size}, {one.world}{scope}; {known}",
                      rule_line(one.rule)]  # fmt: skip
        return "\n".join(lines) + "\n"


def rule_line(rule: Rule) -> str:
    """A rule on one line as `rules check` reads it: `name: left -> right when guard, guard; exact`."""
    arrow = "<->" if rule.both else "->"
    when = f" when {', '.join(rule.when)}" if rule.when else ""
    return f"{rule.name}: {rule.left} {arrow} {rule.right}{when}{'; exact' if rule.exact else ''}"
