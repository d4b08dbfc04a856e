"""Report of a saturation: sizes, rounds, reason for stopping, time and matches of each rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SaturationReport:
    """Report of a saturation.

    `stopped` is one of: saturated, iterations, nodes, seconds, bytes, interrupted, worker-died. `sizes`: live e-nodes
    after each iteration (first entry: the original block). `matches` and `rule_seconds`: totals per rule (rules that
    cannot occur are omitted). `kept`: iteration whose e-graph was kept. `extractable`: whether every root of the last
    round was extractable (if not, an earlier round was kept).
    """

    stopped: str = "saturated"
    iterations: int = 0
    sizes: tuple[int, ...] = ()
    matches: Mapping[str, int] = field(default_factory=dict)
    rule_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    kept: int = 0
    extractable: bool = True
    message: str = ""  # error message of a worker that died

    def rule_table(self, count: int = 15) -> str:
        """Table of the `count` slowest rules with their matches, and the total time of rules without matches."""
        return rule_table({n: (m, self.rule_seconds.get(n, 0.0)) for n, m in self.matches.items()}, count)

    def __str__(self) -> str:
        return (
            f"{self.stopped} after {self.iterations} iterations in {self.seconds:.2f} s, "
            f"{self.sizes[-1] if self.sizes else 0} e-nodes, {sum(self.matches.values())} matches"
        )


SHOWN_S = 5e-5  # seconds from which a rule without matches is shown in the table


def rule_table(rules: Mapping[str, tuple[int, float]], count: int = 15) -> str:
    """Table of rules, given as name -> (matches, seconds): the `count` slowest, then the total and the share of rules
    without matches.
    """
    ranked = sorted(rules.items(), key=lambda r: (-r[1][1], r[0]))
    lines = [f"{1e3 * s:>9.1f} ms  {m:>7} matches  {name}" for name, (m, s) in ranked[:count] if m or s >= SHOWN_S]
    idle = [s for m, s in rules.values() if not m]
    total = sum(s for _, s in rules.values())
    lines.append(
        f"{1e3 * total:>9.1f} ms  {sum(m for m, _ in rules.values()):>7} matches  {len(rules)} rules, "
        f"{len(idle)} of which matched nothing in {1e3 * sum(idle):.1f} ms"
    )
    return "\n".join(lines)


__all__ = ["SHOWN_S", "SaturationReport", "rule_table"]
